"""Random streams: even, independent, and the same whatever is sampled beside them."""

import pytest
import torch
from querylect.rollouts.engines.base import Sampling, stream, uniforms
from querylect.rollouts.engines.transformers import TransformersEngine
from scipy.stats import chisquare, kstest

from ..tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.model


def splitmix64(state, count):
    """The reference, in Python's unbounded integers."""
    numbers, mask = [], 2**64 - 1
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & mask
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    return numbers


def splitmix64_from_finaliser(name, count):
    """The streams under `name`: splitmix64 from the finaliser of its number."""
    mask, z = 2**64 - 1, name % 2**64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
    return splitmix64(z ^ (z >> 31), count)


@pytest.mark.parametrize("name", [0, 1, -1, 2**63 - 1, -(2**63), 1234567])
def test_a_stream_is_splitmix64(name):
    drawn = uniforms(torch.tensor([name]), 3, 50)
    for under, row in zip(splitmix64_from_finaliser(name, 3), drawn.tolist(), strict=True):
        assert row == [(number >> 40) / 2**24 for number in splitmix64(under, 50)]


def test_streams_are_even_and_unlike_their_neighbours():
    """Over positions, steps and similar names."""
    names = torch.tensor([stream(0, step, f"question {step}") for step in range(100)])
    table = uniforms(names, 16, 50).T
    assert table.shape == (50, 1600)
    assert len({tuple(row) for row in table.T.tolist()}) == 1600
    assert table.min() >= 0
    assert table.max() < 1
    assert kstest(table.flatten().numpy(), "uniform").pvalue > 1e-3
    pairs = (table[:, :-1] * 8).long() * 8 + (table[:, 1:] * 8).long()
    assert chisquare(torch.bincount(pairs.flatten(), minlength=64)).pvalue > 1e-3
    later = (table[:-1] * 8).long() * 8 + (table[1:] * 8).long()
    assert chisquare(torch.bincount(later.flatten(), minlength=64)).pvalue > 1e-3


def test_a_sample_does_not_depend_on_what_is_sampled_beside_it():
    engine = TransformersEngine(tiny_model(), tiny_tokenizer(), micro_batch=256)
    prompts = [[20, 21, 22], [20, 21], [40, 41, 42, 43], [20, 21, 22]]
    names = tuple(stream("here", number) for number in range(4))

    def ids(chosen, micro_batch):
        engine.micro_batch = micro_batch
        sampling = Sampling(1.0, 1.0, 8, tuple(names[i] for i in chosen))
        sampled = engine.generate([prompts[i] for i in chosen], 3, sampling)
        return {i: [sample.ids for sample in samples] for i, samples in zip(chosen, sampled, strict=True)}

    together = ids([0, 1, 2, 3], 256)
    assert together[0] != together[3], "equal prompts have streams of their own"
    assert len({tuple(sample) for sample in together[0]}) > 1
    assert ids([3, 2, 1, 0], 3) == together
    assert ids([2], 256)[2] == together[2]
    assert ids([0, 3], 6) == {0: together[0], 3: together[3]}
