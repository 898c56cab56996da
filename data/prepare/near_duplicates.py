"""Near-duplicate documents by the cosine of their embeddings.

In corpus order, a document is removed if its cosine with an earlier remaining document exceeds the threshold (Yuan et
al., section 3.1: over 0.99). Embeddings are computed and saved in blocks, so that a killed run can continue, and are
compared block by block, so that memory does not grow with the corpus.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ...logs import Progress
from ..types import Document

BLOCK = 4096
"""Documents embedded, saved and compared at once."""

Vectors = npt.NDArray[np.float32]


class DocumentEncoder(Protocol):
    """Embeds documents; `envs/retrievers/encoder.py` has one for every dense retriever."""

    @property
    def identity(self) -> dict[str, Any]:
        """`encoder` (its weights) and `recipe` (`name`, `max_length`, …); equal identities give equal vectors."""

    def embed(self, documents: Sequence[Document]) -> Vectors:
        """Vectors of shape (documents, dimension), not normalised."""


class Duplicate(NamedTuple):
    """A document to remove; positions are indices in the corpus."""

    position: int
    kept: int
    """Position of the first remaining document that is near enough."""
    cosine: float


def embed(
    documents: Iterable[Document], encoder: DocumentEncoder, folder: Path, progress: Progress | None = None
) -> int:
    """Embed documents into files of BLOCK unit vectors in `folder`; return the number of documents.

    Existing files are reused: the caller ensures that they belong to the same documents and encoder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    total = 0
    remaining = iter(documents)
    while block := list(islice(remaining, BLOCK)):
        path = _file(folder, total // BLOCK)
        if not path.is_file():
            vectors = encoder.embed(block)
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
            _save(path, vectors.astype(np.float32))
        total += len(block)
        if progress:
            progress(total, 0)
    return total


def near_duplicates(
    folder: Path, documents: int, threshold: float, progress: Progress | None = None
) -> list[Duplicate]:
    """The documents to remove, in corpus order, from the files of `embed`. O(documents²), in single precision."""
    duplicates: list[Duplicate] = []
    survivors: list[npt.NDArray[np.int64]] = []
    multiply = _product()
    for number in range(-(-documents // BLOCK)):
        block = np.load(_file(folder, number), allow_pickle=False)
        first = number * BLOCK
        best = np.full(len(block), -1, dtype=np.int64)
        cosines = np.zeros(len(block), dtype=np.float32)
        for earlier, positions in enumerate(survivors):
            if not len(positions):
                continue
            vectors = np.load(_file(folder, earlier), mmap_mode="r", allow_pickle=False)[positions - earlier * BLOCK]
            similar = multiply(block, vectors)
            near = similar > threshold
            hit = np.flatnonzero(near.any(axis=1) & (best < 0))
            chosen = near[hit].argmax(axis=1)
            best[hit], cosines[hit] = positions[chosen], similar[hit, chosen]
        within = multiply(block, block)
        survives = np.ones(len(block), dtype=bool)
        survives[best >= 0] = False
        for row in np.flatnonzero((np.tril(within, -1) > threshold).any(axis=1) & survives):
            matches = np.flatnonzero((within[row, :row] > threshold) & survives[:row])
            if len(matches):
                survives[row] = False
                best[row], cosines[row] = first + matches[0], within[row, matches[0]]
        duplicates += [Duplicate(first + int(i), int(best[i]), float(cosines[i])) for i in np.flatnonzero(~survives)]
        survivors.append(first + np.flatnonzero(survives))
        if progress:
            progress(first + len(block), documents)
    return duplicates


def _save(path: Path, vectors: Vectors) -> None:
    temporary = path.with_name(f".{path.name}.tmp")
    with temporary.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    temporary.replace(path)


def _file(folder: Path, number: int) -> Path:
    return folder / f"vectors-{number:05d}.npy"


def _product() -> Callable[[Vectors, Vectors], Vectors]:
    """A function for a·bᵀ in single precision, on a GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def product(a: Vectors, b: Vectors) -> Vectors:
        left, right = torch.from_numpy(np.ascontiguousarray(a)), torch.from_numpy(np.ascontiguousarray(b))
        return (left.to(device) @ right.to(device).T).cpu().numpy()

    return product
