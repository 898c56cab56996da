"""`querylect doctor --gpu`: compute on this machine's GPU what a training run computes, and compare and time it.

Each check is a process of its own with a deadline, so that one that crashes or hangs does not end the others.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from ..errors import in_one_line
from ..sources import install_command
from .findings import Finding

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from ..train.packing.attention import Kind

AREA = "gpu"
SECONDS = 300
"""Deadline of one check; the first call of FlexAttention compiles it."""
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


def gpu_findings(seconds: float = SECONDS) -> list[Finding]:
    """The findings of all checks, each in its own process."""
    return [_in_process(name, seconds) for name in CHECKS]


def _in_process(name: str, seconds: float) -> Finding:
    code = "import sys; from querylect.doctor.gpu import write_check; write_check(*sys.argv[1:])"
    with TemporaryDirectory() as folder:
        answer = Path(folder) / "finding.json"
        command = [sys.executable, "-P", "-c", code, name, str(answer)]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
            return Finding(**json.loads(answer.read_text()))
        except subprocess.TimeoutExpired:
            return Finding(AREA, name, "failed", f"no answer in {seconds:g} s")
        except (OSError, ValueError):
            last = ended.stderr.strip().splitlines()[-1:] or ["it printed nothing"]
            return Finding(AREA, name, "failed", f"its process ended (exit code {ended.returncode}): {last[0][:300]}")


def write_check(name: str, path: str) -> None:
    """Run one check on the GPU and write its finding as JSON."""
    import torch

    if not torch.cuda.is_available():
        finding = Finding(AREA, name, "failed", "torch sees no GPU", "querylect doctor says what is missing")
    else:
        try:
            finding = CHECKS[name](torch.device("cuda"), Workload())
        except Exception as error:  # noqa: BLE001 (a failed check is what is reported)
            finding = Finding(AREA, name, "failed", f"{type(error).__name__}: {in_one_line(error)}")
    Path(path).write_text(json.dumps(asdict(finding)))


def gradients(device: "torch.device", work: Workload) -> Finding:
    """Gradients of a packed tree against those of flat float32 rows with the same weights, in float32 and bfloat16."""
    import torch

    from ..rollouts.policy import move_to

    rows = _tree(work, device)
    model = _policy(work, device)
    move_to(model, torch.bfloat16)
    rounded = {kind: _gradient(model, rows, kind) for kind in (None, *_kinds(device))}
    move_to(model, torch.float32)
    exact = _gradient(model, rows, None)

    def error(gradient: "Tensor") -> float:
        return float((gradient - exact).norm() / exact.norm())

    flat = error(rounded[None])
    equal, parts = True, [f"flat bfloat16 {flat:.1e}"]
    for kind in _kinds(device):
        errors = {"float32": error(_gradient(model, rows, kind)), "bfloat16": error(rounded[kind])}
        # False for NaN
        equal &= errors["float32"] <= FLOAT32_ERROR and errors["bfloat16"] <= BFLOAT16_FACTOR * flat
        parts += [f"{kind} {name} {value:.1e}" for name, value in errors.items()]
    detail = f"relative error of gradients against flat float32 rows: {', '.join(parts)}"
    remedy = "" if equal else "train with train.packing=false, and report this"
    return Finding(AREA, "gradients", "ok" if equal else "failed", detail, remedy)


def vllm(device: "torch.device", work: Workload) -> Finding:
    """Greedy samples of vLLM against transformers, before and after the weights have changed."""
    import torch

    if find_spec("vllm") is None:
        return Finding(AREA, "vllm", "missing", "not installed", install_command("gpu"))
    from ..configs.schema import RunConfig
    from ..rollouts.engines.base import Sampling
    from ..rollouts.engines.open import open_engine
    from ..rollouts.engines.transformers import TransformersEngine
    from ..rollouts.policy import load_policy, move_to

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
            firsts = [abs(one.logprobs[0] - other.logprobs[0]) for (one,), (other,) in pairs]
            error = sum(firsts) / len(firsts)
            parts.append(f"{error:.3f} nats {moment}")
            if not error <= LOGP_ERROR:
                break
            weights.sleep()
            with torch.no_grad():
                model.get_output_embeddings().weight.mul_(1.5)
    remedy = "" if error <= LOGP_ERROR else "use rollout.engine=transformers, and report this"
    detail = f"mean difference of greedy log-probabilities from transformers: {', '.join(parts)}"
    return Finding(AREA, "vllm", "failed" if remedy else "ok", detail, remedy)


CHECKS: dict[str, Callable[["torch.device", Workload], Finding]] = {
    "gradients": gradients, "vllm": vllm,
}  # fmt: skip


def _kinds(device: "torch.device") -> Iterator["Kind"]:
    yield "sdpa"
    if device.type == "cuda":
        yield "flex"


def _policy(work: Workload, device: "torch.device") -> "PreTrainedModel":
    import torch
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from ..rollouts.policy import move_to

    config = Qwen3Config(
        vocab_size=work.vocabulary, hidden_size=work.hidden, intermediate_size=3 * work.hidden,
        num_hidden_layers=work.layers, num_attention_heads=work.hidden // 64, num_key_value_heads=work.hidden // 128,
        head_dim=64, tie_word_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config)
    move_to(model, device)
    model.eval()
    return model


def _tree(work: Workload, device: "torch.device") -> tuple["Tensor", "Tensor"]:
    """(16, T) ids of the leaves of a tree, and (16, T − prompt) which tokens are scored."""
    import torch

    random = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(work.vocabulary, (count,), generator=random).tolist()

    start, first, documents, second = work.lengths
    prompt, rows, scored = ids(start), [], []
    for _ in range(4):
        stem = [*prompt, *ids(first), *ids(documents)]
        for leaf in range(4):
            rows.append([*stem, *ids(second)])
            scored.append([leaf == 0] * first + [False] * documents + [True] * second)
    return torch.tensor(rows, device=device), torch.tensor(scored, device=device)


def _backward(model: "PreTrainedModel", rows: tuple["Tensor", "Tensor"], kind: "Kind | None") -> int:
    """Add the gradient of the log-probabilities, in part negative as advantages are; returns the computed tokens."""
    from ..train.packing.packing import token_logps

    ids, scored = rows
    start = ids.shape[1] - scored.shape[1]
    targets = [row.nonzero()[:, 0].cpu().numpy() + start for row in scored]
    logps, _, tokens = token_logps(model, list(ids.cpu().numpy()), targets, 1.0, attention=kind)
    signs = 1 - 2 * (ids[:, start:][scored] % 2)
    (logps * signs).mean().backward()
    return tokens


def _gradient(model: "PreTrainedModel", rows: tuple["Tensor", "Tensor"], kind: "Kind | None") -> "Tensor":
    import torch

    model.zero_grad(set_to_none=True)
    _backward(model, rows, kind)
    return torch.cat([weight.grad.float().flatten() for weight in model.parameters() if weight.grad is not None])


def _save(work: Workload, folder: Path) -> None:
    """A policy with random weights and a tokenizer of single bytes."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

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
