"""Evaluate a run: the raw question, baselines, and the policy before and after training, on held-out questions.

It is an evaluation of one dataset in one environment: its systems are answered cell by cell (eval/cells.py), so that a
stopped evaluation resumes.

eval.jsonl       every record that counts (eval/records.py)
results.json     the table, the verdict, and their provenance
tables.md tables.tex scores.csv comparisons.csv    the table for a README, for a paper and for programs
report.html      the same on one page, with every comparison, training curves and examples
cells/           the answers by fingerprint (eval/journal.py)
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from ..configs.differences import flat
from ..configs.evaluation import SystemConfig
from ..configs.load import dump_config
from ..configs.mix import chosen, environments
from ..configs.run_settings import load_run_config
from ..configs.schema import EvalConfig, RewriterConfig, RunConfig
from ..data.corpus import open_corpus
from ..data.sampling import sampled
from ..data.types import AllDocuments, Dataset, Question
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environments
from ..envs.client.multi import MixedClient
from ..envs.schemas import EnvironmentInfo
from ..errors import CheckpointError
from ..provenance import versions
from ..rollouts.checkpoints import find_checkpoint, find_warm_start, task_model, used_turn, with_prompt
from ..storage import is_command_at_work, only_command
from .cells import CELLS
from .curves import draw_run
from .environments import EvalEnvironment, described_by_service
from .evaluation import Evaluation
from .examples import choose_examples
from .frame import frame_of
from .identity import folder_identity, model_identity, task_identity, weights_identity
from .leakage import (
    SAMPLE_SEED,
    HeldOut,
    held_out_questions,
    refuse_training_split,
    without_trained_by_run,
    without_trained_elsewhere,
    write_leaks_file,
)
from .placement import Placement, question_set
from .records import (
    HYDE,
    METRICS,
    RAW,
    TRAINED,
    UNTRAINED,
    WARM_START,
    EvalRecord,
    write_records,
)
from .results import Results
from .run_baselines import hyde_rollout
from .run_table import FAMILY, LEGEND, label, table_spec, verdict
from .spec_tables import add_best_free
from .systems import RewritingSystem, System, TrainingFreeSystem
from .table import Note, tabulate
from .text import write_results
from .training_free import Tuning

DEPTH = 10
"""Documents per ranking."""


def systems_of_run(config: RunConfig, checkpoint: Path | None, warm_start: Path | None = None) -> list[RewritingSystem]:
    """The rewriting systems to evaluate: the trained policy (with a checkpoint), its warm start (if any), the untrained
    policy, and HyDE by the untrained policy (with `eval.hyde`). Where the checkpoint is an optimised prompt, the first
    is the model with that prompt and "untrained" the model with the prompt of the config.

    The trained policy is the first to be loaded, so that an incompatible checkpoint fails before the others answer.
    """
    task = task_model(config.optimize, checkpoint)
    base_model = model_identity(config.policy.model) if task is None else ""

    def system(name: str, config: RunConfig, checkpoint: Path | None) -> RewritingSystem:
        weights = weights_identity(base_model, checkpoint) if task is None else task_identity(task, checkpoint)
        settings = SystemConfig(turns=config.eval.turns, llm=task)
        return RewritingSystem(name, settings, config, checkpoint, weights, METRICS, config.search_depth, config.seed)

    systems = [system(UNTRAINED, config, None)]
    if checkpoint is not None:
        trained = [system(TRAINED, with_prompt(config, checkpoint), checkpoint)]
        trained += [system(WARM_START, config, warm_start)] if warm_start is not None else []
        systems = [*trained, *systems]
    if config.eval.hyde and config.rewriter.name != HYDE:
        systems.append(system(HYDE, hyde_config(config), None))
    return systems


def hyde_config(config: RunConfig) -> RunConfig:
    """Settings of HyDE at the cost of the run's rewriter, with `eval.turns` turns."""
    return config.model_copy(
        update={
            "rewriter": RewriterConfig(name=HYDE),
            "rollout": hyde_rollout(config.rollout, config.eval.turns),
            "eval": config.eval.model_copy(update={"turns": 1}),
        }
    )


def evaluate_each(
    config: RunConfig,
    run: Path | None,
    output: Path | None,
    name: str | None = None,
    checkpoint_name: str | None = None,
    overwrite: bool = False,
) -> Iterator[Path]:
    """Evaluate a run, or the untrained policy alone where `run` is None; yields the path of each written report.html.

    In a mix, each environment (only `name`, if given) has a report, in the subfolder `eval-NAME`. `checkpoint_name`
    selects a checkpoint of the run instead of the one that `find_checkpoint` prefers.

    The default of `output` is the run folder, or OUTPUT/NAME-untrained where `run` is None: an untrained report never
    replaces that of a trained run. Another evaluation in the folder is only replaced with `overwrite`
    (eval/placement.py). Raises ConfigError for the training split or an unknown name, DataError where test questions
    were trained on, also in another environment of the mix, CheckpointError where the run has no policy,
    EnvironmentUnavailableError where the environment answers no question, StorageError where another command, such as
    the training of the run, is at work in the folder of the results.
    """
    members = chosen(config, name)
    refuse_training_split(config.eval)
    checkpoint = find_checkpoint(run, checkpoint_name) if run is not None else None
    warm_start = find_warm_start(run) if run is not None else None
    placement = place_results(config, run, output, checkpoint, overwrite)
    if run is not None and checkpoint is not None:
        _refuse_changing(run, checkpoint, placement.folder)
    with only_command(placement.folder), open_environments(config) as client:
        clients = client.clients if isinstance(client, MixedClient) else dict.fromkeys(members, client)
        opened = {key: RunEnvironment(member, clients[key]) for key, member in members.items()}
        if config.mix is not None:
            for key, environment in opened.items():
                environment.held_out = without_trained_elsewhere(key, environment.held_out, config.eval.split, clients)
        if run is not None and (run / "config.yaml").is_file():
            trained = load_run_config(run, trust=True)
            for key, environment in opened.items() if trained.mix is None else ():
                environment.held_out = without_trained_by_run(trained, members[key], key, environment.held_out)
        for key, member in members.items():
            systems = systems_of_run(member, checkpoint, warm_start)
            folder = report_folder(placement.folder, key) if config.mix is not None else placement.folder
            target = replace(placement, folder=folder)
            environment = opened.pop(key)  # so that the dataset of the one before is freed
            yield evaluate_systems(environment, systems, target, run=run, checkpoint=checkpoint)


def _refuse_changing(run: Path, checkpoint: Path, output: Path) -> None:
    """Raise CheckpointError for best/ of a run that is being trained: between its hash and its weights another policy
    may take its place. In the run's own folder its lock refuses the evaluation."""
    if output.resolve() != run.resolve() and checkpoint.name == "best" and is_command_at_work(run):
        raise CheckpointError(
            f"{checkpoint} may change while another command is at work in {run}. Wait for it, or name a "
            "checkpoint that stays, such as --checkpoint checkpoint-20."
        )


def report_folder(run: Path, environment: str) -> Path:
    """The subfolder of a run for the evaluation on one environment of a mix."""
    return run / f"eval-{environment}"


def place_results(
    config: RunConfig, run: Path | None, output: Path | None, checkpoint: Path | None, overwrite: bool
) -> Placement:
    """The results folder of a run, or of an untrained policy (`run` None). Raises StorageError where not writable."""
    folder = output or run or config.run_folder.with_name(f"{config.name}-untrained")
    belongs = True
    if run is not None and (run / "config.yaml").is_file():
        same = _evaluated_settings(load_run_config(run, trust=True)) == _evaluated_settings(config)
        belongs = same and checkpoint == find_checkpoint(run)
    return Placement(folder, belongs, aside=output is None, overwrite=overwrite)


def _evaluated_settings(config: RunConfig) -> list[object]:
    """The settings that select the questions and determine the answers."""
    asked = config.eval.model_dump(include={"split", "limit", "turns", "training_free", "hyde"})
    members = [(name, member.env, member.rewriter) for name, member in environments(config).items()]
    return [asked, config.policy, config.rollout, members]


class RunEnvironment:
    """The environment of a run, its questions to evaluate, and its dataset; each is read once, when it is needed."""

    def __init__(self, config: RunConfig, client: EnvironmentApi) -> None:
        self.config, self.client = config, client

    @cached_property
    def info(self) -> EnvironmentInfo:
        """The environment's description of itself."""
        return self.client.info()

    @cached_property
    def held_out(self) -> HeldOut:
        """The questions to evaluate. Raises as `held_out_questions`."""
        return held_out_questions(self.client, self.info, self.config.eval)

    @property
    def questions(self) -> list[Question]:
        return self.held_out.questions

    @cached_property
    def dataset(self) -> Dataset | None:
        """The questions of a local environment's dataset, its name and its licence; None for a remote one."""
        if self.config.client.urls != "local":
            return None
        return open_corpus(self.config.env.dataset).questions(AllDocuments())

    @cached_property
    def described(self) -> EvalEnvironment:
        """The environment in the form in which cells are answered in it."""
        name, settings = self.info.name, self.config.eval
        everything = self.client.questions(settings.split)
        described = described_by_service(
            "",
            name,
            self.config.env,
            self.config.client,
            self.info,
            self.questions,
            everything,
            sample=sampled(len(self.questions), len(everything), settings.limit, SAMPLE_SEED),
        )
        return replace(described, client=self.client)


def evaluate_systems(
    evaluated: RunEnvironment,
    systems: Sequence[System],
    destination: Path | Placement,
    *,
    run: Path | None = None,
    checkpoint: Path | None = None,
) -> Path:
    """`evaluate_each` with given systems in one open environment; `run` only adds training curves to the report.

    Raises ConfigError where `destination` is a folder that holds another evaluation.
    """
    from ..rollouts.policy import torch_dtype

    config = evaluated.config
    refuse_training_split(config.eval)
    info, environment = evaluated.info, evaluated.described
    settings, dataset = config.eval, evaluated.dataset
    checkpoint_hash = folder_identity(checkpoint) if checkpoint is not None else ""
    run_provenance = {
        "seed": config.seed,
        "policy": config.policy.model,
        "checkpoint": str(checkpoint) if checkpoint is not None else "",
        "checkpoint_hash": checkpoint_hash,
        "dtype": str(torch_dtype(config.policy)).removeprefix("torch."),
        "environment": info.model_dump(),
        "licence": dataset.licence if dataset else "",
        "versions": versions(),
    }
    placement = destination if isinstance(destination, Placement) else Placement(destination)
    questions = environment.questions
    identity: dict[str, object] = {
        "split": settings.split,
        "number of questions": len(questions),
        "question set": question_set(questions),
        "checkpoint": checkpoint_hash,
        "systems": sorted(system.name for system in systems),
        "environment": info.model_dump(include={"name", "index_hash", "settings_hash"}),
        "answers": {system.name: system.identity(environment) for system in systems},
    }
    title = f"{settings.split}-{len(questions)}-{checkpoint.name if checkpoint is not None else 'untrained'}"
    folder = placement.settle(identity, title)
    with only_command(folder / CELLS):
        evaluation = Evaluation(folder=folder, split=settings.split, metrics=METRICS, depth=DEPTH)
        evaluation.add(environment, [*systems, *_training_free(settings, config.seed)])
        evaluation.answer()
        records = [record for of_cell in evaluation.records().values() for record in of_cell]
        write_records(folder / "eval.jsonl", records)
        used = used_turn(config.rollout, config.reward, config.train, run, checkpoint)
        write_leaks_file(folder, evaluated.held_out.records())
        results = _results(evaluated, evaluation, records, used.turn if checkpoint is not None else None)
        results.identity, results.provenance = identity, run_provenance
        write_results(folder, results, draw_run(run) if run is not None and (run / "config.yaml").is_file() else [])
    return folder / "report.html"


def _results(
    evaluated: RunEnvironment, evaluation: Evaluation, records: Sequence[EvalRecord], turn: int | None
) -> Results:
    """The results of the records; `turn` is the turn that a user of the run gets."""
    config, environment, dataset = evaluated.config, evaluated.described, evaluated.info.name
    settings, ids = config.eval, [question.id for question in evaluated.described.questions]
    placed = [replace(record, dataset=dataset, environment="") for record in records]
    tuned = {
        (dataset, "", cell.system.name): weights for cell in evaluation.cells if (weights := cell.tuned()) is not None
    }
    frame, free = add_best_free(frame_of(placed, {dataset: ids}, METRICS), tuned, METRICS[0])
    systems = {record.system for record in records}
    table = tabulate(frame, table_spec(systems, "", settings.bootstrap, settings.permutations, config.seed))
    notes = [*evaluated.held_out.note(), *evaluation.missing_notes()]
    results = Results(
        name=config.name,
        split=settings.split,
        metrics=list(METRICS),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=[*(Note("missing", 1, text) for text in notes), *table.notes, *free],
        legend=LEGEND,
        family=FAMILY.format(permutations=settings.permutations),
        samples={dataset: environment.sample} if environment.sample is not None else {},
        facts=_facts(evaluated),
        config=dump_config(config),
    )
    arms = [arm for name in (RAW, UNTRAINED, TRAINED) if (arm := results.last(name))]
    if len(arms) > 1:
        relevant = environment.split.qrels if environment.split is not None else None
        labels = {label(arm): arm for arm in arms}
        chosen = choose_examples(frame, placed, labels, METRICS[0], "Rewrites before and after", relevant)
        results.examples = [chosen] if chosen is not None else []
    results.turn, results.headline = turn, verdict(results, turn, evaluated.info.judged)
    return results


def _facts(evaluated: RunEnvironment) -> dict[str, str]:
    """Where the figures come from."""
    config, dataset = evaluated.config, evaluated.dataset
    return {
        "Policy": config.policy.model,
        "Seed": str(config.seed),
        "Data licence": dataset.licence if dataset is not None else "",
        **{f"Environment {name}": str(value) for name, value in flat(evaluated.info.model_dump())},
        "Versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
    }


def _training_free(settings: EvalConfig, seed: int) -> list[TrainingFreeSystem]:
    """The training-free baselines of `eval.training_free`, whose weights are chosen on validation questions."""
    tuning = Tuning(settings.split, settings.tuning_questions, METRICS, seed, DEPTH)
    return [TrainingFreeSystem(name, name, tuning, METRICS, DEPTH) for name in settings.training_free]
