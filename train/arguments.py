"""Translate the settings of a run into TRL's GRPOConfig, and reject combinations that cannot be trained."""

import os
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.schema import PolicyConfig, RolloutConfig, RunConfig, TrainConfig
from ..errors import ConfigError
from .sharding import keeps_float32_weights, uses_deepspeed, uses_fsdp

if TYPE_CHECKING:
    from trl import GRPOConfig


def check_combinations(
    policy: PolicyConfig, rollout: RolloutConfig, settings: TrainConfig, processes: int, sharded: bool = False
) -> None:
    """Raise ConfigError where settings contradict each other or the processes that train, whatever the machine.

    `sharded`: a job will start them with a file of configs/deepspeed, which keeps float32 copies of bfloat16 weights.
    Half a unit in the last place of a bfloat16 weight of .02 is 6e-5; an AdamW step at a learning rate of 1e-6 is
    sixty times smaller, so without them it is rounded away and the weights hardly move.
    """
    turns, engine, warm = len(rollout.branching), rollout.engine, settings.warm_start.questions
    multiple = settings.questions_per_micro_batch * processes
    if prod(rollout.branching) < 2:
        raise ConfigError(
            f"rollout.branching {rollout.branching} has one leaf; GRPO compares at least two, e.g. [4, 4]."
        )
    if (earlier := rollout.earlier_tokens(turns)) >= rollout.max_prompt_tokens:
        raise ConfigError(
            f"rollout.max_prompt_tokens is {rollout.max_prompt_tokens}, and in the prompt of turn {turns} earlier "
            f"answers and documents alone may take {earlier} (rollout.max_new_tokens, documents, document_tokens, "
            "observation_tokens): the run would end in the middle. Raise it, or lower one of these."
        )
    if settings.questions_per_step % multiple:
        raise ConfigError(
            f"train.questions_per_step {settings.questions_per_step} is shared by {processes} processes with "
            f"train.questions_per_micro_batch {settings.questions_per_micro_batch}: make it a multiple of {multiple}."
        )
    if warm and turns == 1 and processes > 1 and engine == "vllm_server":
        raise ConfigError(
            f"expert iteration samples in the main process of {processes}, and rollout.engine vllm_server is shared by "
            "all of them. Use rollout.engine=transformers or vllm, or set train.warm_start.questions to 0."
        )
    if settings.staleness and (rollout.top_p < 1 or engine == "vllm"):
        raise ConfigError(
            f"train.staleness is {settings.staleness}, which clips the ratio to a sampler on other processors: with "
            f"rollout.top_p 1 instead of {rollout.top_p:g}, and another rollout.engine than vllm."
        )
    if trains_bfloat16(policy) and (warm or not (sharded or uses_deepspeed())):
        raise ConfigError(
            "policy.dtype is bfloat16 and policy.lora is null: weights would be trained without float32 copies, and a "
            f"step at train.learning_rate {settings.learning_rate:g} rounds away. Set policy.dtype=auto or "
            "policy.dtype=float32, train LoRA (policy.lora={}), or launch under DeepSpeed ZeRO "
            "(configs/deepspeed/zero2.json) with train.warm_start.questions=0."
        )
    if policy.dtype != "float32" and uses_deepspeed() and not keeps_float32_weights():
        raise ConfigError(
            "ZeRO stage 0 and bf16.bf16_master_weights_and_grads step bfloat16 weights without float32 copies, and a "
            f"step at train.learning_rate {settings.learning_rate:g} rounds away. Launch with "
            "configs/deepspeed/zero2.json, or set policy.dtype=float32."
        )


def trains_bfloat16(policy: PolicyConfig) -> bool:
    """Whether bfloat16 weights are trained, which needs the float32 copies of DeepSpeed ZeRO."""
    return policy.dtype == "bfloat16" and policy.lora is None


def trainable_dtype(policy: PolicyConfig, settings: TrainConfig) -> PolicyConfig:
    """The settings to load the policy with. With `dtype: auto`, full training loads float32 weights; frozen weights
    under LoRA have the dtype that the device computes in, and so have those that DeepSpeed would cast to it, unless
    the warm start trains them before."""
    cast_later = uses_deepspeed() and not settings.warm_start.questions
    if policy.lora is None and policy.dtype == "auto" and not cast_later:
        return policy.model_copy(update={"dtype": "float32"})
    return policy


def grpo_config(config: RunConfig, output: Path, processes: int = 1) -> "GRPOConfig":
    """TRL's settings for this run, with its checkpoints in `output`. Every micro-batch of a process holds complete
    trees."""
    import torch
    from trl import GRPOConfig

    from ..rollouts.policy import torch_dtype

    settings, rollout = config.train, config.rollout
    leaves = prod(rollout.branching)
    cpu = not torch.cuda.is_available()
    return GRPOConfig(
        output_dir=str(output / ".partial"),  # where the trainer moves whole checkpoints
        use_cpu=cpu and not uses_deepspeed(),  # with use_cpu set, accelerate ignores DeepSpeed
        ddp_backend="gloo" if cpu and processes > 1 else None,
        ddp_find_unused_parameters=False if processes > 1 else None,
        # under FSDP gradients are reduced after every micro-batch, instead of being kept whole until the last
        accelerator_config={"gradient_accumulation_kwargs": {"sync_each_batch": True}} if uses_fsdp() else None,
        bf16=torch_dtype(config.policy) == torch.bfloat16,
        seed=config.seed,
        max_steps=settings.steps,
        per_device_train_batch_size=leaves * settings.questions_per_micro_batch,
        gradient_accumulation_steps=settings.questions_per_step // (settings.questions_per_micro_batch * processes),
        num_generations=leaves,
        max_completion_length=rollout.max_new_tokens,
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        learning_rate=settings.learning_rate,
        lr_scheduler_type=settings.lr_schedule,
        beta=settings.beta,
        use_bias_correction_kl=settings.use_bias_correction_kl,
        num_iterations=settings.num_iterations,
        epsilon=settings.epsilon,
        epsilon_high=settings.epsilon_high,
        importance_sampling_level=settings.importance_sampling_level,
        loss_type=settings.loss_type,
        entropy_coef=settings.entropy_coef,
        router_aux_loss_coef=0.0,  # packed rows return no router logits
        logging_nan_inf_filter=False,
        scale_rewards="none",
        gradient_checkpointing=settings.gradient_checkpointing is True,
        gradient_checkpointing_kwargs={"use_reentrant": False},
        optim="adamw_torch",
        logging_steps=1,
        save_strategy="steps",
        save_steps=-(-settings.save_steps // settings.num_iterations) * settings.num_iterations,  # whole rollouts
        report_to=[],  # tracker_callbacks (tracking.py)
        run_name=config.name,
        project=os.environ.get("WANDB_PROJECT", "querylect"),  # in trackers
        hub_private_repo=True,
        trackio_static_space_id=False,
        disable_tqdm=True,
        dataloader_pin_memory=not cpu,
        remove_unused_columns=False,
    )
