"""One run from settings to a trained policy: connect, load, grow and learn, save."""

import json
import logging
from math import prod
from pathlib import Path
from typing import Any

from ..configs.schema import RunConfig
from ..data.types import Question
from ..envs.client import SyncEnvironmentClient
from ..envs.connect import open_environment
from ..errors import CheckpointError, ConfigError, EnvironmentUnavailableError
from .run_folder import RunFolder, staged, write_atomically

log = logging.getLogger(__name__)


def train(config: RunConfig, resume: bool = False) -> Path:
    """Train the policy of `config` and return the run folder.

    Raises ConfigError, ModelError, CheckpointError for what the user can mend before anything is written;
    EnvironmentUnavailableError with a checkpoint where the environment goes away; StorageError on a full disk.
    """
    if not resume and (Path(config.output) / config.name / "config.yaml").exists():
        RunFolder.create(config)  # refuses, before minutes are spent on loading
    folder, checkpoint = RunFolder.reopen(config) if resume else (None, None)
    with open_environment(config) as client:
        questions = client.questions("train")
        if len(questions) < config.train.questions_per_step:
            raise ConfigError(
                f"the environment has {len(questions)} training questions, train.questions_per_step is "
                f"{config.train.questions_per_step}. Lower it, or add questions to the train split."
            )
        return _train(config, client, questions, folder, checkpoint)


def _train(
    config: RunConfig,
    client: SyncEnvironmentClient,
    questions: list[Question],
    folder: RunFolder | None,
    checkpoint: Path | None,
) -> Path:
    import torch
    from transformers import set_seed

    from ..rollouts.policy import MergedCopy, add_lora, load_policy
    from ..rollouts.use import make_grower

    environment = client.environment().model_dump(mode="json")
    set_seed(config.seed)
    model, tokenizer = load_policy(trainable_dtype(config).policy)
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    policy = add_lora(model, config.policy)
    sampler = MergedCopy(policy)
    grower = make_grower(config, client, sampler.model, tokenizer)

    folder = folder or RunFolder.create(config)
    write_atomically(folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
    if checkpoint is not None:
        step = int(json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))["global_step"])
        folder.forget_after(step)
        log.info("continuing from step %d (%s)", step, checkpoint)
    _learn(config, folder, checkpoint, environment, policy, tokenizer, grower, sampler, questions)
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
) -> None:
    from datasets import Dataset

    from .tracking import open_tracker
    from .trainer import TreeTrainer
    from .watch import StopOnSignal, Watcher

    tracker = open_tracker(config, folder.path, environment)
    watcher, stopper = Watcher(folder, config.train.log_rollouts, tracker), StopOnSignal()
    trainer = TreeTrainer(
        run=config,
        folder=folder,
        grower=grower,
        sampler=sampler,
        questions={question.id: question for question in questions},
        model=policy,
        args=grpo_config(config, folder.checkpoints),
        train_dataset=Dataset.from_dict({"prompt": [question.id for question in questions]}),
        processing_class=tokenizer,
        callbacks=[watcher, stopper],
    )
    watcher.trainer = trainer
    try:
        trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    except (EnvironmentUnavailableError, KeyboardInterrupt):
        trainer.save_now()
        raise
    except (RuntimeError, ValueError) as error:
        if checkpoint is not None and trainer.state.global_step == 0:
            raise CheckpointError(
                f"{checkpoint} could not be continued ({error}). It is incomplete or of another policy; remove it to "
                "go on from the one before, or start a new run."
            ) from error
        raise
    finally:
        watcher.close()
        stopper.restore()
        if tracker is not None:
            tracker.finish()
    if stopper.received is None:
        with staged(folder.final) as place:
            trainer.save_model(str(place))
            tokenizer.save_pretrained(str(place))


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
    if leaves < 2:
        raise ConfigError(
            f"rollout.branching {rollout.branching} has one leaf; GRPO compares at least two, e.g. [4, 4]."
        )
    if settings.questions_per_step % settings.questions_per_micro_batch:
        raise ConfigError(
            f"train.questions_per_step {settings.questions_per_step} is no multiple of train.questions_per_micro_batch "
            f"{settings.questions_per_micro_batch}. Make it one."
        )
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
        max_completion_length=len(rollout.branching) * rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        learning_rate=settings.learning_rate,
        lr_scheduler_type={"constant": "constant_with_warmup"}.get(settings.lr_schedule, settings.lr_schedule),
        warmup_steps=settings.warmup_steps,
        beta=settings.beta,
        epsilon=settings.epsilon,
        loss_type=settings.loss_type,
        entropy_coef=settings.entropy_coef,
        max_grad_norm=settings.max_grad_norm,
        scale_rewards="none",
        gradient_checkpointing=False,
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="steps",
        save_steps=settings.save_steps,
        report_to=[],
        disable_tqdm=True,
        dataloader_pin_memory=not cpu,
        remove_unused_columns=False,
    )
