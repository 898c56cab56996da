"""One run from settings to a trained policy: connect, load, grow and learn, save."""

import json
import logging
import os
from collections.abc import Sequence
from math import prod
from pathlib import Path
from signal import SIGINT
from typing import Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.connect import AnyClient, open_environments
from ..envs.plan import SearchPlan
from ..envs.wire import Step
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
from .grading import grade
from .mix import Mixture
from .run_folder import RunFolder, staged, step_of, write_atomically

log = logging.getLogger(__name__)


def train(config: RunConfig, resume: bool = False) -> Path:
    """Train the policy of `config` and return the run folder.

    Raises ConfigError, ModelError, CheckpointError for what the user can mend before anything is written;
    EnvironmentUnavailableError with a checkpoint where the environment goes away; StorageError on a full disk;
    StoppedError where SIGTERM or SIGUSR1 ended it before its last step; CollapseError where the guard did.
    """
    from .stopping import LeaveNow, StopOnSignal

    stopper = StopOnSignal(config.train)
    with stopper.listening():
        try:
            return _prepare(config, resume, stopper)
        except LeaveNow:
            raise stopped(config, stopper.name) from None


def stopped(config: RunConfig, signal_name: str) -> StoppedError:
    """The error of a run that a signal ended; it says what is left."""
    checkpoint = RunFolder(Path(config.output) / config.name).newest_checkpoint()
    left = f"{checkpoint} holds its last finished step" if checkpoint else "no step was finished yet"
    return StoppedError(f"{signal_name} came before the run had ended; {left}. Go on with --resume.")


def _prepare(config: RunConfig, resume: bool, stopper: Any) -> Path:
    check_shape(config)
    if not resume and (Path(config.output) / config.name / "config.yaml").exists():
        RunFolder.create(config)  # refuses, before minutes are spent on loading
    folder, checkpoint = RunFolder.reopen(config) if resume else (None, None)
    if folder is not None and checkpoint is None:
        log.info("%s was stopped before its first checkpoint and begins again", folder.path)
    with open_environments(config) as client:
        asked = client.questions("train")
        questions = worth_training(config, client, asked)
        if len(questions) < config.train.questions_per_step:
            raise ConfigError(
                f"{len(questions)} training questions are left after train.raw_reward {config.train.raw_reward}, and "
                f"train.questions_per_step is {config.train.questions_per_step}. Lower it, widen train.raw_reward, "
                "or add questions to the train split."
            )
        mixture = Mixture(config, questions) if config.mix is not None else None
        return _train(config, client, asked, questions, folder, checkpoint, stopper, mixture)


def worth_training(config: RunConfig, client: AnyClient, questions: Sequence[Question]) -> list[Question]:
    """The questions whose un-rewritten search is worth `train.raw_reward`; all of them where that is [0, 1].

    Raises EnvironmentUnavailableError where a question could not be scored: a guess would change the training set.
    """
    lowest, highest = config.train.raw_reward
    if (lowest, highest) == (0.0, 1.0):
        return list(questions)
    metric = config.reward.metric
    steps = [Step(question_id=question.id, plan=SearchPlan.of(question.text)) for question in questions]
    results = grade(config, client, steps, "training questions, which train.raw_reward needs,")
    kept = [
        question
        for question, result in zip(questions, results, strict=True)
        if lowest <= result.metrics[metric] <= highest
    ]
    log.info("training on %d of %d questions: raw %s in [%g, %g]", len(kept), len(questions), metric, lowest, highest)
    return kept


def _train(
    config: RunConfig,
    client: AnyClient,
    asked: list[Question],
    questions: list[Question],
    folder: RunFolder | None,
    checkpoint: Path | None,
    stopper: Any,
    mixture: Mixture | None,
) -> Path:
    import torch
    from transformers import set_seed

    from ..rollouts.engines import open_engine
    from ..rollouts.policy import add_lora, load_policy
    from ..rollouts.use import make_grower
    from .fingerprint import fingerprint
    from .packing_check import settle_packing
    from .validation import validation_questions

    validation = validation_questions(config, client, asked)
    environment = client.environment().model_dump(mode="json")
    if folder is not None:
        folder.same_environment(environment)
    set_seed(config.seed)
    model, tokenizer = load_policy(trainable_dtype(config).policy)
    base = fingerprint(model)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    policy = add_lora(model, config.policy)
    settled = settle_packing(config, policy)
    engine, sampler = open_engine(config, policy, tokenizer)
    grower = make_grower(config, client, engine)

    resumed = folder is not None and checkpoint is not None
    folder = folder or RunFolder.create(config)
    folder.same_base(config.policy.model, base, resumed)
    write_atomically(folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
    step = step_of(checkpoint) if checkpoint is not None else 0
    folder.forget_after(step)
    if checkpoint is not None:
        log.info("continuing from step %d (%s)", step, checkpoint)
    elif config.train.warm_start.questions:
        from .warm_start import warm_start

        warm_start(settled, policy, grower, asked, folder)
        with staged(folder.warm) as place:
            policy.save_pretrained(str(place))  # type: ignore[operator]
            tokenizer.save_pretrained(str(place))
    _learn(
        settled, folder, checkpoint, environment, policy, tokenizer, grower, sampler, questions, validation, stopper,
        mixture,
    )  # fmt: skip
    return folder.path


def _learn(
    config: RunConfig,
    folder: RunFolder,
    checkpoint: Path | None,
    environment: dict[str, Any],
    policy: Any,
    tokenizer: Any,
    grower: Any,
    sampler: Any,
    questions: list[Question],
    validation: list[Question],
    stopper: Any,
    mixture: Mixture | None,
) -> None:
    from datasets import Dataset
    from transformers import PrinterCallback

    from .guard import CollapseGuard, best_known
    from .reference import name_reference
    from .stopping import LeaveNow
    from .tracking import open_tracker
    from .trainer import TreeTrainer
    from .validation import Validator
    from .view import open_view
    from .watch import Watcher

    if mixture is not None and checkpoint is not None:
        mixture.load(checkpoint)
    prompts = mixture.slots if mixture is not None else [question.id for question in questions]
    tracker = open_tracker(config, folder.path, environment)
    guard, view = CollapseGuard(config.train.guard), open_view(f"{config.name} · {environment['name']}")
    watcher = Watcher(folder, config, view, guard, tracker)
    name_reference(config, folder, policy)

    def save(place: Path) -> None:
        trainer.save_model(str(place))
        tokenizer.save_pretrained(str(place))

    callbacks = [stopper, watcher]
    if validation:
        validator = Validator(config, folder, validation, grower, stopper, sampler.refresh, save, watcher.validated)
        callbacks.append(validator)
    trainer = TreeTrainer(
        run=config,
        folder=folder,
        grower=grower,
        sampler=sampler,
        questions={question.id: question for question in questions},
        mixture=mixture,
        model=policy,
        args=grpo_config(config, folder.checkpoints),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=callbacks,
    )
    trainer.remove_callback(PrinterCallback)
    watcher.trainer = stopper.trainer = trainer
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (EnvironmentUnavailableError, EngineUnavailableError, RequestError, KeyboardInterrupt, LeaveNow):
        trainer.save_now()
        raise
    except Exception as error:
        if checkpoint is None or trainer.began or isinstance(error, QuerylectError):
            raise
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise CheckpointError(
            f"{checkpoint} could not be continued ({reason}). It is damaged or of another policy; remove it to go on "
            "from the one before, or start a new run."
        ) from error
    finally:
        view.close()
        if tracker is not None:
            tracker.finish()
    if guard.collapsed is not None:
        best = best_known(folder.numbered(), folder.best, folder.read(folder.metrics), config.train.guard.window)
        raise CollapseError(
            f"the policy collapsed and the run stops at step {trainer.state.global_step}: {guard.collapsed.said}; "
            f"{best}. Evaluate it with `querylect eval {folder.path} --checkpoint NAME`; to train on all the same: "
            "--resume train.guard.action=warn."
        )
    if trainer.state.global_step < config.train.steps:
        if stopper.received == SIGINT:
            raise KeyboardInterrupt
        raise LeaveNow
    with staged(folder.final) as place:
        save(place)


def check_shape(config: RunConfig) -> None:
    """Raise ConfigError where the questions of a step cannot be compared or laid out, or the run not be trained."""
    settings, branching = config.train, config.rollout.branching
    processes = os.environ.get("WORLD_SIZE", "1")
    if processes not in ("", "1"):
        raise ConfigError(
            f"WORLD_SIZE is {processes}, and one process trains a run: the others would repeat its steps. Start "
            "querylect without a launcher such as torchrun or accelerate."
        )
    if prod(branching) < 2:
        raise ConfigError(f"rollout.branching {branching} has one leaf; GRPO compares at least two, e.g. [4, 4].")
    if settings.warm_start.questions and len(branching) < 2:
        raise ConfigError(
            f"train.warm_start imitates a second turn, and rollout.branching is {branching}. Use two turns, or set "
            "train.warm_start.questions to 0."
        )
    if config.rollout.engine == "vllm_server" and not config.rollout.server.sync:
        raise ConfigError(
            "rollout.server.sync is false: the server would go on sampling from the policy as it was before the first "
            "step. Set it to true to train; false is for evaluating and rewriting with a policy that the server holds."
        )
    if settings.questions_per_step % settings.questions_per_micro_batch:
        raise ConfigError(
            f"train.questions_per_step {settings.questions_per_step} is no multiple of train.questions_per_micro_batch "
            f"{settings.questions_per_micro_batch}. Make it one."
        )


def trainable_dtype(config: RunConfig) -> RunConfig:
    """Full fine-tuning keeps float32 weights (bfloat16 would round small updates away); LoRA keeps what is set."""
    if config.policy.lora is None and config.policy.dtype == "auto":
        return config.model_copy(update={"policy": config.policy.model_copy(update={"dtype": "float32"})})
    return config


def grpo_config(config: RunConfig, output: Path) -> Any:
    """TRL's settings for this run: one optimizer step per rollout, whole trees in every micro-batch."""
    import torch
    from trl import GRPOConfig

    from ..rollouts.policy import torch_dtype

    leaves = prod(config.rollout.branching)
    settings, rollout = config.train, config.rollout
    cpu = not torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output),
        use_cpu=cpu,
        bf16=torch_dtype(config.policy) == torch.bfloat16,
        seed=config.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=leaves * settings.questions_per_micro_batch,
        gradient_accumulation_steps=settings.questions_per_step // settings.questions_per_micro_batch,
        num_generations=leaves,
        max_completion_length=sum(rollout.new_tokens(turn) for turn in range(1, len(rollout.branching) + 1)),
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        learning_rate=settings.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(settings.lr_schedule, settings.lr_schedule),
        warmup_steps=settings.warmup_steps,
        **settings.trl_settings(),
        router_aux_loss_coef=0.0,  # packed rows return no router logits
        trust_remote_code=config.policy.trust_remote_code,
        max_grad_norm=settings.max_grad_norm,
        logging_nan_inf_filter=False,
        scale_rewards="none",
        shuffle_dataset=config.mix is None,
        gradient_checkpointing=bool(settings.gradient_checkpointing),
        gradient_checkpointing_kwargs={"use_reentrant": settings.gradient_checkpointing == "reentrant"},
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_steps,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=not cpu,
        remove_unused_columns=False,
    )
