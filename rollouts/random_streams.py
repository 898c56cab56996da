"""Random numbers that depend on what is sampled and not on what is sampled beside it.

A stream is a 64-bit number that names one place: a question of a step, a turn under it, a sample of that turn. Its
random numbers are a hash of the name and of how many were taken before (splitmix64: Steele, Lea and Flood, "Fast
splittable pseudorandom number generators", 2014). So a tree is the same tree in whatever batch, order or process it
grows, and a resumed run needs no saved state to grow it again.
"""

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

_GOLDEN = -0x61C8864680B583EB
"""2⁶⁴ / φ as a signed number: the step between the states of a stream."""
_FIRST, _SECOND = -0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15


def stream(*names: object) -> int:
    """The stream named by `names`, a signed 64-bit number. Equal names give equal streams, in every process."""
    digest = hashlib.blake2b("\x1f".join(map(str, names)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little", signed=True)


def uniforms(streams: "Tensor", slots: int, count: int) -> "Tensor":
    """The first `count` numbers of each of the `slots` streams under each of `streams` (n,), int64.

    (n · slots, count) float32 in [0, 1) with 24 random bits; those of one of `streams` lie together.
    """
    import torch

    def steps(number: int) -> "Tensor":
        return torch.arange(1, number + 1, device=streams.device) * _GOLDEN

    below = _mixed(_mixed(streams)[:, None] + steps(slots)).view(-1)
    return ((_mixed(below[:, None] + steps(count)) >> 40) & 0xFFFFFF).float() * 2.0**-24


def _mixed(state: "Tensor") -> "Tensor":
    """The finaliser of splitmix64 on signed numbers; products wrap around."""
    state = (state ^ _shifted(state, 30)) * _FIRST
    state = (state ^ _shifted(state, 27)) * _SECOND
    return state ^ _shifted(state, 31)


def _shifted(state: "Tensor", bits: int) -> "Tensor":
    """Shifted right with zeros, as if the number had no sign."""
    return (state >> bits) & ((1 << (64 - bits)) - 1)
