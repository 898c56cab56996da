"""A training run: connect to the environment, load the policy, train, save."""

import logging
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, redirect_stdout
from pathlib import Path
from signal import SIGINT, Signals
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ..configs.schema import RunConfig, environments
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import MixedClient
from ..errors import (
    ConfigError,
    EngineUnavailableError,
    EnvironmentUnavailableError,
    RequestError,
    StoppedError,
    StorageError,
)
from ..provenance import Start, this_start
from ..storage import atomic_folder, only_command
from .arguments import check_combinations, grpo_config, trainable_dtype
from .processes import Processes, launched, shared_environment
from .questions import TrainingData, prepare_data
from .run_folder import RunFolder, remove_traces, step_of
from .sharding import splits_weights, zero_stage

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from .stopping import StopOnSignal
    from .trainer import TreeTrainer

log = logging.getLogger(__name__)


def train(
    config: RunConfig, resume: bool = False, trust: bool = False, callbacks: Sequence["TrainerCallback"] = ()
) -> Path:
    """Train the policy of `config` and return the run folder; every process of a launcher calls this.

    `trust`: resume also a run of another user with DeepSpeed's pickles. `callbacks` are
    called by the trainer of every process.

    Raises ConfigError, ModelError, IndexFolderError, DataError or CheckpointError for problems found before anything is
    written; EnvironmentUnavailableError, after saving a checkpoint, if the environment goes away; StorageError if
    another command is at work in the run folder, on a full disk and where the folder is gone; StoppedError if SIGTERM,
    SIGHUP or SIGUSR1 ended the run early.
    """
    with launched() as processes, ExitStack() as stack:
        if not processes.is_main_process:
            logging.getLogger(__package__.partition(".")[0]).setLevel(logging.WARNING)
        # What takes no model, service or PyTorch to know comes before they are imported.
        check_combinations(config.policy, config.rollout, config.train, processes.count)
        folder, on_main = RunFolder(config.run_folder), processes.on_main_process
        on_main(lambda: None if resume else folder.refuse_existing())
        on_main(lambda: stack.enter_context(only_command(folder.path)))
        checkpoint = on_main(lambda: folder.reopen(config, trust) if resume else None)
        from ..rollouts.tree_sampler import rewriter_for
        from .answers import rewarding
        from .stopping import StopOnSignal

        stopper = StopOnSignal(processes)
        stack.enter_context(stopper.listening())
        environment = stack.enter_context(shared_environment(environments(config), processes))
        stopper.at_signal = environment.give_up_soon  # a cluster's signal ends the service too
        client = stack.enter_context(rewarding(environment, config.reward, config.train, config.env, config.seed))
        rewriter = rewriter_for(config.rewriter, config.mix, client, config.search_depth)
        data = prepare_data(config, rewriter, processes, client)
        served = on_main(lambda: _describe_environment(client))
        on_main(lambda: folder.same_environment(served) if resume else None)
        provenance = on_main(lambda: this_start(step_of(checkpoint), served))

        def write_start(base: str) -> None:
            if not resume:
                folder.create(config.model_dump(mode="json"))
            folder.same_base(config.policy.model, base, checkpoint is not None)
            folder.write("environment.json", served)
            folder.forget_after(step_of(checkpoint))
            folder.note_start(provenance)

        trainer = _make_trainer(config, processes, folder, client, data, checkpoint, write_start)
        for callback in (*_callbacks(trainer, data, provenance, stack), *callbacks, stopper):
            trainer.add_callback(callback)
        _run_trainer(trainer, checkpoint)
        if trainer.state.global_step < config.train.steps:
            raise _stopped(trainer, stopper)
        with processes.atomic_folder(folder.final) as path:
            trainer.save_policy(path)
        return folder.path


def _describe_environment(client: EnvironmentApi) -> dict[str, JsonValue]:
    """What environment.json holds."""
    from .answers import AnswerClient

    environment = client.info().model_dump(mode="json")
    if isinstance(client, MixedClient):
        members = client.infos()
        environment["environments"] = {name: info.model_dump(mode="json") for name, info in members.items()}
    if isinstance(client, AnswerClient):
        environment["answers"] = client.identity
    return environment


def _make_trainer(
    config: RunConfig,
    processes: Processes,
    folder: RunFolder,
    client: EnvironmentApi,
    data: TrainingData,
    checkpoint: Path | None,
    write_start: Callable[[str], None],
) -> "TreeTrainer":
    """Load the policy and its engine, and run the warm start of a new run. `write_start` gets the fingerprint of the
    loaded weights, before any file is written.

    DeepSpeed and FSDP are set up by the trainer: they would shard the weights while loading, but every process needs
    all of them once, for the warm start and for its sampling copy.
    """
    from transformers import PrinterCallback, set_seed

    from ..rollouts.engines.open import open_engine
    from ..rollouts.policy import add_lora, cast_adapters, fingerprint, load_policy, move_to
    from ..rollouts.tree_sampler import make_tree_sampler
    from .memory import resolve_gradient_checkpointing
    from .packing import refuse_unpackable
    from .step_trees import StepTrees
    from .trainer import TreeTrainer
    from .warm_start import warm_start

    on_main = processes.on_main_process
    set_seed(config.seed)
    loaded, tokenizer = load_policy(trainable_dtype(config.policy, config.train))
    base = on_main(lambda: fingerprint(loaded))
    move_to(loaded, processes.device)
    model = add_lora(loaded, config.policy)
    if config.train.packing:
        refuse_unpackable(model, config.rollout.longest_sequence)
    checkpointing = resolve_gradient_checkpointing(config, model, processes)
    settings = config.train.model_copy(update={"gradient_checkpointing": checkpointing})
    separate = splits_weights() or settings.staleness > 0
    engine, weight_sync = open_engine(config.policy, config.rollout, config.seed, model, tokenizer, separate)
    sampler = make_tree_sampler(engine, data.rewriter, client, config.rollout, config.reward)
    resolved = config.model_copy(update={"train": settings})

    def start_warm() -> None:
        # Titles may help questions that fail on their own; expert iteration uses the questions that GRPO trains on.
        pool = data.train_split if len(config.rollout.branching) > 1 else data.questions
        warm_start(resolved, model, sampler, weight_sync, pool, folder)
        with atomic_folder(folder.warm) as path:
            model.save_pretrained(str(path))
            tokenizer.save_pretrained(str(path))
            remove_traces(path, config.policy.model)

    on_main(lambda: write_start(base))
    if checkpoint is not None:
        log.info("continuing from step %d (%s)", step_of(checkpoint), checkpoint)
    elif settings.warm_start.questions:
        on_main(start_warm)
        processes.broadcast_weights(model)
    if settings.warm_start.questions and settings.beta > 0 and config.policy.lora is None:
        model.config.name_or_path = str(folder.warm)  # where the trainer loads the reference model from
    if zero_stage() == 3:
        cast_adapters(model, config.policy)
    weight_sync.sleep()  # vLLM is awake since it was started; what the trainer loads takes its place
    trainer = TreeTrainer(
        folder=folder,
        step_trees=StepTrees(resolved, sampler, weight_sync, data.questions, data.order, processes),
        model=model,
        args=grpo_config(resolved, folder.checkpoints, processes.count),
        processing_class=tokenizer,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def _callbacks(
    trainer: "TreeTrainer", data: TrainingData, provenance: Start, cleanup: ExitStack
) -> Iterator["TrainerCallback"]:
    """In the order in which they are called: trackers come after the validation of the last step."""
    from .metrics_callback import MetricsCallback, WeightChanges
    from .tracking import tracker_callbacks
    from .validation import Validator

    if trainer.step_trees.prefetcher is not None:
        cleanup.callback(trainer.step_trees.prefetcher.close)
    changes = WeightChanges(trainer)
    yield changes
    if trainer.processes.is_main_process:
        metrics = MetricsCallback(trainer, changes)
        cleanup.callback(metrics.close)
        yield metrics
    if data.validation:
        yield Validator(trainer, data.validation)
    if trainer.processes.is_main_process:
        yield from tracker_callbacks(trainer, provenance, cleanup)


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


def _stopped(trainer: "TreeTrainer", stopper: "StopOnSignal") -> BaseException:
    """The error of a run that a signal ended, or a callback. Collective."""
    if stopper.stopped_by == SIGINT:
        return KeyboardInterrupt()
    checkpoint = trainer.processes.on_main_process(trainer.folder.newest_checkpoint)
    state = f"{checkpoint} holds its last finished step" if checkpoint else "there is no checkpoint yet"
    name = "a callback" if stopper.stopped_by is None else Signals(stopper.stopped_by).name
    error = StoppedError(f"{name} came before the run had ended; {state}. Go on with --resume.")
    error.already_reported = not trainer.processes.is_main_process
    return error
