"""Rankings of an evaluated spec as TREC files."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from ..configs.evaluation import SpecConfig
from ..data.types import Qrels, Split
from ..envs.environment import RankedHit
from ..envs.trec import NOTHING, write_trec
from ..errors import DataError
from .cells import Cell
from .records import EvalRecord


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
