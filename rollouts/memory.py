"""Settings of glibc's allocator: keep freed memory, or return it to the kernel."""

import ctypes
import os
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_THRESHOLD = 2**30
_PRIMITIVES = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"
"""Read by PyTorch's library for matrix products when it is first used."""


def keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of returning each to the kernel, which clears its pages anew every time.

    On a CPU the activations of a rollout or an update are such blocks, and the page faults take time from every step.
    Elsewhere than on Linux it does nothing.
    """
    os.environ.setdefault(_PRIMITIVES, "32")  # each new shape of a matrix product keeps a megabyte of compiled code
    libc = _libc()
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, _THRESHOLD)
        libc.mallopt(_TRIM_THRESHOLD, _THRESHOLD)


def give_back_freed_memory() -> None:
    """Return to the kernel what is free now: blocks of ever new sizes leave gaps, and the heap grows by them.

    Call it where a second's page faults are little against what was done since the last call.
    """
    libc = _libc()
    if libc is not None and hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)


def peak_memory_gib() -> float:
    """Peak memory: of the GPU since the last call, or without a GPU of this process since its start."""
    import resource

    import torch

    if torch.cuda.is_available():
        peak = torch.cuda.max_memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        return peak / 2**30
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 2**30


def _libc() -> ctypes.CDLL | None:
    return ctypes.CDLL(None) if sys.platform == "linux" else None
