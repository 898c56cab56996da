"""Compare the raw question, the untrained policy and the trained policy on questions outside the training split."""

import gc
import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..configs.mix import chosen, environments
from ..configs.run_settings import load_run_config
from ..configs.schema import RewriterConfig, RunConfig
from ..data.mixed_ids import joined
from ..data.references import BaselineCheck
from ..data.sampling import draw, sampled
from ..data.types import Dataset, Question
from ..envs.client.base import EnvironmentApi, StepClient
from ..envs.client.connect import open_environment, open_environments
from ..envs.client.multi import MixedClient
from ..envs.plan import SearchPlan
from ..errors import ConfigError, DataError, EnvironmentUnavailableError
from ..logs import progress_bar
from ..rollouts.checkpoints import find_checkpoint, find_warm_start
from ..rollouts.tree import Tree
from ..rollouts.turns import used_turn
from .baselines import compare_with_published
from .pages.figures import draw_training, read_metrics
from .placement import Placement, answer_settings, evaluation_identity
from .provenance import Provenance, provenance
from .records import (
    HYDE,
    METRICS,
    TRAINED,
    UNTRAINED,
    WARM_START,
    EvalRecord,
    raw_record,
    records_of_trees,
    refuse_unwritable,
    write_records,
    write_text,
)
from .report.examples import choose_examples, gold_titles
from .report.run_report import render
from .table import ArmRow, Results, explanation, headline, tabulate
from .training_free import TUNING_FILE, Tuning, answer, tune

log = logging.getLogger(__name__)

System = Callable[[Sequence[Question]], list[Tree]]
"""Answers questions, in order, with one single-path tree each; a question that cannot be asked has no tree."""


def policy_systems(
    config: RunConfig, client: EnvironmentApi, checkpoint: Path | None, warm_start: Path | None = None
) -> Mapping[str, System]:
    """The systems to evaluate: the trained policy (with a checkpoint), its warm start (if any), the untrained policy,
    and HyDE by the untrained policy (with `eval.hyde`). Each loads its model when called.

    The trained policy answers first, so that an incompatible checkpoint fails before minutes are spent.
    """
    systems: dict[str, System] = {}
    if checkpoint is not None:
        systems[TRAINED] = PolicySystem(TRAINED, config, client, checkpoint)
    if checkpoint is not None and warm_start is not None:
        systems[WARM_START] = PolicySystem(WARM_START, config, client, warm_start)
    systems[UNTRAINED] = PolicySystem(UNTRAINED, config, client, None)
    if config.eval.hyde and config.rewriter.name != HYDE:
        systems[HYDE] = PolicySystem(HYDE, hyde_config(config), client, None)
    return systems


def hyde_config(config: RunConfig) -> RunConfig:
    """Settings of HyDE at the cost of the run's rewriter: one passage with the token budget of all `eval.turns`
    turns, limited by what the engine accepts."""
    rollout, turns = config.rollout, config.eval.turns
    tokens = sum(rollout.new_tokens(turn) for turn in range(1, turns + 1))
    if rollout.engine == "vllm" and rollout.vllm.max_model_len is not None:
        tokens = min(tokens, rollout.vllm.max_model_len - rollout.max_prompt_tokens)
    return config.model_copy(
        update={
            "rewriter": RewriterConfig(name=HYDE),
            "rollout": rollout.model_copy(update={"max_new_tokens": tokens}),
            "eval": config.eval.model_copy(update={"turns": 1}),
        }
    )


class PolicySystem:
    """A language model that rewrites greedily. Only loaded while it answers, so two models never share the memory."""

    def __init__(self, name: str, config: RunConfig, client: EnvironmentApi, checkpoint: Path | None) -> None:
        self.name, self.config, self.client, self.checkpoint = name, config, client, checkpoint
        self.seconds: list[float] = []
        """Mean seconds per question, by turn, of the last call."""

    def __call__(self, questions: Sequence[Question]) -> list[Tree]:
        """Grow one greedy path per question; a question whose first stage gave nothing has no tree.

        Raises ModelError or CheckpointError for an unusable policy, and as `rewriters.stages.ask_first_stage`.
        """
        from ..rollouts.build import rewriter_for
        from ..rollouts.engines.open import load_engine
        from ..rollouts.first_stage import ask_first_stage
        from ..rollouts.grow import ANSWERED_AT_ONCE
        from .answering import Asking, answers, batches

        asking = Asking(self.config.eval.turns, METRICS)
        rewriter = rewriter_for(self.config, self.client)
        questions = ask_first_stage(rewriter, questions, self.config.policy)
        engine = load_engine(self.config, self.checkpoint)
        parts = batches(questions, ANSWERED_AT_ONCE)
        trees: dict[str, Tree] = {}
        spent = [0.0] * asking.turns
        with progress_bar(f"{self.name} policy") as advance:
            advance(0, len(questions))
            for answered in answers(parts, asking, engine, self.client, rewriter, self.config.rollout):
                trees |= {tree.question.id: tree for tree in answered.trees}
                spent = [
                    total + len(answered.trees) * part for total, part in zip(spent, answered.seconds, strict=True)
                ]
                advance(len(trees), len(questions))
        self.seconds = [total / max(1, len(questions)) for total in spent]
        del engine
        gc.collect()
        return [trees[question.id] for question in questions]


def evaluate(
    config: RunConfig,
    run: Path | None,
    output: Path | None,
    checkpoint_name: str | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> Path:
    """Evaluate a run, or the untrained policy alone where `run` is None, and return the path of report.html.

    `checkpoint_name` selects a checkpoint of the run instead of the one that `find_checkpoint` prefers. With `check`,
    raw questions are compared with published figures before a model is loaded, and `check` gets the outcome.

    Writes eval.jsonl, results.json and report.html into `output`. The default is the run folder, or
    OUTPUT/NAME-untrained where `run` is None: an untrained report never replaces that of a trained run. Another
    evaluation in the folder is only replaced with `overwrite` (eval/placement.py). Raises ConfigError for the training
    split, DataError where test questions were trained on, CheckpointError where the run has no policy,
    EnvironmentUnavailableError where the environment answers no question, BaselineError where `check` fails.
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
    """The results folder of a run, or of an untrained policy (`run` None). Raises StorageError where not writable."""
    folder = output or run or Path(config.output) / f"{config.name}-untrained"
    refuse_unwritable(folder)
    belongs = True
    if run is not None and (run / "config.yaml").is_file():
        same = _evaluated_settings(load_run_config(run)) == _evaluated_settings(config)
        belongs = same and checkpoint == find_checkpoint(run)
    return Placement(folder, belongs, aside=output is None, overwrite=overwrite)


def _evaluated_settings(config: RunConfig) -> list[Any]:
    """The settings that select the questions and determine the answers."""
    question_settings = (config.eval.split, config.eval.limit, config.eval.sample_seed)
    return [question_settings, {name: answer_settings(member) for name, member in environments(config).items()}]


def evaluate_systems(
    config: RunConfig,
    client: EnvironmentApi,
    systems: Mapping[str, System],
    destination: Path | Placement,
    *,
    run: Path | None = None,
    checkpoint: Path | None = None,
    baselines: Sequence[BaselineCheck] = (),
) -> Path:
    """`evaluate` with a given environment client and systems; `run` only adds training curves to the report.

    `baselines` (raw questions against published figures) goes into results.json. Raises ConfigError where `destination`
    is a folder that holds another evaluation.
    """
    refuse_training_split(config)
    info = client.environment().model_dump()
    questions = held_out_questions(client, info, config)
    dataset = _local_dataset(config)
    metrics = run / "metrics.jsonl" if run is not None else None
    drawings = draw_training(read_metrics(metrics)) if metrics is not None and metrics.is_file() else []
    run_provenance = provenance(config, info, checkpoint, licence=dataset.licence if dataset else "")
    placement = destination if isinstance(destination, Placement) else Placement(destination)
    identity = evaluation_identity(config, info, questions, systems, run_provenance.checkpoint_hash)
    title = f"{config.eval.split}-{len(questions)}-{checkpoint.name if checkpoint is not None else 'untrained'}"
    folder = placement.settle(identity, title)
    refuse_unwritable(folder)
    tuning = Tuning(config.eval.split, config.eval.tuning_questions, METRICS, config.seed)
    tuned = tune(config.eval.training_free, client, questions, tuning, folder / TUNING_FILE)
    records = run_systems(client, questions, systems)
    records += [record for baseline in tuned for record in answer(baseline.name, client, baseline, questions, METRICS)]
    write_records(folder / "eval.jsonl", records)
    results = tabulate(
        records, tuned, resamples=config.eval.bootstrap, permutations=config.eval.permutations, seed=config.seed
    )
    used = used_turn(config, run, checkpoint)
    sample = sampled(len(questions), info["splits"][config.eval.split], config.eval.limit, config.eval.sample_seed)
    results = replace(results, sample=sample, turn=used.turn if checkpoint is not None else None)
    created = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    content = {
        **results_json(results, run_provenance, created),
        "identity": identity,
        "baselines": [asdict(verdict) for verdict in baselines],
    }
    table = json.dumps(content, ensure_ascii=False, indent=2)
    write_text(folder / "results.json", table + "\n")
    examples = choose_examples(records, config.eval.examples, _gold(dataset, config.eval.split))
    page = render(results, provenance=run_provenance, drawings=drawings, examples=examples, created=created)
    write_text(folder / "report.html", page)
    return folder / "report.html"


def held_out_questions(client: EnvironmentApi, info: Mapping[str, Any], config: RunConfig) -> list[Question]:
    """The questions to evaluate, after checking that none of them is in the training split.

    Raises ConfigError for an unknown or empty split, DataError for a question id or text found in both.
    """
    split = config.eval.split
    splits = info.get("splits", {})
    if not splits.get(split):
        raise ConfigError(f"the environment has no questions in split {split!r}; it has {splits}. Change eval.split.")
    questions = draw(client.questions(split), config.eval.limit, config.eval.sample_seed)
    if splits.get("train"):
        refuse_overlap(str(info.get("name", "environment")), split, questions, client.questions("train"))
    return questions


def run_systems(client: StepClient, questions: Sequence[Question], systems: Mapping[str, System]) -> list[EvalRecord]:
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
    client: StepClient, questions: Sequence[Question], metrics: Sequence[str] = METRICS, depth: int = 10
) -> list[EvalRecord]:
    """Search the raw questions, `depth` documents each."""
    from ..envs.server.schemas import Step

    plans = [SearchPlan.of(question.text, k=depth) for question in questions]
    steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
    started = time.perf_counter()
    results = client.step(steps, metrics=metrics)
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    return [
        raw_record(question, plan, result, metrics, seconds)
        for question, plan, result in zip(questions, plans, results, strict=True)
    ]


def results_json(results: Results, provenance: Provenance, created: str) -> dict[str, Any]:
    """The content of results.json: the tables and everything needed to reproduce them."""
    return {
        "created": created,
        "headline": headline(results),
        "explanation": explanation(results, provenance.split),
        "split": provenance.split,
        "questions": results.questions,
        "sample": asdict(results.sample) if results.sample is not None else None,
        "turn": results.turn,
        "systems": [{**row.arm._asdict(), **_flat(row, "arm")} for row in results.rows],
        "training_free": [asdict(baseline) for baseline in results.tuned],
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
        "provenance": asdict(provenance),
    }


def refuse_training_split(config: RunConfig) -> None:
    """Raise ConfigError where the split to evaluate is the training split."""
    if config.eval.split not in ("validation", "test"):
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; expected validation or test: a table of questions that were "
            "trained on says nothing about new ones."
        )


def refuse_overlap(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> None:
    """Raise DataError where a question to evaluate has the id or the text of a training question.

    Near-duplicates, letter by letter, are only logged: a person has to judge them.
    """
    from ..data.leakage import near_overlap_with_train, overlap_with_train

    if shared := overlap_with_train(name, split, questions, train):
        raise DataError(f"{shared[0]} Take these questions out of one of the two splits, then evaluate again.")
    for sentence in near_overlap_with_train(name, split, questions, train):
        log.warning("%s", sentence)


def _local_dataset(config: RunConfig) -> Dataset | None:
    """The dataset of a local environment, for gold titles and the licence; None for a remote one."""
    if config.client.urls != "local":
        return None
    from ..data.load import load_dataset

    return load_dataset(config.env.dataset)


def _gold(dataset: Dataset | None, split: str) -> dict[str, str]:
    if dataset is None or split not in dataset.splits:
        return {}
    names = {document.id: document.title or document.text[:80] for document in dataset.corpus}
    return gold_titles(dataset.splits[split].qrels, names)


def _flat(row: ArmRow, *without: str) -> dict[str, Any]:
    return {key: value for key, value in asdict(row).items() if key not in without}


def evaluate_each(
    config: RunConfig,
    run: Path | None,
    output: Path | None,
    name: str | None = None,
    checkpoint_name: str | None = None,
    check: Callable[[str], None] | None = None,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Evaluate on the environment called `name`, or on all of them; yields each report's path once it is written.

    A run with one environment goes to `evaluate`. In a mix, each environment's files go to the subfolder `eval-NAME` of
    the folder that `evaluate` would use. Raises as `evaluate`, ConfigError for an unknown name, and DataError where a
    question to evaluate on one environment is a training question of another.
    """
    members = chosen(config, name)
    if config.mix is None:
        yield evaluate(config, run, output, checkpoint_name, check, overwrite)
        return
    refuse_training_split(config)
    checkpoint = find_checkpoint(run, checkpoint_name) if run is not None else None
    placement = place_results(config, run, output, checkpoint, overwrite)
    with open_environments(config) as mixed:
        assert isinstance(mixed, MixedClient), "a mix is opened as one"
        for environment, member in members.items():
            _refuse_trained_elsewhere(member, mixed, environment)
        baselines = {
            name: compare_with_published(mixed.clients[name], member, check) if check is not None else []
            for name, member in members.items()
        }
        for environment, member in members.items():
            client = mixed.clients[environment]
            systems = policy_systems(member, client, checkpoint, find_warm_start(run) if run is not None else None)
            target = replace(placement, folder=report_folder(placement.folder, environment))
            yield evaluate_systems(
                member, client, systems, target, run=run, checkpoint=checkpoint, baselines=baselines[environment]
            )


def report_folder(run: Path, environment: str) -> Path:
    """The subfolder of a run for the evaluation on one environment of a mix."""
    return run / f"eval-{environment}"


def _refuse_trained_elsewhere(config: RunConfig, mixed: MixedClient, environment: str) -> None:
    """Members may split the same questions differently: refuse test questions that another member trains on.

    Ids are prefixed by environment, so equal ids of two members do not count.
    """
    client = mixed.clients[environment]
    questions = joined(environment, held_out_questions(client, client.environment().model_dump(), config))
    for name, peer in mixed.clients.items():
        if name != environment and peer.environment().splits.get("train"):
            train_questions = joined(name, peer.questions("train"))
            refuse_overlap(f"{environment} with {name}", config.eval.split, questions, train_questions)
