"""A published benchmark on its way into a BEIR folder: its questions in memory, its documents streamed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .beir import new_beir_folder, write_documents, write_meta, write_questions
from .judgements import within_corpus
from .leakage import near_leaks, near_overlap, without_leaks
from .types import Document, Split

_TREC_DL = re.compile(r"(?:beir/)?msmarco(?:/|$)", re.IGNORECASE)
"""TREC Deep Learning, passages; the test split of BEIR's MS MARCO is that of 2019."""


@dataclass(frozen=True, slots=True)
class Benchmark:
    """Questions with their judgements, and a corpus that is read on demand."""

    name: str
    documents: Callable[[], Iterable[Document]]
    """The corpus from its start, in a fixed order."""
    splits: Mapping[str, Split]
    licence: str = ""
    notes: list[str] = field(default_factory=list)
    """What was left out or joined."""
    about: Mapping[str, object] = field(default_factory=dict)
    """Further fields of meta.json."""


def relevance_level_of(name: str) -> int:
    """The least grade that binary metrics count as relevant in a benchmark of that name.

    2 for the passages of TREC Deep Learning, where grade 1 is "related" (Craswell et al. 2020), else 1.
    """
    return 2 if _TREC_DL.match(name) else 1


def write_benchmark(benchmark: Benchmark, target: Path) -> list[str]:
    """Write the new BEIR folder `target`, without training questions that a later split has; return a report.

    Raises DataError for an invalid document or question and if `target` exists, StorageError if the files cannot be
    written.
    """
    name = benchmark.name
    with new_beir_folder(target) as folder:
        documents = write_documents(folder, benchmark.documents())
        splits, dropped = within_corpus(name, benchmark.splits, documents)
        splits, leaks = without_leaks(name, splits)
        write_questions(folder, splits)
        notes = [*benchmark.notes, *dropped, *leaks, *near_overlap(name, splits, near_leaks(splits))]
        counts = {split: len(content.questions) for split, content in splits.items()}
        meta = {"name": name, "licence": benchmark.licence, **benchmark.about, "notes": notes}
        write_meta(folder, {**meta, "documents": len(documents), "questions": counts})
    listed = ", ".join(f"{count:,} {split}" for split, count in counts.items()) or "none"
    return [f"{name}: {len(documents):,} documents; questions: {listed}", f"licence: {benchmark.licence}", *notes]
