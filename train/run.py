"""A training run: connect to the environment, load the policy, train, save."""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from signal import SIGINT
from typing import TYPE_CHECKING, Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.client.multi import MixedClient
from ..envs.plan import SearchPlan
from ..envs.server.schemas import Step
from ..errors import (
    CheckpointError,
    CollapseError,
    ConfigError,
    EngineUnavailableError,
    EnvironmentUnavailableError,
    QuerylectError,
    RequestError,
    StoppedError,
)
from ..provenance import this_start
from ..rewriters.base import Rewriter
from ..rollouts.engines.base import Weights
from .arguments import check_deepspeed_device, check_shape, check_trained_dtype, grpo_config, trainable_dtype
from .distributed.processes import Processes, launched
from .distributed.zero import zero_stage
from .grading import grade
from .mix import Mixture
from .run_folder import RunFolder, staged, step_of, write_atomically
from .tracking import check_report_to

if TYPE_CHECKING:
    from ..rollouts.grow import Grower
    from .distributed.stopping import StopOnSignal

log = logging.getLogger(__name__)


def train(config: RunConfig, resume: bool = False) -> Path:
    """Train the policy of `config` and return the run folder; every process of a launcher calls this.

    Raises ConfigError, ModelError or CheckpointError for problems found before anything is written;
    EnvironmentUnavailableError, after saving a checkpoint, if the environment goes away; StorageError on a full disk;
    StoppedError if SIGTERM or SIGUSR1 ended the run early; CollapseError if the guard did.
    """
    from .distributed.abort import AbortStep
    from .distributed.collectives import stopper_of

    with launched() as processes:
        if not processes.is_first:
            logging.getLogger(__package__.partition(".")[0]).setLevel(logging.WARNING)
        stopper = stopper_of(config, processes)
        with stopper.listening():
            try:
                return _prepare(config, resume, processes, stopper)
            except AbortStep:
                error = stopped(config, stopper.name)
                error.already_reported = not processes.is_first
                raise error from None


def stopped(config: RunConfig, signal_name: str) -> StoppedError:
    """The error of a run that a signal ended; its message names the checkpoint to resume from."""
    checkpoint = RunFolder(Path(config.output) / config.name).newest_checkpoint(config)
    state = f"{checkpoint} holds its last finished step" if checkpoint else "no step was finished yet"
    return StoppedError(f"{signal_name} came before the run had ended; {state}. Go on with --resume.")


def _prepare(config: RunConfig, resume: bool, processes: Processes, stopper: "StopOnSignal") -> Path:
    from ..rollouts.build import rewriter_for
    from .distributed.collectives import shared_environment

    def reopen() -> tuple[RunFolder | None, Path | None]:
        if not resume and (Path(config.output) / config.name / "config.yaml").exists():
            RunFolder.create(config)  # raises early, before the models are loaded
        return RunFolder.reopen(config) if resume else (None, None)

    processes.together(lambda: check_shape(config, processes.count))
    processes.together(lambda: check_trained_dtype(config))
    processes.together(lambda: check_deepspeed_device(config))
    processes.together(lambda: check_report_to(config))
    folder, checkpoint = processes.first(reopen)
    if folder is not None and checkpoint is None:
        log.info("%s was stopped before its first checkpoint and begins again", folder.path)
    with shared_environment(config, processes) as client:
        train_questions = processes.together(lambda: client.questions("train"))
        questions = processes.first(lambda: worth_training(config, client, train_questions))
        rewriter = processes.together(lambda: rewriter_for(config, client))
        questions = _filter_by_first_stage(config, processes, rewriter, questions)
        mixture = processes.together(lambda: _make_mixture(config, questions))
        return _train(
            config, processes, client, train_questions, questions, rewriter, mixture, folder, checkpoint, stopper
        )


def _filter_by_first_stage(
    config: RunConfig, processes: Processes, rewriter: Rewriter, questions: Sequence[Question]
) -> list[Question]:
    """Run the rewriter's first stage, if it has one, and drop questions without an answer. Collective."""
    from ..rollouts.first_stage import ask_first_stage

    def ask() -> list[Question]:
        return ask_first_stage(rewriter, questions, config.policy, processes.first)

    return processes.together(ask, interruptible=False)


def _make_mixture(config: RunConfig, questions: Sequence[Question]) -> Mixture | None:
    """The Mixture of a run with a mix or a curriculum; None if TRL's shuffled passes are used.

    Raises ConfigError if there are fewer questions than a step needs.
    """
    if len(questions) < config.train.questions_per_step:
        raise ConfigError(
            f"{len(questions)} training questions are left after train.raw_reward {config.train.raw_reward}, and "
            f"train.questions_per_step is {config.train.questions_per_step}. Lower it, widen train.raw_reward, "
            "or add questions to the train split."
        )
    return Mixture(config, questions) if config.draws_by_curriculum else None


def worth_training(config: RunConfig, client: EnvironmentApi, questions: Sequence[Question]) -> list[Question]:
    """The questions whose unrewritten search scores within `train.raw_reward`; all of them if that is [0, 1].

    Raises EnvironmentUnavailableError if a question could not be scored: a guess would change the training set.
    """
    lowest, highest = config.train.raw_reward
    if (lowest, highest) == (0.0, 1.0):
        return list(questions)
    metric = config.reward.metric
    steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in questions]
    results = grade(config, client, steps, "training questions, which train.raw_reward needs,")
    selected = [
        question
        for question, result in zip(questions, results, strict=True)
        if lowest <= result.metrics[metric] <= highest
    ]
    log.info(
        "training on %d of %d questions: raw %s in [%g, %g]", len(selected), len(questions), metric, lowest, highest
    )
    return selected


def _train(
    config: RunConfig,
    processes: Processes,
    client: EnvironmentApi,
    train_questions: list[Question],
    questions: list[Question],
    rewriter: Rewriter,
    mixture: Mixture | None,
    folder: RunFolder | None,
    checkpoint: Path | None,
    stopper: "StopOnSignal",
) -> Path:
    from transformers import set_seed

    from ..rollouts.build import make_grower
    from ..rollouts.engines.open import open_engine
    from ..rollouts.fingerprint import fingerprint
    from ..rollouts.policy import add_lora, cast_adapters, load_policy
    from .packing.check import settle_packing
    from .validation import validation_questions

    def describe_environment() -> dict[str, Any]:
        environment = client.environment().model_dump(mode="json")
        if isinstance(client, MixedClient):
            members = client.environments()
            environment["environments"] = {name: info.model_dump(mode="json") for name, info in members.items()}
        if folder is not None:
            folder.same_environment(environment)
        return environment

    # DeepSpeed is set up later: it would shard the weights while loading, but every process needs all of them once,
    # for the warm start and for its sampling copy.
    def load() -> _Loaded:
        set_seed(config.seed)
        model, tokenizer = load_policy(trainable_dtype(config).policy)
        base = fingerprint(model) if processes.is_first else ""
        model.to(processes.device)
        policy = add_lora(model, config.policy)
        packed_config = settle_packing(config, policy)
        engine, sampler = open_engine(config, policy, tokenizer, apart=zero == 3)
        grower = make_grower(config, client, engine, rewriter=rewriter)
        return _Loaded(packed_config, policy, tokenizer, sampler, grower, base)

    def open_folder() -> RunFolder:
        run_folder = folder or RunFolder.create(config)
        run_folder.same_base(config.policy.model, loaded.base, folder is not None and checkpoint is not None)
        write_atomically(run_folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        run_folder.forget_after(step)
        run_folder.note_start(start)
        return run_folder

    def warm() -> None:
        from .warm_start import warm_start

        # Titles may help questions that fail on their own; expert iteration uses the questions that GRPO trains on.
        pool = train_questions if config.train.warm_start.kind == "titles" else questions
        warm_start(loaded.config, loaded.policy, loaded.grower, loaded.sampler, pool, run_folder)
        with staged(run_folder.warm) as path:
            loaded.policy.save_pretrained(str(path))
            loaded.tokenizer.save_pretrained(str(path))

    zero = zero_stage()
    step = step_of(checkpoint) if checkpoint is not None else 0
    validation = processes.first(lambda: validation_questions(config, client, train_questions))
    validation = _filter_by_first_stage(config, processes, rewriter, validation)
    environment = processes.first(describe_environment)
    start = processes.first(lambda: this_start(step, environment))
    loaded = processes.together(load)
    run_folder = processes.first(open_folder)
    if checkpoint is not None:
        log.info("continuing from step %d (%s)", step, checkpoint)
    elif config.train.warm_start.questions:
        processes.first(warm)
        processes.share_weights(loaded.policy)
    if zero == 3:
        cast_adapters(loaded.policy, config.policy)
    with ExitStack() as cleanup:
        _learn(loaded, processes, run_folder, checkpoint, start, questions, mixture, validation, stopper, cleanup)
    return run_folder.path


@dataclass(frozen=True, slots=True)
class _Loaded:
    config: RunConfig
    """The run's settings, with train.packing resolved to true or false for this policy."""
    policy: Any
    tokenizer: Any
    sampler: Weights
    grower: "Grower"
    base: str
    """Fingerprint of the weights before training, in the first process."""


def _learn(
    loaded: _Loaded,
    processes: Processes,
    folder: RunFolder,
    checkpoint: Path | None,
    start: dict[str, Any],
    questions: list[Question],
    mixture: Mixture | None,
    validation: list[Question],
    stopper: "StopOnSignal",
    cleanup: ExitStack,
) -> None:
    """Train and save. `cleanup` closes view and trackers at the very end, also after an error."""
    from datasets import Dataset
    from torch import OutOfMemoryError
    from transformers import PrinterCallback

    from .distributed.abort import AbortStep
    from .distributed.collectives import collective_callbacks
    from .guard import CollapseGuard, best_known, logp_bound
    from .tracking import CLOSING_SECONDS, STOPPING_SECONDS, open_trackers
    from .trainer import TreeTrainer
    from .validation import Validator
    from .view import View, open_view
    from .warm_start import name_reference
    from .watch import Watcher
    from .weight_changes import WeightChanges

    config, grower, sampler = loaded.config, loaded.grower, loaded.sampler
    if mixture is not None and checkpoint is not None:
        processes.together(lambda: mixture.load(checkpoint))
    prompts = mixture.slots if mixture is not None else [question.id for question in questions]

    def watch() -> tuple[View | None, Watcher | None]:
        name_reference(config, folder, loaded.policy)
        if not processes.is_first:
            return None, None
        trackers = open_trackers(config, folder.path, start, start["step"])
        cleanup.callback(lambda: trackers.finish(CLOSING_SECONDS if stopper.received is None else STOPPING_SECONDS))
        view = open_view(f"{config.name} · {start['environment']['name']}")
        cleanup.callback(view.close)
        return view, Watcher(folder, config, view, guard, trackers, changes)

    arguments = grpo_config(config, folder.checkpoints, processes.count)
    bound = logp_bound(config, "bfloat16" if arguments.bf16 else "float32")
    guard = CollapseGuard(config.train.guard, bound, config.train.learning_rate)
    changes = WeightChanges(config.seed, processes.all)
    view, watcher = processes.together(watch)

    def save(path: Path) -> None:
        trainer.save_model(str(path))
        if processes.is_first:
            loaded.tokenizer.save_pretrained(str(path))

    def refuse_collapse() -> None:
        if guard.collapsed is not None:
            best = best_known(folder.numbered(), folder.best, folder.read(folder.metrics), config.train.guard.window)
            sign = guard.collapsed
            remedy = f" {sign.remedy}." if sign.remedy else ""
            raise CollapseError(
                f"{sign.meaning} and the run stops at step {trainer.state.global_step}: {sign.said}; {best}.{remedy} "
                f"Evaluate it with `querylect eval {folder.path} --checkpoint NAME`; to train on all the same: "
                "--resume train.guard.action=warn."
            )

    callbacks = [changes, *collective_callbacks(processes, stopper, watcher)]
    if validation:
        on_record = watcher.validated if watcher is not None else None
        callbacks.append(Validator(config, folder, validation, grower, stopper, sampler, save, on_record, processes))
    trainer = TreeTrainer(
        run=config,
        folder=folder,
        grower=grower,
        sampler=sampler,
        questions={question.id: question for question in questions},
        mixture=mixture,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processes=processes,
        model=loaded.policy,
        args=arguments,
        processing_class=loaded.tokenizer,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    stopper.trainer = changes.trainer = trainer
    if watcher is not None:
        watcher.trainer = trainer
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (
        ConfigError,
        EnvironmentUnavailableError,
        EngineUnavailableError,
        RequestError,
        KeyboardInterrupt,
        AbortStep,
    ):
        with stopper.to_the_end():
            trainer.save_now()
        raise
    except Exception as error:
        if checkpoint is None or trainer.began or isinstance(error, (QuerylectError, MemoryError, OutOfMemoryError)):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"{checkpoint} could not be continued ({reason}). It is damaged or of another policy; remove it to go on "
            "from the one before, or start a new run."
        ) from error
    finally:
        if view is not None:
            view.close()
    processes.first(refuse_collapse)
    if trainer.state.global_step < config.train.steps:
        if stopper.received == SIGINT:
            raise KeyboardInterrupt
        raise AbortStep
    with processes.staged(folder.final) as path:
        save(path)
