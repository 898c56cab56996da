"""Computes on this machine's GPU what a training run computes, and compares: `python -m querylect.doctor.gpu CHECK`
prints the finding of one check as JSON."""

import json
import sys
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from ..configs.schema import RunConfig
from ..rollouts.engines.base import Sampling
from ..rollouts.engines.open import open_engine
from ..rollouts.engines.transformers import TransformersEngine
from ..rollouts.policy import load_policy, move_to
from ..sources import install_command
from ..train.attention import Kind
from ..train.packing import token_logps
from .checks import Finding

FLOAT32_ERROR = 1e-4
"""Largest relative difference of packed and flat gradients in float32."""
BFLOAT16_FACTOR = 2.0
"""Largest error of packed gradients in bfloat16, as a multiple of that of flat ones. Both are errors against float32
gradients of the same weights, which were rounded to bfloat16."""
LOGP_ERROR = 0.1
"""Largest mean difference, in nats, between vLLM's greedy log-probabilities and those of transformers."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Sizes of what is computed: by default a policy of some 120 million parameters and a tree of 5,050 tokens."""

    hidden: int = 1024
    layers: int = 8
    vocabulary: int = 32_000
    lengths: tuple[int, int, int, int] = (250, 150, 450, 150)
    """Tokens of prompt, first turn, documents and second turn of a tree with branching [4, 4]."""


def gradients(device: torch.device, work: Workload) -> Finding:
    """Gradients of a packed tree against those of flat float32 rows with the same weights, in float32 and bfloat16."""
    kinds: list[Kind] = ["sdpa", "flex"] if device.type == "cuda" else ["sdpa"]
    rows, model = _tree(work, device), _policy(work, device)
    move_to(model, torch.bfloat16)
    rounded = {kind: _gradient(model, rows, kind) for kind in (None, *kinds)}
    move_to(model, torch.float32)
    exact = _gradient(model, rows, None)

    def error(gradient: Tensor) -> float:
        return float((gradient - exact).norm() / exact.norm())

    flat = error(rounded[None])
    equal, parts = True, [f"flat bfloat16 {flat:.1e}"]
    for kind in kinds:
        exact_error, rounded_error = error(_gradient(model, rows, kind)), error(rounded[kind])
        equal &= exact_error <= FLOAT32_ERROR and rounded_error <= BFLOAT16_FACTOR * flat  # False for NaN
        parts.append(f"{kind} float32 {exact_error:.1e}, bfloat16 {rounded_error:.1e}")
    observed = f"relative error of gradients against flat float32 rows: {'; '.join(parts)}"
    expected = f"float32 up to {FLOAT32_ERROR:g}, bfloat16 up to {BFLOAT16_FACTOR:g} times that of flat rows"
    if equal:
        return Finding("gradients", "ok", observed, expected)
    return Finding("gradients", "failed", observed, expected, "train with train.packing=false, and report this")


def vllm(device: torch.device, work: Workload) -> Finding:
    """Greedy samples of vLLM against transformers, before and after the weights have changed."""
    if find_spec("vllm") is None:
        return Finding("vllm", "missing", "not installed", remedy=install_command("gpu"))
    with TemporaryDirectory() as folder:
        _save(work, Path(folder))
        shares = {"gpu_memory_utilization": 0.2, "enable_sleep_mode": device.type == "cuda"}
        sizes = {"max_prompt_tokens": 512, "max_new_tokens": 32}
        settings = {"policy": {"model": folder, "lora": None}, "rollout": {"engine": "vllm", "vllm": shares, **sizes}}
        config = RunConfig.model_validate(settings)
        model, tokenizer = load_policy(config.policy)
        move_to(model, device)
        engine, weights = open_engine(config.policy, config.rollout, config.seed, model, tokenizer)
        reference = TransformersEngine(model, tokenizer)
        prompts, greedy = _tree(work, device)[0][::4, : work.lengths[0]].tolist(), Sampling(0.0, max_new_tokens=32)
        parts = []
        for moment in ("as loaded", "after a change of weights"):
            weights.refresh()
            pairs = zip(engine.generate(prompts, 1, greedy), reference.generate(prompts, 1, greedy), strict=True)
            firsts = [abs(sampled.logprobs[0] - expected.logprobs[0]) for (sampled,), (expected,) in pairs]
            error = sum(firsts) / len(firsts)
            parts.append(f"{error:.3f} nats {moment}")
            if not error <= LOGP_ERROR:
                break
            weights.sleep()
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(1.5)
    observed = f"mean difference of greedy log-probabilities from transformers: {', '.join(parts)}"
    expected = f"up to {LOGP_ERROR} nats"
    if error <= LOGP_ERROR:
        return Finding("vllm", "ok", observed, expected)
    return Finding("vllm", "failed", observed, expected, "use rollout.engine=transformers, and report this")


def _policy(work: Workload, device: torch.device) -> PreTrainedModel:
    config = Qwen3Config(
        vocab_size=work.vocabulary, hidden_size=work.hidden, intermediate_size=3 * work.hidden,
        num_hidden_layers=work.layers, num_attention_heads=work.hidden // 64, num_key_value_heads=work.hidden // 128,
        head_dim=64, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model: PreTrainedModel = Qwen3ForCausalLM(config).eval()
    move_to(model, device)
    return model


def _save(work: Workload, folder: Path) -> None:
    """Save a policy with random weights and a tokenizer of single bytes."""
    names = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "<|im_start|>", "<|im_end|>"]
    core = Tokenizer(models.BPE(vocab={name: number for number, name in enumerate(names)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    template = "{% for message in messages %}{{ message.content }}<|im_end|>{% endfor %}"
    PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|im_end|>", chat_template=template
    ).save_pretrained(folder)
    model = _policy(work, torch.device("cpu"))
    model.config.eos_token_id = len(names) - 1
    model.save_pretrained(folder)


def _tree(work: Workload, device: torch.device) -> tuple[Tensor, Tensor]:
    """(16, T) ids of the leaves of a tree, and (16, T − prompt) which tokens are scored."""
    random = torch.Generator().manual_seed(0)
    start, first, documents, second = work.lengths

    def ids(count: int) -> list[int]:
        return torch.randint(work.vocabulary, (count,), generator=random).tolist()

    prompt, rows, scored = ids(start), [], []
    for _ in range(4):
        stem = [*prompt, *ids(first + documents)]
        for leaf in range(4):
            rows.append([*stem, *ids(second)])
            scored.append([leaf == 0] * first + [False] * documents + [True] * second)
    return torch.tensor(rows, device=device), torch.tensor(scored, device=device)


def _gradient(model: PreTrainedModel, rows: tuple[Tensor, Tensor], kind: Kind | None) -> Tensor:
    """The gradient of the log-probabilities, half of them negative as advantages are; `kind` None: flat rows."""
    model.zero_grad(set_to_none=True)
    ids, scored = rows
    start = ids.shape[1] - scored.shape[1]
    targets = [row.nonzero()[:, 0].cpu().numpy() + start for row in scored]
    logps, _, _ = token_logps(model, list(ids.cpu().numpy()), targets, 1.0, attention=kind)
    signs = 1 - 2 * (ids[:, start:][scored] % 2)
    (logps * signs).mean().backward()
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters() if weight.grad is not None])


def main(name: str) -> None:
    """Run the check of that name and print its finding. A check that raises ends the process."""
    finding = Finding(name, "failed", "torch sees no GPU", remedy="querylect doctor says what is missing")
    if torch.cuda.is_available():
        finding = {"gradients": gradients, "vllm": vllm}[name](torch.device("cuda"), Workload())
    sys.stdout.write("\n" + json.dumps(asdict(finding)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
