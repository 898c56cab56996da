"""Sampling a turn of a tree: this engine against transformers' own `generate`, same model, same prompts, same run.

    python benchmarks/generation.py [QUESTIONS] [SAMPLES]

Prompts are those of the demo (few-shot examples, then the question). Both sample exactly 16 tokens per completion, so
that they do the same work; the median of three rounds in turn is printed.
"""

import sys
from statistics import median

import torch
from machine import describe, seconds
from querylect.configs.load import load_config
from querylect.data.load import load_dataset
from querylect.logs import set_up_logging
from querylect.rewriters.card import RetrieverCard
from querylect.rewriters.registry import make_rewriter
from querylect.rollouts.chat import Chat
from querylect.rollouts.engine import Sampling
from querylect.rollouts.policy import load_policy
from querylect.rollouts.transformers_engine import TransformersEngine

NEW_TOKENS = 16


def main(questions: str = "12", samples: str = "4") -> None:
    """Time both and print tokens per second and the ratio."""
    set_up_logging()
    config = load_config("demo", [])
    model, tokenizer = load_policy(config.policy)
    engine = TransformersEngine(model, tokenizer)
    chat = Chat(tokenizer, engine.stop_ids)
    rewriter = make_rewriter(config.rewriter, RetrieverCard("bm25", "bm25"))
    asked = load_dataset(config.env.dataset).splits["train"].questions[: int(questions)]
    prompts = [chat.first(rewriter.first(question), rewriter.opening) for question in asked]
    n = int(samples)
    engine.stop_ids = {-1}  # never stop early: both sides sample the same number of tokens

    def ours() -> None:
        engine.generate(prompts, n, Sampling(1.0, 1.0, NEW_TOKENS))

    def theirs() -> None:
        batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
        with torch.inference_mode():
            model.generate(
                **batch, do_sample=True, top_k=0, num_return_sequences=n, max_new_tokens=NEW_TOKENS,
                min_new_tokens=NEW_TOKENS,
            )  # fmt: skip

    ours()
    theirs()
    rounds = [(seconds(ours), seconds(theirs)) for _ in range(3)]
    tokens = len(prompts) * n * NEW_TOKENS
    mine, peer = median(a for a, _ in rounds), median(b for _, b in rounds)
    print(describe())
    size = f"{len(prompts)} prompts of {len(prompts[0])} tokens × {n} samples × {NEW_TOKENS} tokens"
    print(f"{size}, {torch.get_num_threads()} threads")
    print(f"  querylect engine       {mine:6.2f} s  {tokens / mine:6.0f} tokens/s")
    print(f"  transformers generate  {peer:6.2f} s  {tokens / peer:6.0f} tokens/s")
    print(f"  ratio {median(b / a for a, b in rounds):.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
