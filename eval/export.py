"""Rankings as TREC files: those of an evaluated spec, and those of a run with a local environment."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..configs.evaluation import SpecConfig
from ..configs.schema import EnvironmentConfig
from ..data.sampling import in_batches
from ..data.types import Qrels, Question, Split
from ..envs.environment import Environment, RankedHit
from ..envs.plan import SearchPlan
from ..envs.schemas import MAX_K, PRIMARY_METRIC
from ..envs.trec import NOTHING, Run, write_trec
from ..errors import ConfigError, DataError
from ..logs import progress_bar
from ..rewards.metrics import measure
from .cells import Cell
from .records import RAW, EvalRecord, read_records

CHUNK = 256
"""Questions per search call and per step of the progress bar."""


def export_trec(env: EnvironmentConfig, run: Path | None, split: str, to: Path, depth: int = MAX_K) -> dict[str, float]:
    """Write topics, qrels and runs to the new folder `to`; returns nDCG@10 by run name, computed with our metrics.

    The run `raw` searches the raw questions, `depth` documents deep. With the folder of an evaluated run, each system
    and turn in eval.jsonl becomes a run SYSTEM-turnN, as deep as the evaluation searched. Unscorable questions are left
    out of these runs.

    Raises ConfigError for an unknown split, DataError where eval.jsonl has other questions, and whatever opening the
    environment and `write_trec` raise.
    """
    environment, questions = open_split(env, split)
    qrels = {question.id: environment.judgements(question.id) for question in questions}
    runs: dict[str, Run] = {RAW: raw_rankings(environment, questions, depth)}
    records = run / "eval.jsonl" if run is not None else None
    if records is not None and records.is_file():
        runs |= _evaluated_runs(read_records(records), qrels, records, split)
    judged = Split(questions, qrels)
    metric = measure(PRIMARY_METRIC, environment.gain)
    values = {
        name: sum(metric([hit.id for hit in ranking], qrels[question]) for question, ranking in rankings.items())
        / len(rankings)
        for name, rankings in runs.items()
    }
    metadata: dict[str, object] = {
        "environment": environment.name,
        "split": split,
        "questions": len(questions),
        "gain": environment.gain,
        "relevance_level": judged.relevance_level(environment.relevance_level),
        "corpus_hash": environment.corpus_hash,
        "index_hash": environment.index_hash,
        "settings_hash": environment.settings_hash,
        "licence": environment.licence,
        "nothing_found": NOTHING,
        "runs": {name: {"questions": len(runs[name]), PRIMARY_METRIC: value} for name, value in values.items()},
    }
    write_trec(to, judged, runs, metadata)
    return values


def open_split(env: EnvironmentConfig, split: str) -> tuple[Environment, list[Question]]:
    """The environment, opened in this process, and the questions of a split. Raises ConfigError for an unknown split,
    and whatever opening the environment raises."""
    environment = Environment.open(env)
    if split not in environment.splits:
        message = f"--split {split!r} is unknown; {environment.name} has {', '.join(environment.splits)}."
        raise ConfigError(message)
    return environment, environment.questions(split)


def raw_rankings(environment: Environment, questions: Sequence[Question], depth: int) -> dict[str, list[RankedHit]]:
    """The rankings of raw questions in an environment of this process, `depth` documents deep."""
    run: dict[str, list[RankedHit]] = {}
    with progress_bar("searching") as progress:
        for part in in_batches(questions, CHUNK):
            plans = [environment.plan_for(question.id, SearchPlan.of(question.text, k=depth)) for question in part]
            run |= {question.id: hits for question, hits in zip(part, environment.search(plans), strict=True)}
            progress(len(run), len(questions))
    return run


def _evaluated_runs(
    records: Sequence[EvalRecord], qrels: Mapping[str, Mapping[str, int]], path: Path, split: str
) -> dict[str, Run]:
    """The runs of all systems except raw, which is searched again and deeper."""
    runs: dict[str, dict[str, list[RankedHit]]] = defaultdict(dict)
    for record in records:
        if record.question_id not in qrels:
            raise DataError(
                f"{path} holds question {record.question_id!r}, which is not in the split {split!r}: it was written "
                "for another split or dataset. Give that one with --split, or evaluate again."
            )
        if record.system != RAW and record.metrics.get(PRIMARY_METRIC) is not None:
            run = runs[f"{record.system}-turn{record.turn}"]
            run[record.question_id] = list(map(RankedHit, record.ranking, record.scores))
    return dict(runs)


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
                    sample = f"-sample{record.sample}" if cell.system.asking.samples is not None else ""
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
            "missing": "a question without a line in a run was unscorable; it counts in no mean",
            "nothing_found": NOTHING,
            "relevance_level": of_dataset[0].environment.relevance_level,
            "licence": licences.get(dataset, ""),
        }
        try:
            write_trec(folder / dataset, Split(questions, qrels), runs, metadata)
        except DataError as error:
            notes.append(f"There are no TREC files of {dataset}: {error}")
    return notes
