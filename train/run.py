"""A training run: connect to the environment, load the policy, train, save."""

import json
import logging
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT, Signals
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ..configs.schema import RunConfig
from ..envs.client.base import EnvironmentApi
from ..envs.client.multi import MixedClient
from ..errors import (
    CollapseError,
    ConfigError,
    EngineUnavailableError,
    EnvironmentUnavailableError,
    RequestError,
    StoppedError,
    StorageError,
)
from ..provenance import Start, this_start
from ..rollouts.chat import Tokenizer
from ..rollouts.engines.base import WeightSync
from ..storage import only_command
from .arguments import check_combinations, grpo_config, trainable_dtype
from .distributed.processes import Processes, launched, shared_environment
from .questions import TrainingData, prepare_data
from .run_folder import RunFolder, remove_traces, staged, step_of
from .sharding import splits_weights, zero_stage

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import PreTrainedModel, TrainerCallback

    from ..rollouts.tree_sampler import TreeSampler
    from .distributed.stopping import StopOnSignal
    from .guard import CollapseGuard
    from .staged import StagedQuestions
    from .trainer import TreeTrainer

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Launch:
    """What a run is started with, in each of its processes."""

    config: RunConfig
    processes: Processes
    stopper: "StopOnSignal"
    callbacks: Sequence["TrainerCallback"] = ()
    """Of the caller, called after the run's own."""


@dataclass(frozen=True, slots=True)
class _ResumePoint:
    """Where a run continues: nowhere if it is new, without a checkpoint if it was stopped before its first."""

    folder: RunFolder | None = None
    checkpoint: Path | None = None

    @property
    def step(self) -> int:
        return step_of(self.checkpoint) if self.checkpoint is not None else 0


@dataclass(frozen=True, slots=True)
class _Policy:
    """The policy under training and what samples from it."""

    config: RunConfig
    """The run's settings, with train.gradient_checkpointing resolved for this policy."""
    model: "PreTrainedModel | PeftModel"
    tokenizer: Tokenizer
    weight_sync: WeightSync
    tree_sampler: "TreeSampler"
    base: str
    """Fingerprint of the weights before training, in the main process."""


@dataclass(frozen=True, slots=True)
class _Opened:
    """The run folder, and where this start continues in it."""

    folder: RunFolder
    checkpoint: Path | None
    provenance: Start


def train(
    config: RunConfig, resume: bool = False, trust: bool = False, callbacks: Sequence["TrainerCallback"] = ()
) -> Path:
    """Train the policy of `config` and return the run folder; every process of a launcher calls this.

    `trust`: resume also a run of another user with DeepSpeed's pickles. `callbacks` are
    called by the trainer of every process.

    Raises ConfigError, ModelError, IndexFolderError, DataError or CheckpointError for problems found before anything is
    written; EnvironmentUnavailableError, after saving a checkpoint, if the environment goes away; StorageError if
    another command is at work in the run folder, on a full disk and where the folder is gone; StoppedError if SIGTERM,
    SIGHUP or SIGUSR1 ended the run early; CollapseError if the guard did.
    """
    with launched() as processes, ExitStack() as lock:
        if not processes.is_main_process:
            logging.getLogger(__package__.partition(".")[0]).setLevel(logging.WARNING)
        # What takes no model, service or PyTorch to know comes before they are imported.
        check_combinations(config, processes.count)
        path = config.run_folder
        processes.on_main_process(lambda: None if resume else RunFolder(path).refuse_existing())
        processes.on_main_process(lambda: lock.enter_context(only_command(path)))
        start = processes.on_main_process(lambda: _resume_point(config, resume, trust))
        from .distributed.stopping import StopOnSignal

        stopper = StopOnSignal(processes)
        with stopper.listening():
            return _train(_Launch(config, processes, stopper, callbacks), start)


def stopped(folder: RunFolder, config: RunConfig, number: int | None) -> StoppedError:
    """The error of a run that a signal ended, or a callback (None); its message names the checkpoint to resume from."""
    checkpoint = folder.newest_checkpoint(config.train, config.policy)
    state = f"{checkpoint} holds its last finished step" if checkpoint else "there is no checkpoint yet"
    name = "a callback" if number is None else Signals(number).name
    return StoppedError(f"{name} came before the run had ended; {state}. Go on with --resume.")


def _train(launch: _Launch, start: _ResumePoint) -> Path:
    from ..rollouts.policy import cast_adapters
    from .answers import rewarding

    config, processes = launch.config, launch.processes
    raw_metric = config.train.raw_metric
    with (
        shared_environment(config, processes) as environment_client,
        rewarding(config.env, config.reward, raw_metric, config.seed, environment_client) as client,
    ):
        data = prepare_data(config, processes, client)
        environment = processes.on_main_process(lambda: _describe_environment(client, start.folder))
        provenance = processes.on_main_process(lambda: this_start(start.step, environment))
        policy = _load(launch, data)
        folder = processes.on_main_process(lambda: _open_folder(config, start, policy.base, environment, provenance))
        opened = _Opened(folder, start.checkpoint, provenance)
        if start.checkpoint is not None:
            log.info("continuing from step %d (%s)", start.step, start.checkpoint)
        elif config.train.warm_start.questions:
            processes.on_main_process(lambda: _warm_start(policy, data, folder))
            processes.broadcast_weights(policy.model)
        if zero_stage() == 3:
            cast_adapters(policy.model, config.policy)
        _learn(launch, data, policy, opened)
    return folder.path


def _resume_point(config: RunConfig, resume: bool, trust: bool) -> _ResumePoint:
    """Raises ConfigError or CheckpointError, before the models are loaded."""
    if not resume:
        return _ResumePoint()
    folder, checkpoint = RunFolder.reopen(config, trust)
    if checkpoint is None:
        log.info("%s was stopped before its first checkpoint and begins again", folder.path)
    return _ResumePoint(folder, checkpoint)


def _describe_environment(client: EnvironmentApi, folder: RunFolder | None) -> dict[str, JsonValue]:
    """What environment.json holds. Raises CheckpointError if a resumed run was started on another environment."""
    from .answers import AnswerClient

    environment = client.info().model_dump(mode="json")
    if isinstance(client, MixedClient):
        members = client.infos()
        environment["environments"] = {name: info.model_dump(mode="json") for name, info in members.items()}
    if isinstance(client, AnswerClient):
        environment["answers"] = client.identity
    if folder is not None:
        folder.same_environment(environment)
    return environment


def _load(launch: _Launch, data: TrainingData) -> _Policy:
    """Load the policy and its engine.

    DeepSpeed and FSDP are set up later: they would shard the weights while loading, but every process needs all of them
    once, for the warm start and for its sampling copy.
    """
    from transformers import set_seed

    from ..rollouts.build import make_tree_sampler
    from ..rollouts.engines.open import open_engine
    from ..rollouts.policy import add_lora, fingerprint, load_policy, move_to
    from .memory.gradient_checkpointing import resolve_gradient_checkpointing
    from .packing.check import refuse_unpackable

    config, processes = launch.config, launch.processes
    set_seed(config.seed)
    loaded, tokenizer = load_policy(trainable_dtype(config.policy, config.train))
    base = fingerprint(loaded) if processes.is_main_process else ""
    move_to(loaded, processes.device)
    model = add_lora(loaded, config.policy)
    if config.train.packing:
        refuse_unpackable(model, config.rollout.longest_sequence)
    checkpointing = resolve_gradient_checkpointing(
        config.policy, config.rollout, config.train, model, processes.device, processes.count
    )
    train = config.train.model_copy(update={"gradient_checkpointing": checkpointing})
    config = config.model_copy(update={"train": train})
    separate = splits_weights() or config.train.staleness > 0
    engine, weight_sync = open_engine(config.policy, config.rollout, config.seed, model, tokenizer, separate)
    tree_sampler = make_tree_sampler(engine, data.rewriter, data.client, config.rollout, config.reward)
    return _Policy(config, model, tokenizer, weight_sync, tree_sampler, base)


def _open_folder(
    config: RunConfig, start: _ResumePoint, base: str, environment: Mapping[str, JsonValue], provenance: Start
) -> RunFolder:
    folder = start.folder or RunFolder.create(config)
    folder.same_base(config.policy.model, base, start.checkpoint is not None)
    folder.write(folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
    folder.forget_after(start.step)
    folder.note_start(provenance)
    return folder


def _warm_start(policy: _Policy, data: TrainingData, folder: RunFolder) -> None:
    from .warm_start import warm_start

    # Titles may help questions that fail on their own; expert iteration uses the questions that GRPO trains on.
    pool = data.train_split if len(policy.config.rollout.branching) > 1 else data.questions
    warm_start(policy.config, policy.model, policy.tree_sampler, policy.weight_sync, pool, folder)
    with staged(folder.warm) as path:
        policy.model.save_pretrained(str(path))
        policy.tokenizer.save_pretrained(str(path))
        remove_traces(path, policy.config.policy.model)


def _learn(launch: _Launch, data: TrainingData, policy: _Policy, opened: _Opened) -> None:
    """Train and save. Trackers are closed at the very end, also after an error."""
    from ..rollouts.first_stage import StageModels
    from .staged import StagedQuestions

    config, processes, stopper = policy.config, launch.processes, launch.stopper
    with ExitStack() as cleanup:
        models = cleanup.enter_context(StageModels(config.policy))
        history_words = config.rollout.history_tokens
        questions = StagedQuestions(data.rewriter, models, processes, config.mix is not None, history_words)
        trainer = _make_trainer(launch, data, policy, opened, questions)
        guard = _add_callbacks(launch, data, policy, opened, trainer, cleanup)
        try:
            _run_trainer(trainer, opened.checkpoint)
        finally:
            if trainer.step_trees.prefetcher is not None:
                trainer.step_trees.prefetcher.close()
        processes.on_main_process(lambda: _refuse_collapse(guard, opened.folder))
        if trainer.state.global_step < config.train.steps:
            if stopper.stopped_by == SIGINT:
                raise KeyboardInterrupt
            error = processes.on_main_process(lambda: stopped(opened.folder, config, stopper.stopped_by))
            error.already_reported = not processes.is_main_process
            raise error
        with processes.staged(opened.folder.final) as path:
            trainer.save_policy(path)


def _refuse_collapse(guard: "CollapseGuard", folder: RunFolder) -> None:
    """Raise CollapseError if the guard ended the run."""
    if guard.collapsed is not None:
        where = folder.best if folder.best.exists() else folder.checkpoints
        raise CollapseError(
            f"the run stops: {guard.collapsed}. Earlier policies are in {where}; to train on all the same: --resume "
            "train.guard=warn."
        )


def _make_trainer(
    launch: _Launch, data: TrainingData, policy: _Policy, opened: _Opened, questions: "StagedQuestions"
) -> "TreeTrainer":
    from transformers import PrinterCallback

    from .step_trees import StepTrees
    from .tracking import tracking_id
    from .trainer import TreeTrainer
    from .warm_start import name_reference

    config, processes, path = policy.config, launch.processes, opened.folder.path
    name_reference(config.train, config.policy, opened.folder, policy.model)
    policy.weight_sync.sleep()  # vLLM is awake since it was started; what the trainer loads takes its place
    name = config.name
    if "trackio" in config.tracking.report_to:
        name = processes.on_main_process(lambda: f"{config.name}-{tracking_id(path)}")
    trainer = TreeTrainer(
        run=config,
        folder=opened.folder,
        step_trees=StepTrees(
            config, policy.tree_sampler, policy.weight_sync, data.questions, data.order, processes, questions
        ),
        processes=processes,
        model=policy.model,
        args=grpo_config(config, opened.folder.checkpoints, processes.count, name),
        processing_class=policy.tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _add_callbacks(
    launch: _Launch,
    data: TrainingData,
    policy: _Policy,
    opened: _Opened,
    trainer: "TreeTrainer",
    cleanup: ExitStack,
) -> "CollapseGuard":
    from ..rollouts.policy import torch_dtype
    from .guard import CollapseGuard, logp_bound
    from .metrics_callback import MetricsCallback
    from .tracking import finish_wandb, tracker_callbacks, wandb_mode
    from .validation import Validator
    from .weight_changes import WeightChanges

    config, processes, folder, stopper = policy.config, launch.processes, opened.folder, launch.stopper
    bound = logp_bound(config.rollout, torch_dtype(config.policy), config.train.staleness)
    guard = CollapseGuard(config.train.guard, bound, config.train.learning_rate)
    changes = WeightChanges(trainer, config.seed, processes.all_gather)
    main: list[TrainerCallback] = []
    trackers: list[TrainerCallback] = []
    validated = None
    if processes.is_main_process:
        metrics = MetricsCallback(trainer, folder, guard, changes)
        trainer.make_record, validated = metrics.record, metrics.validated
        cleanup.callback(metrics.close)
        trackers = tracker_callbacks(config, folder.path, opened.provenance)
        if wandb_mode(config.tracking) != "disabled":
            cleanup.callback(finish_wandb)
        main = [metrics]
    for callback in (changes, *main):
        trainer.add_callback(callback)
    if data.validation:
        trainer.add_callback(
            Validator(
                config.train,
                folder,
                data.validation,
                policy.tree_sampler,
                trainer.step_trees.prefetcher or policy.weight_sync,
                save=trainer.save_policy,
                on_record=validated,
                processes=processes,
            )
        )
    for callback in (*trackers, *launch.callbacks, stopper):  # after the validation of the last step
        trainer.add_callback(callback)
    return guard


def _run_trainer(trainer: "TreeTrainer", checkpoint: Path | None) -> None:
    """TRL's loop. A single process saves a checkpoint of the last finished step if the environment or the engine is
    gone; of several, others are in the middle of a step."""
    try:
        with redirect_stdout(sys.stderr):  # stdout is for the path of the run folder
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (ConfigError, EnvironmentUnavailableError, EngineUnavailableError, RequestError):
        if trainer.processes.count == 1:
            trainer.save_now()
        raise
    except OSError as error:
        folder = trainer.folder.path
        if not os.access(folder, os.W_OK | os.X_OK):
            raise StorageError(f"{folder / 'checkpoints'} could not be written ({error}).") from error
        raise
