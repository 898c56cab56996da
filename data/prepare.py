"""Converts a published benchmark into a BEIR folder without near-duplicates.

Near-duplicates are documents whose embeddings have a cosine over a threshold (Yuan et al., section 3.1: over 0.99): in
corpus order, a document is removed if an earlier remaining one is that near, which then inherits its judgements.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypedDict

import numpy as np
import numpy.typing as npt

from ..configs.schema import DatasetConfig
from ..logs import Progress
from ..storage import file_sha256, write_lines
from .beir import document_line, new_beir_folder, question_line, write_meta, write_qrels
from .benchmark import Benchmark, moved_judgements, relevance_level_of, unique, within_corpus
from .known import known
from .leakage import near_overlap, without_leaks
from .load import open_benchmark
from .types import Dataset, Document, Split

BLOCK = 4096
"""Documents embedded and compared at once."""
DUPLICATES = "duplicates.tsv"

Stage = Callable[[str], AbstractContextManager[Progress | None]]
"""Returns the progress of a stage of that title."""
Vectors = npt.NDArray[np.float32]


class DocumentEncoder(Protocol):
    """Embeds documents; `envs/retrievers/encoder.py` has one for every dense retriever."""

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


class NearDuplicates(TypedDict):
    """How near-duplicates were found, and how many documents were removed."""

    encoder: str
    model: str
    max_length: int
    cosine_over: float
    removed: int


class PreparedMeta(TypedDict):
    """meta.json of a prepared folder; counts are by split, `judgements` also those of grade 0."""

    name: str
    licence: str
    ignore_identical_ids: bool
    relevance_level: int
    made_from: dict[str, object]
    documents: int
    questions: dict[str, int]
    judgements: dict[str, int]
    near_duplicates: NearDuplicates | None
    notes: list[str]
    sha256: dict[str, str]


def prepare(
    config: DatasetConfig,
    target: Path,
    encoder: Callable[[], DocumentEncoder] | None = None,
    duplicates: float = 0.99,
    near_leaks: bool = False,
    published_as: str = "",
    stage: Stage = lambda _: nullcontext(),
) -> PreparedMeta:
    """Write a published benchmark as the new BEIR folder `target`; return its meta.json.

    `encoder` opens the encoder of the documents. Of documents with a cosine over `duplicates` the first stays and
    inherits the judgements of the others; the higher grade wins. Without an encoder no document is removed.
    `near_leaks` also removes questions that nearly repeat one of a later split. `published_as` is its name in the
    catalogue, which says what the files of a copy do not.

    Raises DataError as the reader does and if the target exists; StorageError if the files cannot be written.
    """
    with new_beir_folder(target) as folder:
        benchmark, entry = open_benchmark(config), known().get(published_as)
        benchmark = replace(
            benchmark,
            ignore_identical_ids=benchmark.ignore_identical_ids or (entry is not None and entry.ignore_identical_ids),
            relevance_level=max(benchmark.relevance_level, relevance_level_of(published_as)),
        )
        if near_leaks:
            splits, notes = without_leaks(benchmark.name, benchmark.splits, near=True)
            benchmark = replace(benchmark, splits=splits, notes=(*benchmark.notes, *notes))
        removed, details = ({}, None) if encoder is None else _duplicates(benchmark, encoder(), duplicates, stage)
        return _write(benchmark, config, removed, details, folder)


def embedded(
    documents: Iterable[Document], encoder: DocumentEncoder, progress: Progress | None = None
) -> list[Vectors]:
    """Unit vectors of the documents, in blocks of BLOCK."""
    remaining, blocks, total = iter(documents), list[Vectors](), 0
    while block := list(islice(remaining, BLOCK)):
        vectors = encoder.documents(block)
        blocks.append((vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)).astype(np.float32))
        total += len(block)
        if progress:
            progress(total, 0)
    return blocks


def near_duplicates(blocks: Sequence[Vectors], threshold: float, progress: Progress | None = None) -> list[Duplicate]:
    """The documents to remove, in corpus order, from unit vectors. O(documents²), in single precision."""
    multiply, total = _product(), sum(map(len, blocks))
    duplicates: list[Duplicate] = []
    remaining: list[tuple[npt.NDArray[np.int64], Vectors]] = []
    """Positions and vectors of the documents that stay, by block."""
    first = 0
    for block in blocks:
        removed: dict[int, Duplicate] = {}
        for positions, vectors in remaining:
            cosines = multiply(block, vectors)
            for row in np.flatnonzero((cosines > threshold).any(axis=1)):
                column = int((cosines[row] > threshold).argmax())
                removed.setdefault(int(row), Duplicate(first + int(row), int(positions[column]), cosines[row, column]))
        within = multiply(block, block)
        for row in np.flatnonzero((np.tril(within, -1) > threshold).any(axis=1)):
            earlier = [int(column) for column in np.flatnonzero(within[row, :row] > threshold) if column not in removed]
            if earlier and row not in removed:
                removed[int(row)] = Duplicate(first + int(row), first + earlier[0], within[row, earlier[0]])
        duplicates += [removed[row] for row in sorted(removed)]
        stay = np.array([row for row in range(len(block)) if row not in removed], dtype=np.int64)
        remaining.append((first + stay, block[stay]))
        first += len(block)
        if progress:
            progress(first, total)
    return duplicates


def summary(meta: PreparedMeta) -> Sequence[str]:
    """A summary of meta.json as lines of text."""
    questions = ", ".join(f"{count:,} {name}" for name, count in meta["questions"].items())
    lines = [f"{meta['name']}: {meta['documents']:,} documents; questions: {questions}"]
    if meta["near_duplicates"]:
        details = meta["near_duplicates"]
        lines.append(
            f"{details['removed']:,} near-duplicates removed "
            f"(cosine over {details['cosine_over']}, {details['encoder']})"
        )
    return [*lines, *meta["notes"]]


def _duplicates(
    benchmark: Benchmark, encoder: DocumentEncoder, threshold: float, stage: Stage
) -> tuple[dict[str, tuple[str, float]], NearDuplicates]:
    """Id of a removed document → (id of the remaining one, cosine), and the entry for meta.json."""
    with stage("embedding") as progress:
        blocks = embedded(unique(benchmark), encoder, progress)
    with stage("comparing") as progress:
        matches = near_duplicates(blocks, threshold, progress)
    ids = [document.id for document in benchmark.documents()]
    details: NearDuplicates = {
        "encoder": encoder.preset.name,
        "model": encoder.fingerprint,
        "max_length": encoder.preset.max_length,
        "cosine_over": threshold,
        "removed": len(matches),
    }
    return {ids[match.position]: (ids[match.kept], float(match.cosine)) for match in matches}, details


def _write(
    benchmark: Benchmark,
    config: DatasetConfig,
    removed: Mapping[str, tuple[str, float]],
    details: NearDuplicates | None,
    folder: Path,
) -> PreparedMeta:
    ids = {document.id for document in unique(benchmark)} - removed.keys()
    write_lines(
        folder / "corpus.jsonl", (document_line(entry) for entry in benchmark.documents() if entry.id not in removed)
    )
    splits, notes = within_corpus(benchmark.name, benchmark.splits, ids | removed.keys())
    inherited = {
        name: Split(split.questions, moved_judgements(split.qrels, lambda entry: [removed.get(entry, (entry, 0))[0]]))
        for name, split in splits.items()
    }
    questions = {question.id: question for split in inherited.values() for question in split.questions}
    write_lines(folder / "queries.jsonl", map(question_line, questions.values()))
    write_qrels(folder, inherited)
    if details is not None:
        lines = (f"{document}\t{survivor}\t{cosine:.6f}" for document, (survivor, cosine) in removed.items())
        write_lines(folder / DUPLICATES, ["removed\tkept\tcosine", *lines])
    near = near_overlap(Dataset(benchmark.name, (), inherited))
    meta: PreparedMeta = {
        "name": benchmark.name,
        "licence": benchmark.licence,
        "ignore_identical_ids": benchmark.ignore_identical_ids,
        "relevance_level": benchmark.relevance_level,
        "made_from": {**benchmark.about, "path": config.path},
        "documents": len(ids),
        "questions": {name: len(split.questions) for name, split in inherited.items()},
        "judgements": {name: split.relevant for name, split in inherited.items()},
        "near_duplicates": details,
        "notes": [*benchmark.notes, *notes, *near],
        "sha256": {
            str(path.relative_to(folder)): file_sha256(path) for path in sorted(folder.rglob("*")) if path.is_file()
        },
    }
    write_meta(folder, meta)
    return meta


def _product() -> Callable[[Vectors, Vectors], Vectors]:
    """A function for a·bᵀ in single precision, on a GPU if there is one."""
    import torch

    device = "cuda" if torch.cuda.is_available() else "cpu"

    def product(a: Vectors, b: Vectors) -> Vectors:
        left, right = torch.from_numpy(a), torch.from_numpy(b)
        return (left.to(device) @ right.to(device).T).cpu().numpy()

    return product
