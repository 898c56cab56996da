"""Documents that say nearly the same, by the cosine of their embeddings. It stands above `data/` because it embeds.

Of documents in corpus order, the first of a group stays: one goes where it is nearer than the threshold to one that
stays before it (seed 003, section 3.1: similarity over 0.99). Embeddings are computed and kept in blocks, so that a
killed run goes on, and compared block against block, so that memory does not grow with the corpus.
"""

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..data.types import Document
from .encoder import Encoder, Vectors

BLOCK = 4096
"""Documents embedded, kept and compared at once."""

Progress = Callable[[int, int], None]


class Duplicate(NamedTuple):
    """A document that goes, by place in the corpus."""

    place: int
    kept: int
    """The first document that stays and is near enough."""
    cosine: float


def embed(documents: Iterable[Document], encoder: Encoder, folder: Path, progress: Progress | None = None) -> int:
    """Embed documents into files of BLOCK vectors of length 1 in `folder`; returns how many documents there are.

    Files that are there already are kept: the caller sees to it that they are of the same documents and encoder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    for number, block in enumerate(_blocks(documents)):
        path = _file(folder, number)
        if not path.is_file():
            _save(path, _normalised(encoder.documents([encoder.recipe.content_of(each) for each in block])))
        total += len(block)
        if progress:
            progress(total, 0)
    return total


def near_duplicates(
    folder: Path, documents: int, threshold: float, progress: Progress | None = None
) -> list[Duplicate]:
    """The documents that go, in corpus order. Reads what `embed` wrote; O(documents²) products in single precision."""
    gone: list[Duplicate] = []
    kept_places: list[npt.NDArray[np.int64]] = []
    multiply = _product()
    for number in range(-(-documents // BLOCK)):
        block = np.load(_file(folder, number), allow_pickle=False)
        first = number * BLOCK
        best = np.full(len(block), -1, dtype=np.int64)
        cosines = np.zeros(len(block), dtype=np.float32)
        for earlier, places in enumerate(kept_places):
            if not len(places):
                continue
            vectors = np.load(_file(folder, earlier), mmap_mode="r", allow_pickle=False)[places - earlier * BLOCK]
            similar = multiply(block, vectors)
            near = similar > threshold
            hit = np.flatnonzero(near.any(axis=1) & (best < 0))
            chosen = near[hit].argmax(axis=1)
            best[hit], cosines[hit] = places[chosen], similar[hit, chosen]
        inside = multiply(block, block)
        stays = np.ones(len(block), dtype=bool)
        stays[best >= 0] = False
        for place in np.flatnonzero((np.tril(inside, -1) > threshold).any(axis=1) & stays):
            before = np.flatnonzero((inside[place, :place] > threshold) & stays[:place])
            if len(before):
                stays[place] = False
                best[place], cosines[place] = first + before[0], inside[place, before[0]]
        gone += [Duplicate(first + int(i), int(best[i]), float(cosines[i])) for i in np.flatnonzero(~stays)]
        kept_places.append(first + np.flatnonzero(stays))
        if progress:
            progress(first + len(block), documents)
    return gone


def _blocks(documents: Iterable[Document]) -> Iterator[list[Document]]:
    block: list[Document] = []
    for document in documents:
        block.append(document)
        if len(block) == BLOCK:
            yield block
            block = []
    if block:
        yield block


def _normalised(vectors: Vectors) -> Vectors:
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    return np.asarray(vectors / lengths, dtype=np.float32)


def _save(path: Path, vectors: Vectors) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    temporary.replace(path)


def _file(folder: Path, number: int) -> Path:
    return folder / f"vectors-{number:05d}.npy"


def _product() -> Callable[[Vectors, Vectors], Any]:
    """a·bᵀ in single precision, on a GPU where there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def product(one: Vectors, other: Vectors) -> Any:
        left, right = torch.from_numpy(np.ascontiguousarray(one)), torch.from_numpy(np.ascontiguousarray(other))
        return (left.to(device) @ right.to(device).T).cpu().numpy()

    return product
