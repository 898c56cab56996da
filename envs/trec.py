"""A split in the files that trec_eval, pytrec_eval and ranx read: topics, qrels and runs.

Written from the dataset's folder, never over HTTP: a service exposes no qrels. Scores of a run are made strictly
decreasing in single precision, because trec_eval reads float32 and orders equal scores by document id instead of rank.
A question with an empty ranking gets a line with a document that no corpus has, because tools average over the
questions of a run.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..data.types import Split
from ..errors import DataError
from ..storage import atomic_folder, write_lines
from .environment import RankedHit

Run = Mapping[str, Sequence[RankedHit]]
"""Ranking by question id."""

NOTHING = "NOTHING-FOUND"
"""The document in the line of a question that found nothing."""


def write_trec(folder: Path, split: Split, runs: Mapping[str, Run], metadata: Mapping[str, object]) -> None:
    """Write topics.tsv, qrels.txt, one NAME.run for each run, and export.json (`metadata`) into a new folder.

    The folder appears complete or not at all. Raises DataError where it exists already or an id holds white space,
    which the format cannot carry; StorageError where the disk does not take the files.
    """
    folder = folder.expanduser()
    if folder.exists():
        raise DataError(f"{folder} exists already; an export is written to a new folder. Remove it or name another.")
    files: dict[str, Iterable[str]] = {
        "topics.tsv": [f"{_id(question.id)}\t{' '.join(question.text.split())}" for question in split.questions],
        "qrels.txt": [
            f"{question.id} 0 {_id(document)} {grade}"
            for question in split.questions
            for document, grade in split.qrels[question.id].items()
        ],
        **{f"{name}.run": _run_lines(_id(name), run) for name, run in runs.items()},
        "export.json": [json.dumps(metadata, ensure_ascii=False, indent=2)],
    }
    with atomic_folder(folder) as temporary:
        for name, lines in files.items():
            write_lines(temporary / name, lines)


def falling(scores: Sequence[float]) -> list[float]:
    """The scores as float32, each lowered just below its predecessor where it is not lower already."""
    values: list[np.float32] = []
    for value in np.asarray(scores, dtype=np.float32):
        values.append(value if not values or value < values[-1] else np.nextafter(values[-1], np.float32("-inf")))
    return [float(value) for value in values]


def _run_lines(name: str, run: Run) -> Iterator[str]:
    for question, hits in run.items():
        ranking = hits or [RankedHit(NOTHING, 0.0)]
        scores = falling([hit.score for hit in ranking])
        for rank, (hit, score) in enumerate(zip(ranking, scores, strict=True), start=1):
            yield f"{question} Q0 {_id(hit.id)} {rank} {score!r} {name}"


def _id(identifier: str) -> str:
    if identifier.split() != [identifier]:
        raise DataError(
            f"the id {identifier!r} is empty or holds white space, which separates the columns of TREC files."
        )
    return identifier
