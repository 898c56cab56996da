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
from querylect.train.loss import TurnBatch
from querylect.train.processes import Processes
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
    prompts = Dataset.from_dict({"prompt": ["question"]})
    stock = GRPOTrainer(reward_funcs=lambda ids, **_: [0.0] * len(ids), train_dataset=prompts, **common)
    tree: Any = None
    if ours:
        questions, order = [Question("q", "question")], ["q"]
        trees = StepTrees(config, None, None, questions, order, Processes())  # type: ignore[arg-type]
        tree = TreeTrainer(folder=None, step_trees=trees, **common)  # type: ignore[arg-type]
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


def tree_batch(
    prompt: int, turns: list[int], observation: int, branching: list[int]
) -> tuple[dict[str, Tensor], TurnBatch]:
    """One tree of random tokens as TRL's loss is given it, a row per leaf in which only the first counts a shared turn,
    and as ours is, a turn per node."""
    random = torch.Generator().manual_seed(0)

    def ids(count: int) -> Tensor:
        return torch.randint(5, 40000, (count,), generator=random)

    rows = [(ids(prompt), torch.zeros(prompt))]  # ids, advantages where they count, else 0
    nodes = []
    for turn, (length, width) in enumerate(zip(turns, branching, strict=True)):
        grown = []
        for before, counted in rows:
            shown = torch.cat([before, ids(observation if turn else 0)])
            for sample in range(width):
                advantage, row = torch.randn((), generator=random), torch.cat([shown, ids(length)])
                values = torch.zeros(len(row))
                values[: len(before)] = counted if sample == 0 else 0
                values[-length:] = advantage
                nodes.append((row, length, advantage))
                grown.append((row, values))
        rows = grown
    sequences, advantages = (torch.stack(column) for column in zip(*rows, strict=True))
    mask = (advantages[:, prompt:] != 0).long()
    stock = {
        "prompt_ids": sequences[:, :prompt],
        "prompt_mask": torch.ones_like(sequences[:, :prompt]),
        "completion_ids": sequences[:, prompt:],
        "completion_mask": torch.ones_like(mask),
        "tool_mask": mask,
        "advantages": advantages[:, prompt:],
        "num_items_in_batch": mask.sum(),
    }
    unknown = torch.full((int(mask.sum()),), torch.nan)  # random tokens: sampled by nobody
    texts, completions, values = zip(*nodes, strict=True)
    lengths, ones = torch.tensor(list(map(len, texts))), torch.ones(len(nodes))
    return stock, TurnBatch(
        torch.cat(texts), lengths, torch.tensor(completions), torch.stack(values), ones, unknown, ones.sum()
    )
