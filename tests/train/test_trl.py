"""The seams with the pinned TRL, and what one training step of trees gives to the loss."""

import re
from pathlib import Path

import pytest
from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.train.processes import Processes
from querylect.train.questions import shuffled_order
from querylect.train.run import train
from querylect.train.step_trees import StepTrees
from querylect.train.trainer import TreeTrainer

from ..lessons import change

pytestmark = pytest.mark.model

PINNED = "1.16.0"


def test_the_pinned_version_is_the_one_that_is_tested():
    import trl

    assert trl.__version__ == PINNED
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'"trl==([\d.]+)"', pyproject)[1] == PINNED


def with_trainer(config, monkeypatch, act):
    """Set up the trainer of a run exactly as `train` does, and call `act(trainer)` in the place of training."""
    results = []

    def at_once(trainer, **_):
        results.append(act(trainer))
        trainer.state.global_step = trainer.args.max_steps

    monkeypatch.setattr(TreeTrainer, "train", at_once)
    train(config)
    return results[0]


def ready(trainer, seed=0):
    """As in the middle of training: adapters that are not zero, and one accumulation window."""
    import torch

    torch.manual_seed(seed)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B.default" in name:
            parameter.data.normal_(0, 0.05)
    trainer.model.train()
    trainer.step_trees.weight_sync.refresh()


def step_inputs(trainer):
    """The micro-batches of one step of the questions `head` and `sugar`, whose trees are in `trainer.trees`."""
    trainer.step_trees._order[:2] = ["head", "sugar"]
    trainer.rollout = None
    sample = StepTrees.sample

    def recorded(step_trees, step):
        trainer.trees = sample(step_trees, step)
        return trainer.trees

    StepTrees.sample = recorded
    try:
        trainer._begin_step()
    finally:
        StepTrees.sample = sample
    return list(trainer.rollout.batches)


def loss_and_gradients(trainer, inputs):
    import torch

    trainer.model.zero_grad()
    losses = []
    for micro_batch in inputs:
        loss = trainer._compute_loss(trainer.model, micro_batch)
        loss.backward()
        losses.append(loss.detach())
    gradients = {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}
    return torch.stack(losses), gradients


def losses_and_gradients(trainer, inputs, packing):
    trainer.run = change(trainer.run, **{"train.packing": packing})
    return loss_and_gradients(trainer, inputs)


def test_the_questions_of_a_step_depend_on_the_seed_and_the_step_alone():
    run = RunConfig.model_validate({"train": {"questions_per_step": 2}})

    def order(steps, processes=1, order=None):
        questions = [Question(name, name) for name in "abcde"]
        order = order or shuffled_order(list("abcde"), 40, 2, seed=3)
        ranks = (Processes(rank, processes) for rank in range(processes))
        every = [StepTrees(run, None, None, questions, order, rank) for rank in ranks]
        return [[question.id for one in every for question in one.questions_of(step)[0]] for step in steps]

    ten = order(range(10))
    assert order([7, 2]) == [ten[7], ten[2]]
    assert order(range(10), processes=2) == ten
    assert all(len({*ten[step], *ten[step + 1]}) == 4 for step in range(0, 10, 2)), (
        "a pass asks four of five, once each"
    )
    assert len({tuple(ten[step] + ten[step + 1]) for step in range(0, 10, 2)}) > 1
    assert order(range(2), order=["b", "a", "d", "c"]) == [["b", "a"], ["d", "c"]]
