"""Weights of a policy as files from which vLLM reloads them."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from safetensors.torch import save_file
from torch import Tensor

SHARD_BYTES = 2**30


@contextmanager
def weights_in_files(
    weights: Iterator[tuple[str, Tensor]], within: Path, shard_bytes: int = SHARD_BYTES
) -> Iterator[Path]:
    """A new folder in `within` that has the weights as safetensors files. It is removed when the block ends.

    A file is closed when it has `shard_bytes` or more, so that only one file's weights are in memory at a time. A
    process that is killed leaves its folder.
    """
    within.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="querylect-weights-", dir=within) as path:
        _write(weights, Path(path), shard_bytes)
        yield Path(path)


def _write(weights: Iterator[tuple[str, Tensor]], folder: Path, shard_bytes: int) -> None:
    shard: dict[str, Tensor] = {}
    size = number = 0
    for name, weight in weights:
        # A copy: a weight that was gathered from several processes is whole only until the next one is asked for.
        shard[name] = weight.to("cpu", copy=True).contiguous()
        size += weight.nbytes
        if size >= shard_bytes:
            save_file(shard, folder / f"weights-{number:05}.safetensors")
            shard, size, number = {}, 0, number + 1
    if shard:
        save_file(shard, folder / f"weights-{number:05}.safetensors")
