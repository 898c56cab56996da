"""The random streams that sampling and shuffling draw from, as one value."""

import random
from typing import Any

import numpy
import torch


def random_streams() -> tuple[Any, ...]:
    """The state of Python's, NumPy's, the CPU's and every GPU's stream."""
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return random.getstate(), numpy.random.get_state(), torch.get_rng_state(), cuda


def set_random_streams(streams: tuple[Any, ...]) -> None:
    """Put the streams where `random_streams` found them."""
    random.setstate(streams[0])
    numpy.random.set_state(streams[1])
    torch.set_rng_state(streams[2])
    torch.cuda.set_rng_state_all(streams[3])
