"""The peer of the training benchmarks: TRL's own GRPOTrainer, and ours beside it around the same weights."""

import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.rollouts.policy import load_policy
from querylect.train.arguments import grpo_config
from querylect.train.batch import TurnBatch
from querylect.train.step_trees import StepTrees
from querylect.train.trainer import TreeTrainer
from torch import Tensor
from trl import GRPOTrainer

ROWS = 16


def settings(dtype: str, *changes: str) -> RunConfig:
    """SmolLM2-135M, all weights, 16 rows of a question in one micro-batch."""
    changes = ("policy.lora=null", f"policy.dtype={dtype}", "train.questions_per_micro_batch=1", *changes)
    return load_config("hpo", ["train.questions_per_step=1", *changes])


def trainers(config: RunConfig, *, ours: bool = True, **changes: Any) -> tuple[GRPOTrainer, TreeTrainer | None]:
    """TRL's trainer and this project's, with the same model and the same arguments but for `changes`."""
    model, tokenizer = load_policy(config.policy)
    args = grpo_config(config, Path(tempfile.mkdtemp()))
    for name, value in changes.items():
        setattr(args, name, value)
    common: dict[str, Any] = {"model": model, "args": args, "processing_class": tokenizer}
    questions = Dataset.from_dict({"prompt": ["question"]})
    rewards = lambda completions, **_: [0.0] * len(completions)  # noqa: E731
    stock = GRPOTrainer(reward_funcs=rewards, train_dataset=questions, **common)
    tree: Any = None
    if ours:
        trees = StepTrees(config, None, None, [Question("q", "question")])  # type: ignore[arg-type]
        tree = TreeTrainer(run=config, folder=None, step_trees=trees, **common)  # type: ignore[arg-type]
    for trainer in filter(None, (stock, tree)):
        trainer.current_gradient_accumulation_steps = 1
        trainer.model.train()
    return stock, tree


def update(trainer: GRPOTrainer, inputs: dict[str, Tensor] | TurnBatch) -> Tensor:
    """Log-probabilities, loss and backward pass of one micro-batch; returns the loss."""
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    trainer.accelerator.backward(loss)
    return loss.detach()  # type: ignore[no-any-return]


def tree_batch(prompt: int, turns: list[int], observation: int, branching: list[int]) -> dict[str, Tensor]:
    """What TRL's loss is given for one tree of random tokens, a row per leaf; a shared turn counts in its first row."""
    random = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(5, 40000, (count,), generator=random).tolist()  # type: ignore[no-any-return]

    rows: list[tuple[list[int], list[int], list[float]]] = [([], [], [])]  # completion ids, loss mask, advantages
    for turn, (length, width) in enumerate(zip(turns, branching, strict=True)):
        grown = []
        for completion_ids, loss_mask, advantages in rows:
            observed = ids(observation) if turn else []
            for sample in range(width):
                prior_mask = loss_mask if sample == 0 else [0] * len(loss_mask)
                advantage = float(torch.randn((), generator=random))
                grown.append(
                    (
                        completion_ids + observed + ids(length),
                        prior_mask + [0] * len(observed) + [1] * length,
                        advantages + [0.0] * len(observed) + [advantage] * length,
                    )
                )
        rows = grown
    root = torch.tensor([ids(prompt)] * len(rows))
    completion, mask, values = (torch.tensor(column) for column in zip(*rows, strict=True))
    return {
        "prompt_ids": root,
        "prompt_mask": torch.ones_like(root),
        "completion_ids": completion,
        "completion_mask": torch.ones_like(completion),
        "tool_mask": mask,
        "advantages": values * mask,
        "sampling_per_token_logps": torch.full(mask.shape, torch.nan),  # random tokens: sampled by nobody
        "num_items_in_batch": mask.sum(),
    }


def turns_of(batch: dict[str, Tensor]) -> TurnBatch:
    """The same tree for our trainer: every turn of a row that counts there, with the advantage of its first token."""
    ids, advantages, lengths, completions = [], [], [], []
    prompt = batch["prompt_ids"].shape[1]
    for root, completion, mask, values in zip(
        batch["prompt_ids"], batch["completion_ids"], batch["tool_mask"], batch["advantages"], strict=True
    ):
        edges = torch.nn.functional.pad(mask, (1, 1)).diff().nonzero()[:, 0].tolist()
        for start, end in zip(edges[::2], edges[1::2], strict=True):
            ids += [root, completion[:end]]
            lengths.append(prompt + end)
            completions.append(end - start)
            advantages.append(values[start:end])
    return TurnBatch(
        ids=torch.cat(ids),
        lengths=torch.tensor(lengths),
        completions=torch.tensor(completions),
        advantages=torch.stack([values[0] for values in advantages]),
        leaves=torch.ones(len(lengths)),
        sampler_logps=torch.full((sum(completions),), torch.nan),
        paths=torch.tensor(float(len(lengths))),
    )
