"""Log-probabilities and entropies of tokens, from hidden states, without ever holding their logits.

The output head is read in tiles of HEAD_CHUNK logits (TRL's fused kernel), which the backward pass computes again. Of
what grows with the number of tokens only their hidden states are held, and the gradient of these. All of it happens
inside one call of the model, so that DDP, ZeRO-3 and FSDP2 see the weights of the head used where they expect it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.utils.checkpoint import checkpoint
from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer.utils import maybe_gather_lm_head_ctx

from ..errors import ModelError
from .memory import HEAD_CHUNK, HEAD_TOKENS

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedModel

Scores = tuple[Tensor, Tensor | None]
"""(n,) log-probabilities and (n,) entropies, None where they are not asked for; float32."""


@dataclass(frozen=True, slots=True)
class ForwardPass:
    """One forward pass of the decoder and the tokens that are scored by it."""

    inputs: Mapping[str, object]
    """Keyword arguments of the decoder: input_ids (rows, tokens) and what places and masks them."""
    predictors: Tensor
    """(n,) index, in the flattened (rows · tokens), of the token that predicts each scored one."""
    targets: Tensor
    """(n,) ids of the scored tokens."""


def score(
    model: nn.Module,
    pieces: Sequence[ForwardPass],
    temperature: float,
    entropies: bool,
    entropy_gradient: bool,
    passes: Callable[[int], int] | None = None,
) -> Scores:
    """The scored tokens of all pieces, in order. `model` is a causal language model, wrapped or not, and called once.

    Of several pieces the activations of one at a time are held: the backward pass computes each of them again, but for
    the head, which does so by itself and in a checkpoint would get weights that ZeRO-3 does not know. `passes`: as of
    `token_logps`.
    """
    policy = causal_model(model)
    surplus = passes(len(pieces)) - len(pieces) if passes is not None else 0
    computed = [*pieces, *[pieces[-1]] * surplus]

    def decode(piece: ForwardPass) -> Tensor:
        hidden: Tensor = policy.base_model(**piece.inputs, use_cache=False).last_hidden_state
        return hidden.flatten(0, 1)[piece.predictors]

    def forward(**_inputs: object) -> Scores:
        recompute = len(computed) > 1 and torch.is_grad_enabled()
        parts = []
        for piece in computed:
            hidden = checkpoint(decode, piece, use_reentrant=False) if recompute else decode(piece)
            parts.append(_read(policy, hidden, piece.targets, temperature, entropies))
        scored, repeated = parts[: len(pieces)], parts[len(pieces) :]
        values = torch.cat([values for values, _ in scored])
        for ignored, _ in repeated:  # by a gradient of 0, so that their backward passes gather weights too
            values = values + 0.0 * ignored.sum()
        if not entropies:
            return values, None
        entropy = torch.cat([entropy for _, entropy in scored if entropy is not None])
        return values, entropy if entropy_gradient else entropy.detach()

    previous = policy.__dict__.get("forward")
    policy.forward = forward  # also of calls through its wrappers
    try:
        scores: Scores = model(input_ids=pieces[0].inputs["input_ids"])
    finally:
        del policy.forward  # uncovers the method of the class
        if previous is not None:
            policy.forward = previous
    return scores


def causal_model(model: nn.Module) -> "PreTrainedModel":
    """The causal language model in the wrappers of adapters, DDP and DeepSpeed."""
    inner = extract_model_from_parallel(model, keep_torch_compile=False)
    causal: PreTrainedModel = inner.get_base_model() if hasattr(inner, "get_base_model") else inner
    return causal


def _read(policy: "PreTrainedModel", hidden: Tensor, targets: Tensor, temperature: float, entropies: bool) -> Scores:
    head = policy.get_output_embeddings()
    if isinstance(head, FSDPModule):  # its weights are read without a call of it, which would gather them
        head.unshard()
    if not isinstance(head, nn.Linear):
        raise ModelError(f"the output layer of {type(policy).__name__} is a {type(head).__name__}, not a linear layer")
    softcap, scale = logit_settings(policy.config.get_text_config())
    outputs, width = ("entropy",) if entropies else (), max(1, HEAD_CHUNK // HEAD_TOKENS)
    with maybe_gather_lm_head_ctx(head.weight, head.bias):
        values, entropy, *_ = ChunkedLogProbFunction.apply(
            hidden, head.weight, head.bias, targets, temperature, width, softcap, scale, outputs
        )
    return values, entropy


def logit_settings(config: "PreTrainedConfig") -> tuple[float | None, float]:
    """What an architecture does to its logits after the head: (cap of a tanh or None, factor before it)."""
    softcap = getattr(config, "final_logit_softcapping", None)
    for name in ("logit_scale", "output_multiplier", "lm_head_multiplier"):  # Cohere, Muse Glimmer, Falcon-H1
        if (factor := getattr(config, name, None)) is not None:
            return softcap, float(factor)
    divisor = getattr(config, "logits_scaling", None)  # Granite, MiniCPM3; HyperCLOVA X multiplies by it
    if divisor is None:
        return softcap, 1.0
    return softcap, float(divisor) if config.model_type == "hyperclovax" else 1.0 / divisor
