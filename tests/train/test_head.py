"""The output head, computed in tiles of logits: the values and gradients of the plain head, in bounded memory."""

from contextlib import nullcontext

import pytest
import torch
from querylect.train import head as packed_head
from querylect.train.head import ForwardPass, score

from ..tiny import tiny_model
from .rectangular import packed_logps
from .test_packing import TEMPERATURE, batch, gradient, relative, tree_rows

pytestmark = pytest.mark.model


def plain(model, ids, temperature):
    """By the book: all logits of the model at once. Of all rows of `ids`."""
    logits = model(input_ids=ids).logits[:, :-1] / temperature
    distribution = torch.log_softmax(logits, -1)
    return (
        distribution.gather(-1, ids[:, 1:, None])[..., 0].flatten(),
        -(distribution.exp() * distribution).sum(-1).flatten(),
    )


KINDS = {
    "llama": {},
    "granite": {"logits_scaling": 4.0},
    "cohere": {"logit_scale": 0.25},
    "gemma2": {"final_logit_softcapping": 5.0, "attn_logit_softcapping": None},
    "gpt2": {"n_embd": 64, "n_layer": 2, "n_head": 4},
}


@pytest.mark.parametrize(("kind", "tile"), [*((kind, 7 * 320) for kind in KINDS), ("llama", 1 << 24)])
def test_values_and_gradients_are_those_of_the_plain_head(kind, tile, monkeypatch):
    """Also of architectures that scale or cap their logits."""
    monkeypatch.setattr(packed_head, "HEAD_CHUNK", tile)
    monkeypatch.setattr(packed_head, "HEAD_TOKENS", 70)
    model = tiny_model(kind, **KINDS[kind])
    ids = torch.randint(3, 300, (4, 30), generator=torch.Generator().manual_seed(0))
    predictors = torch.arange(120).view(4, 30)[:, :-1].flatten()
    parameters = dict(model.named_parameters())
    piece = ForwardPass({"input_ids": ids}, predictors, ids[:, 1:].flatten())
    values, entropies = score(model, [piece], 0.7, entropies=True, entropy_gradient=True)
    weights = torch.randn(116, generator=torch.Generator().manual_seed(1))
    actual_gradient = gradient(parameters, (weights * (values - 0.3 * entropies)).sum())
    expected, expected_entropies = plain(model, ids, 0.7)
    plain_gradient = gradient(parameters, (weights * (expected - 0.3 * expected_entropies)).sum())
    assert relative(values, expected) < 1e-6
    assert relative(entropies, expected_entropies) < 1e-6
    assert relative(actual_gradient, plain_gradient) < 2e-6, "of which half is the rounding of the layers below"


def test_the_backward_pass_of_a_split_tree_reads_the_parameters_of_the_head(monkeypatch):
    """Not what a checkpoint keeps of them: ZeRO-3 gathers a parameter only if it is given that."""
    gathered = []
    name = "trl.trainer.utils.maybe_gather_lm_head_ctx"
    monkeypatch.setattr(name, lambda *weights: gathered.append(weights[0]) or nullcontext())
    model = tiny_model()
    packed_logps(model, *batch(*tree_rows()), TEMPERATURE, budget=40)[0].sum().backward()
    assert len(gathered) >= 4
    assert all(weight is model.lm_head.weight for weight in gathered)
