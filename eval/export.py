"""Rankings of an evaluated spec in the files that trec_eval, pytrec_eval and ranx read: topics, qrels and runs.

Judgements are read from the dataset's folder, never over HTTP: a service exposes no qrels. Scores of a run are made
strictly decreasing in single precision, because trec_eval reads float32 and orders equal scores by document id instead
of rank. A question with an empty ranking gets a line with a document that no corpus has, because tools average over the
questions of a run.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from ..configs.evaluation import SpecConfig
from ..data.types import Qrels, Split
from ..envs.environment import RankedHit
from ..errors import DataError
from ..storage import atomic_folder, write_lines
from .cells import Cell
from .records import EvalRecord

Run = Mapping[str, Sequence[RankedHit]]
"""Ranking by question id."""

NOTHING = "NOTHING-FOUND"
"""The document in the line of a question that found nothing."""


def write_trec_files(
    folder: Path,
    spec: SpecConfig,
    cells: Sequence[Cell],
    records: Mapping[Cell, Sequence[EvalRecord]],
    licences: Mapping[str, str],
) -> list[str]:
    """Write the TREC files of a spec by dataset; returns notes on datasets that the format cannot represent."""
    notes = []
    for dataset in spec.datasets:
        of_dataset = [cell for cell in cells if cell.environment.dataset == dataset]
        runs: dict[str, dict[str, list[RankedHit]]] = {}
        for cell in of_dataset:
            for record in records[cell]:
                if None not in record.metrics.values():
                    sample = f"-sample{record.sample}" if cell.system.options.samples is not None else ""
                    turn = f"-turn{record.turn}" if record.turn else ""
                    run = runs.setdefault(f"{cell.environment.name}.{cell.system.name}{turn}{sample}", {})
                    run[record.question_id] = list(map(RankedHit, record.ranking, record.scores))
        if not runs:
            continue
        split = next((cell.environment.split for cell in of_dataset if cell.environment.split is not None), None)
        questions = of_dataset[0].environment.questions
        qrels: Qrels = {question.id: split.qrels.get(question.id, {}) if split else {} for question in questions}
        metadata = {
            "dataset": dataset,
            "split": spec.split,
            "questions": len(questions),
            "judgements": "qrels.txt" if split else "not on this machine: qrels.txt is empty",
            "missing": "the search of a question without a line in a run failed; it counts in no mean",
            "nothing_found": NOTHING,
            "relevance_level": of_dataset[0].environment.relevance_level,
            "licence": licences.get(dataset, ""),
        }
        try:
            write_trec(folder / dataset, Split(questions, qrels), runs, metadata)
        except DataError as error:
            notes.append(f"There are no TREC files of {dataset}: {error}")
    return notes


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
