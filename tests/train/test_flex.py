"""FlexAttention on packed rows: its block mask is the ancestor relation, and its values are those of the other way.

On a CPU it computes values by writing down all scores; torch refuses to differentiate them there, although the formula
that it would use is the same, so the gradient is compared with that refusal taken away.
"""

from functools import cache
from shutil import which

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.train import attention as packed_attention
from querylect.train.attention import TILE, packed_row
from querylect.train.packing import pack
from torch.nn.attention.flex_attention import create_block_mask

from ..tiny import tiny_model
from .rectangular import packed_logps
from .test_packing import batch, gradient, relative, tree_rows

pytestmark = [
    pytest.mark.model,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile"),
]


def long_rows(seed=0):
    """Two trees that fill five tiles and a part of the sixth."""
    return batch(*tree_rows(seed, prompts=(150, 40), branching=(2, 2), lengths=(30, 20), observation=60))


def ends_of(sequences):
    return torch.from_numpy(pack([np.array(sequence) for sequence in sequences]).ends)


def dense(ends):
    at = torch.arange(len(ends))
    return (at[None, :] <= at[:, None]) & (at[:, None] < ends[None, :])


def tiles_of(mask):
    """(tiles that hold something, tiles that are whole) of a BlockMask, as two sets of (query tile, key tile)."""

    def listed(counts, indices):
        pairs = enumerate(zip(counts[0, 0].tolist(), indices[0, 0].tolist(), strict=True))
        return {(query, key) for query, (count, keys) in pairs for key in keys[:count]}

    return listed(mask.kv_num_blocks, mask.kv_indices), listed(mask.full_kv_num_blocks, mask.full_kv_indices)


lengths = st.integers(1, 200)
trees = st.recursive(lengths.map(lambda n: (n, [])), lambda below: st.tuples(lengths, st.lists(below, max_size=3)))


def sequences_of(tree, ids, path=()):
    length, children = tree
    path = (*path, *(next(ids) for _ in range(length)))
    return [row for child in children for row in sequences_of(child, ids, path)] or [path]


@settings(max_examples=15, deadline=None)
@given(st.lists(trees, min_size=1, max_size=3))
def test_the_mask_is_the_one_that_torch_builds_from_all_pairs(forest):
    from itertools import count

    ids = count()
    ends = ends_of([row for tree in forest for row in sequences_of(tree, ids)])
    mask = packed_row(ends, "flex")
    assert mask.shape[-1] % TILE == 0
    padding = torch.arange(len(ends), mask.shape[-1])
    visible = dense(torch.cat([ends, padding + 1]))
    assert visible.any(1).all(), "a token that sees nothing would be not a number"
    size = len(visible)
    reference = create_block_mask(lambda b, h, q, k: visible[q, k], None, None, size, size, device="cpu")
    assert tiles_of(mask) == tiles_of(reference)
    assert (mask.q_num_blocks == reference.q_num_blocks).all()
    assert (mask.full_q_num_blocks == reference.full_q_num_blocks).all()
    assert torch.equal(mask.to_dense(), reference.to_dense())
    at = torch.arange(len(visible))
    assert torch.equal(mask.mask_mod(0, 0, at[:, None], at[None, :]), visible)


@pytest.mark.parametrize(("kind", "heads"), [("qwen3", (4, 2)), ("llama", (6, 2)), ("llama", (4, 4))])
def test_its_values_are_those_of_blocks(kind, heads):
    model = tiny_model(kind, hidden_size=96, num_attention_heads=heads[0], num_key_value_heads=heads[1])
    rows = long_rows()
    with torch.no_grad():
        expected, entropies, tokens = packed_logps(model, *rows, 0.7, entropies=True)
        logps, flex_entropies, counted = packed_logps(model, *rows, 0.7, entropies=True, attention="flex")
    assert relative(logps, expected) < 1e-5
    assert relative(flex_entropies, entropies) < 1e-5
    assert counted == tokens, "the tokens that fill the last tile are not counted"


def test_its_gradient_is_that_of_blocks(monkeypatch):
    from torch.nn.attention import flex_attention as module

    monkeypatch.setattr(module, "_validate_device", lambda *_: None)
    model, rows = tiny_model(), long_rows()
    parameters = dict(model.named_parameters())
    blocks = gradient(parameters, packed_logps(model, *rows, 0.7)[0].sum())
    flex = gradient(parameters, packed_logps(model, *rows, 0.7, attention="flex")[0].sum())
    assert relative(flex, blocks) < 1e-5


def branches(tokens):
    """The layout of a tree of `tokens` tokens with two branches, for FlexAttention."""
    prompt, first = tokens // 4, tokens // 2
    stem = [*range(prompt)]
    return ends_of([[*stem, *range(1000, 1000 + first - prompt)], [*stem, *range(5000, 5000 + tokens - first)]])


def attend(ends, seed=0):
    """FlexAttention of random states of a layer with 4 query and 2 key heads, and the same by a mask of all pairs."""
    random = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(1, len(ends), heads, 16, generator=random).transpose(1, 2) for heads in (4, 2, 2))
    mask = packed_row(ends, "flex")
    with torch.no_grad():
        out = packed_attention._flex(query, key, value, mask, None)
    reference = torch.nn.functional.scaled_dot_product_attention(
        query, key, value, attn_mask=dense(ends), enable_gqa=True
    )
    return out, reference


@pytest.fixture
def on_gpu(monkeypatch):
    """Sets up the kernel of a GPU on this processor, with a backend in the place of Inductor if one is given."""
    real, kernel = torch.compile, packed_attention._flex_kernel.__wrapped__

    def set_up(**backend):
        monkeypatch.setattr(torch, "compile", lambda function, **options: real(function, **options, **backend))
        monkeypatch.setattr(packed_attention, "_flex_kernel", cache(lambda _device: kernel("cuda")))

    torch._dynamo.reset()
    yield set_up
    torch._dynamo.reset()


@pytest.mark.skipif(which("g++") is None and which("clang++") is None, reason="there is no C++ compiler for Inductor")
def test_the_compiled_kernel_has_the_values_of_all_pairs(on_gpu):
    on_gpu()
    out, reference = attend(branches(200))
    assert relative(out, reference) < 1e-5
