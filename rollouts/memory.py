"""The C library's allocator, told to keep what it has."""

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_KEPT = 2**30


def keep_freed_memory() -> None:
    """Let glibc reuse large blocks instead of returning each to the kernel, which clears its pages anew every time.

    On a CPU the activations of a rollout or an update are such blocks, and the page faults take time from every step.
    Elsewhere than on Linux it does nothing.
    """
    if sys.platform == "linux":
        libc = ctypes.CDLL(None)
        if hasattr(libc, "mallopt"):
            libc.mallopt(_MMAP_THRESHOLD, _KEPT)
            libc.mallopt(_TRIM_THRESHOLD, _KEPT)
