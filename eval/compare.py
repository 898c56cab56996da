"""Compare the raw question, the untrained and the trained policy on questions that were not trained on."""

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..configs.mix import environments
from ..configs.run_settings import load_run_config
from ..configs.schema import RunConfig
from ..data.references import Verdict
from ..data.sampling import draw, sampled
from ..data.types import Dataset, Question
from ..envs.connect import open_environment
from ..envs.plan import SearchPlan
from ..errors import ConfigError, DataError, EnvironmentUnavailableError
from ..rollouts.checkpoints import find_checkpoint, find_warm_start
from ..rollouts.turns import used_turn
from .baselines import compare_with_published
from .pages.figures import draw_training, read_metrics
from .placement import Placement, answer_settings, evaluation_identity
from .provenance import Provenance, provenance
from .records import (
    METRICS,
    EvalRecord,
    raw_record,
    records_of_trees,
    refuse_unwritable,
    write_records,
    write_text,
)
from .report.examples import choose_examples, gold_titles
from .report.run_report import render
from .systems import PolicySystem, System, policy_systems
from .table import Results, explanation, headline, tabulate
from .training_free import TUNING_FILE, Tuning, answer, tune

log = logging.getLogger(__name__)


def evaluate(
    config: RunConfig,
    run: Path | None,
    output: Path | None,
    checkpoint_name: str | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Evaluate a run, or the untrained policy alone where `run` is None, and return the path of report.html.

    `checkpoint_name` takes that checkpoint of the run instead of the one that `find_checkpoint` prefers. Where `check`
    is given, raw questions are compared with published figures before a model is loaded, and it is told the outcome.

    Writes eval.jsonl, results.json and report.html into `output`; by default the run folder, or OUTPUT/NAME-untrained
    where `run` is None, so that a trained run's report is never replaced by one without it. Another evaluation there is
    never replaced unless `overwrite` says so (eval/placement.py). Raises ConfigError for the training split, DataError
    where test questions were trained on, CheckpointError where the run has no policy, EnvironmentUnavailableError where
    the environment answers no question, BaselineError where `check` finds it wrong.
    """
    refuse_training_split(config)
    checkpoint = find_checkpoint(run, checkpoint_name) if run is not None else None
    placement = place_results(config, run, output, checkpoint, overwrite)
    with open_environment(config) as client:
        baselines = compare_with_published(client, config, check) if check is not None else ()
        systems = policy_systems(config, client, checkpoint, find_warm_start(run) if run is not None else None)
        return evaluate_systems(config, client, systems, placement, run=run, checkpoint=checkpoint, baselines=baselines)


def place_results(
    config: RunConfig, run: Path | None, output: Path | None, checkpoint: Path | None, overwrite: bool
) -> Placement:
    """Where the results of a run, or of an untrained policy (None), belong. Raises StorageError where not writable."""
    folder = output or run or Path(config.output) / f"{config.name}-untrained"
    refuse_unwritable(folder)
    own = True
    if run is not None and (run / "config.yaml").is_file():
        same = _measured(load_run_config(run)) == _measured(config)
        own = same and checkpoint == find_checkpoint(run)
    return Placement(folder, own, aside=output is None, overwrite=overwrite)


def _measured(config: RunConfig) -> list[Any]:
    """What is asked of which questions, by the settings alone."""
    asked = (config.eval.split, config.eval.limit, config.eval.sample_seed)
    return [asked, {name: answer_settings(one) for name, one in environments(config).items()}]


def evaluate_systems(
    config: RunConfig,
    client: Any,
    systems: Mapping[str, System],
    place: Path | Placement,
    *,
    run: Path | None = None,
    checkpoint: Path | None = None,
    baselines: Sequence[Verdict] = (),
) -> Path:
    """`evaluate` with the environment client and the systems given; `run` only adds training curves to the report.

    `baselines`: how raw questions compare with published figures, for results.json. Raises ConfigError where `place` is
    a folder that holds another evaluation.
    """
    refuse_training_split(config)
    info = _plain(client.environment())
    questions = held_out_questions(client, info, config)
    dataset = _local_dataset(config)
    metrics = run / "metrics.jsonl" if run is not None else None
    drawings = draw_training(read_metrics(metrics)) if metrics is not None and metrics.is_file() else []
    said = provenance(config, info, checkpoint, licence=dataset.licence if dataset else "")
    placement = place if isinstance(place, Placement) else Placement(place)
    identity = evaluation_identity(config, info, questions, systems, said.checkpoint_hash)
    title = f"{config.eval.split}-{len(questions)}-{checkpoint.name if checkpoint is not None else 'untrained'}"
    folder = placement.settle(identity, title)
    refuse_unwritable(folder)
    tuning = Tuning(config.eval.split, config.eval.tuning_questions, METRICS, config.seed)
    tuned = tune(config.eval.training_free, client, questions, tuning, folder / TUNING_FILE)
    records = run_systems(client, questions, systems)
    records += [record for one in tuned for record in answer(one.name, client, one, questions, METRICS)]
    write_records(folder / "eval.jsonl", records)
    results = tabulate(
        records, tuned, resamples=config.eval.bootstrap, permutations=config.eval.permutations, seed=config.seed
    )
    used = used_turn(config, run, checkpoint)
    sample = sampled(len(questions), info["splits"][config.eval.split], config.eval.limit, config.eval.sample_seed)
    results = replace(results, sample=sample, turn=used.turn if checkpoint is not None else None)
    created = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    content = {
        **results_json(results, said, created),
        "identity": identity,
        "baselines": [asdict(verdict) for verdict in baselines],
    }
    table = json.dumps(content, ensure_ascii=False, indent=2)
    write_text(folder / "results.json", table + "\n")
    examples = choose_examples(records, config.eval.examples, _gold(dataset, config.eval.split))
    page = render(results, provenance=said, drawings=drawings, examples=examples, created=created)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def held_out_questions(client: Any, info: Mapping[str, Any], config: RunConfig) -> list[Question]:
    """The questions to evaluate, after making sure that none of them stands in the training split.

    Raises ConfigError for an unknown or empty split, DataError for a question id or text found in both.
    """
    split = config.eval.split
    splits = info.get("splits", {})
    if not splits.get(split):
        raise ConfigError(f"the environment has no questions in split {split!r}; it has {splits}. Change eval.split.")
    questions: list[Question] = draw(client.questions(split), config.eval.limit, config.eval.sample_seed)
    if splits.get("train"):
        refuse_overlap(str(info.get("name", "environment")), split, questions, list(client.questions("train")))
    return questions


def run_systems(client: Any, questions: Sequence[Question], systems: Mapping[str, System]) -> list[EvalRecord]:
    """Records of the raw questions and of every system, in that order.

    Raises EnvironmentUnavailableError where the environment scored none of the raw questions.
    """
    records = run_raw(client, questions)
    if all(record.metrics[METRICS[0]] is None for record in records):
        raise EnvironmentUnavailableError(
            f"the environment scored none of {len(questions)} questions before the deadline; nothing was written. "
            "Check its URL and its log, or raise client.deadline."
        )
    for name, system in systems.items():
        trees = system(questions)
        records += records_of_trees(name, trees, seconds=system.seconds if isinstance(system, PolicySystem) else ())
    return records


def run_raw(
    client: Any, questions: Sequence[Question], metrics: Sequence[str] = METRICS, depth: int = 10
) -> list[EvalRecord]:
    """Search every question as it stands, `depth` documents deep."""
    from ..envs.wire import Step

    plans = [SearchPlan.of(question.text, k=depth) for question in questions]
    steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
    started = time.perf_counter()
    results = client.step(steps, metrics=metrics)
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    return [
        raw_record(question, plan, result, metrics, seconds)
        for question, plan, result in zip(questions, plans, results, strict=True)
    ]


def results_json(results: Results, said: Provenance, created: str) -> dict[str, Any]:
    """What results.json holds: the tables, and all that is needed to make them again."""
    return {
        "created": created,
        "headline": headline(results),
        "explanation": explanation(results, said.split),
        "split": said.split,
        "questions": results.questions,
        "sample": asdict(results.sample) if results.sample is not None else None,
        "turn": results.turn,
        "systems": [{**row.arm._asdict(), **_flat(row, "arm")} for row in results.rows],
        "training_free": [asdict(one) for one in results.tuned],
        "best_training_free": results.best_free,
        "notes": results.notes,
        "comparisons": [
            {
                **row.arm._asdict(),
                "against": row.baseline._asdict(),
                **asdict(row.test),
                "p_holm": row.p_holm,
                "significant": row.significant,
                "verdict": row.verdict,
            }
            for row in results.comparisons
        ],
        "provenance": asdict(said),
    }


def refuse_training_split(config: RunConfig) -> None:
    """ConfigError where the split to evaluate is the one that is trained on."""
    if config.eval.split not in ("validation", "test"):
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; expected validation or test: a table of questions that were "
            "trained on says nothing about new ones."
        )


def refuse_overlap(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> None:
    """DataError where a question to evaluate has the id or the text of one that is trained on.

    One that is nearly the same, letter by letter, is told in the log: a reader has to judge it.
    """
    from ..data.leakage import near_overlap_with_train, overlap_with_train

    if shared := overlap_with_train(name, split, questions, train):
        raise DataError(f"{shared[0]} Take these questions out of one of the two splits, then evaluate again.")
    for sentence in near_overlap_with_train(name, split, questions, train):
        log.warning("%s", sentence)


def _local_dataset(config: RunConfig) -> Dataset | None:
    """The dataset behind a local environment, for gold titles and its licence; None for a remote one."""
    if config.client.urls != "local":
        return None
    from ..data.load import load_dataset

    return load_dataset(config.env.dataset)


def _gold(dataset: Dataset | None, split: str) -> dict[str, str]:
    if dataset is None or split not in dataset.splits:
        return {}
    names = {document.id: document.title or document.text[:80] for document in dataset.corpus}
    return gold_titles(dataset.splits[split].qrels, names)


def _plain(info: Any) -> dict[str, Any]:
    return dict(info.model_dump()) if hasattr(info, "model_dump") else dict(info)


def _flat(row: Any, *without: str) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if key not in without}
