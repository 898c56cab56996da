"""Writes a BEIR folder again without near-duplicates.

Near-duplicates are documents whose embeddings have a cosine over a threshold (Yuan et al., section 3.1: over 0.99): in
corpus order, a document is removed if an earlier remaining one is that near, which then inherits its judgements.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from ..logs import Progress
from ..storage import write_lines
from .beir import (
    beir_folder,
    documents_of,
    judging,
    load_beir,
    new_beir_folder,
    questions_of,
    write_documents,
    write_meta,
    write_questions,
)
from .judgements import moved_judgements, within_corpus
from .leakage import near_leaks, near_overlap, without_leaks
from .types import AllDocuments, Document, Split

BLOCK = 4096
"""Documents embedded and compared at once."""
DUPLICATES = "duplicates.tsv"

Stage = Callable[[str], AbstractContextManager[Progress | None]]
"""Returns the progress of a stage of that title."""
Vectors = npt.NDArray[np.float32]


class DocumentEncoder(Protocol):
    """Embeds documents, as `envs/retrievers/encoder.py` does for every dense retriever."""

    @property
    def fingerprint(self) -> str:
        """Of its weights."""

    @property
    def preset(self) -> Any:
        """Its settings: `name`, `max_length`, …"""

    def documents(self, documents: Sequence[Document]) -> Vectors:
        """Vectors of shape (documents, dimension), not normalised."""


class Duplicate(NamedTuple):
    """A document to remove; positions are indices in the corpus."""

    position: int
    kept: int
    """Position of the first remaining document that is near enough."""
    cosine: float


def prepare(
    source: Path,
    target: Path,
    encoder: Callable[[], DocumentEncoder] | None = None,
    threshold: float = 0.99,
    near: bool = False,
    stage: Stage = lambda _: nullcontext(),
) -> list[str]:
    """Write the BEIR folder `source` as the new folder `target`; return a report.

    Of documents with a cosine over `threshold` by the encoder that `encoder` opens, the first stays and inherits the
    judgements of the others, where the higher grade wins. Questions that a later split has are removed; with `near`,
    also those that nearly repeat one. Raises DataError as the reader and if the target exists.
    """
    folder = beir_folder(source)
    dataset = load_beir(folder, documents=AllDocuments())
    splits, notes = without_leaks(dataset.name, dataset.splits, near)
    removed: Mapping[str, tuple[str, float]] = {}
    details: dict[str, object] = {}
    if encoder is not None:
        opened = encoder()
        removed = _removed(folder, opened, threshold, stage)
        details = {"encoder": opened.preset.name, "model": opened.fingerprint, "cosine_over": threshold}
        details |= {"max_length": opened.preset.max_length, "removed": len(removed)}
    with new_beir_folder(target) as new:
        ids = write_documents(new, (entry for entry in documents_of(folder) if entry.id not in removed))
        moved = {
            name: Split(
                split.questions, moved_judgements(split.qrels, lambda entry: [removed.get(entry, (entry, 0))[0]])
            )
            for name, split in splits.items()
        }
        splits, dropped = within_corpus(dataset.name, moved, ids)
        fields = {question.id: record for question, record in questions_of(folder)} if splits else {}
        write_questions(new, splits, fields)
        if encoder is not None:
            rows = (f"{document}\t{survivor}\t{cosine:.6f}" for document, (survivor, cosine) in removed.items())
            write_lines(new / DUPLICATES, ["removed\tkept\tcosine", *rows])
        notes += [*dropped, *near_overlap(dataset.name, splits, near_leaks(splits))]
        meta = {"name": dataset.name, "licence": dataset.licence, **judging(dataset), "made_from": str(source)}
        write_meta(new, {**meta, "documents": len(ids), "near_duplicates": details, "notes": notes})
    questions = ", ".join(f"{len(split.questions):,} {name}" for name, split in splits.items())
    lines = [f"{dataset.name}: {len(ids):,} documents; questions: {questions or 'none'}"]
    if encoder is not None:
        lines.append(f"{len(removed):,} near-duplicates removed (cosine over {threshold}, {details['encoder']})")
    return [*lines, *notes]


def near_duplicates(blocks: Sequence[Vectors], threshold: float, progress: Progress | None = None) -> list[Duplicate]:
    """The documents to remove, in corpus order, from unit vectors. O(documents²), in single precision."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"
    duplicates: list[Duplicate] = []
    remaining: list[tuple[list[int], torch.Tensor]] = []
    """Positions and vectors of the documents that stay, by block."""
    first, total = 0, sum(map(len, blocks))
    for block in blocks:
        vectors = torch.from_numpy(block).to(device)
        removed: dict[int, Duplicate] = {}
        for positions, earlier_vectors in remaining:
            cosines = (vectors @ earlier_vectors.T).cpu().numpy()
            for row in np.flatnonzero((cosines > threshold).any(axis=1)):
                column = int((cosines[row] > threshold).argmax())
                removed.setdefault(int(row), Duplicate(first + int(row), positions[column], cosines[row, column]))
        within = np.tril((vectors @ vectors.T).cpu().numpy(), -1)
        for row in np.flatnonzero((within > threshold).any(axis=1)):
            earlier = [int(column) for column in np.flatnonzero(within[row] > threshold) if column not in removed]
            if earlier and row not in removed:
                removed[int(row)] = Duplicate(first + int(row), first + earlier[0], within[row, earlier[0]])
        duplicates += [removed[row] for row in sorted(removed)]
        stay = [row for row in range(len(block)) if row not in removed]
        remaining.append(([first + row for row in stay], vectors[stay]))
        first += len(block)
        if progress:
            progress(first, total)
    return duplicates


def _removed(folder: Path, encoder: DocumentEncoder, threshold: float, stage: Stage) -> dict[str, tuple[str, float]]:
    """Id of a removed document → (id of the remaining one, cosine)."""
    with stage("embedding") as progress:
        blocks, ids = _embedded(documents_of(folder), encoder, progress)
    with stage("comparing") as progress:
        matches = near_duplicates(blocks, threshold, progress)
    return {ids[match.position]: (ids[match.kept], float(match.cosine)) for match in matches}


def _embedded(
    documents: Iterable[Document], encoder: DocumentEncoder, progress: Progress | None
) -> tuple[list[Vectors], list[str]]:
    """Unit vectors of the documents, in blocks of BLOCK, and their ids."""
    remaining, blocks, ids = iter(documents), list[Vectors](), list[str]()
    while block := list(islice(remaining, BLOCK)):
        vectors = encoder.documents(block)
        blocks.append((vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float32))
        ids += [document.id for document in block]
        if progress:
            progress(len(ids), 0)
    return blocks, ids
