"""The three seams with the pinned TRL, and what one training step of trees gives to the loss."""

import inspect
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from querylect.configs.schema import RunConfig
from querylect.data.types import Question
from querylect.rollouts.conversation import Clock
from querylect.rollouts.tree import Node, Tree
from querylect.train.distributed.processes import Processes
from querylect.train.rows import rollout
from querylect.train.run import train
from querylect.train.trainer import TreeTrainer, WholeRun

from ..lessons import change

PINNED = "1.16.0"


def test_the_pinned_version_is_the_one_that_is_tested():
    import trl

    assert trl.__version__ == PINNED
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text()
    assert re.search(r'"trl==([\d.]+)"', pyproject)[1] == PINNED


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_prepare_inputs", ["generation_batch"]),
        ("_generate_and_score_completions", ["inputs"]),
        ("_compute_loss", ["model", "inputs"]),
        ("training_step", ["model", "inputs", "num_items_in_batch"]),
        ("_get_train_sampler", ["dataset"]),
        ("_get_output_dir", ["trial"]),
        ("_save_checkpoint", ["model", "trial"]),
        (
            "_get_per_token_logps_and_entropies",
            ["model", "input_ids", "attention_mask", "logits_to_keep", "batch_size", "compute_entropy"],
        ),
    ],
)
def test_what_is_overridden_has_the_signature_that_is_expected(name, parameters):
    from trl import GRPOTrainer

    assert name in vars(TreeTrainer)
    assert list(inspect.signature(getattr(GRPOTrainer, name)).parameters)[1 : len(parameters) + 1] == parameters


def with_trainer(config, monkeypatch, act):
    """Set up the trainer of a run exactly as `train` does, and call `act(trainer)` in the place of training."""
    results = []

    def at_once(trainer, **_):
        results.append(act(trainer))
        trainer.state.global_step = trainer.args.max_steps

    monkeypatch.setattr(TreeTrainer, "train", at_once)
    train(config)
    return results[0]


def batch(trainer, questions=("head", "sugar")):
    """One generation batch as TRL's loader gives it: each question once per leaf."""
    return [{"prompt": question} for question in questions for _ in range(trainer.num_generations)]


def ready(trainer, seed=0):
    """As in the middle of training: adapters that are not zero, and one accumulation window."""
    import torch

    torch.manual_seed(seed)
    for name, parameter in trainer.model.named_parameters():
        if "lora_B.default" in name:
            parameter.data.normal_(0, 0.05)
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = trainer.args.gradient_accumulation_steps
    trainer.sampler.refresh()


def step_inputs(trainer):
    """The micro-batches of one step."""
    trainer._prepare_inputs(batch(trainer))
    return list(trainer._buffered_inputs)


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


def test_packing_changes_neither_the_loss_nor_its_gradient(settings, monkeypatch):
    """With every term; without them test_train_gradient.py compares both with brute force."""
    import torch

    terms = {"train.beta": 0.1, "train.entropy_coef": 0.05, "train.loss_type": "grpo"}
    config = change(settings, **terms, **{"train.questions_per_micro_batch": 2})

    def act(trainer):
        ready(trainer)
        inputs = step_inputs(trainer)
        packed = losses_and_gradients(trainer, inputs, packing=True)
        assert 0 < trainer.packed_tokens < trainer.flat_tokens
        return packed, losses_and_gradients(trainer, inputs, packing=False)

    (losses, gradients), (flat_losses, flat_gradients) = with_trainer(config, monkeypatch, act)
    torch.testing.assert_close(losses, flat_losses, rtol=1e-4, atol=1e-6)
    moved = {name for name, gradient in flat_gradients.items() if gradient.norm() > 1e-6}
    assert moved, "there is something to compare"
    for name in moved:
        difference = (gradients[name] - flat_gradients[name]).norm() / flat_gradients[name].norm()
        assert difference < 1e-3, f"{name}: {difference:.1e}"


def test_a_question_without_signal_costs_no_token_of_the_update(settings, monkeypatch):
    def act(trainer):
        ready(trainer)
        inputs = step_inputs(trainer)
        inputs[0]["tool_mask"] = inputs[0]["tool_mask"] * 0
        losses, _ = losses_and_gradients(trainer, inputs[:1], packing=True)
        return trainer.packed_tokens, float(losses)

    assert with_trainer(settings, monkeypatch, act) == (0, 0.0)


@pytest.mark.parametrize("loss_type", ["grpo", "dapo"])
def test_other_terms_do_not_change_the_size_of_the_policy_term(settings, monkeypatch, loss_type):
    """A KL term and an entropy term so small that they add nothing leave the gradient as it is, ties or not."""
    import torch

    def gradient(**changes):
        def act(trainer):
            ready(trainer)
            _, gradients = losses_and_gradients(trainer, step_inputs(trainer), packing=True)
            return torch.cat([tensor.flatten() for tensor in gradients.values()]), trainer.last_metrics["signal/turn2"]

        config = change(settings, **{"train.loss_type": loss_type}, **changes)
        return with_trainer(change(config, name="-".join(changes) or "plain"), monkeypatch, act)

    plain, signal = gradient()
    assert 0 < signal < 1, "some turns have no signal"
    with_terms, _ = gradient(**{"train.beta": 1e-12, "train.entropy_coef": 1e-12})
    assert (with_terms - plain).norm() < 1e-5 * plain.norm()


def test_retrieved_text_is_attended_and_never_trained_on(settings, monkeypatch):
    """What was observed stands in the prompt of its turn: another document changes the turn's log-probabilities, and
    only sampled ids are completion ids."""
    import torch

    def act(trainer):
        ready(trainer)
        inputs = step_inputs(trainer)
        for micro_batch, tree in zip(inputs, trainer.trees, strict=True):
            turns = [node for path in tree.paths() for node in path]
            for row, node in enumerate(turns):
                prompt = micro_batch["prompt_ids"][row][micro_batch["prompt_mask"][row].bool()].tolist()
                completion = micro_batch["completion_ids"][row][micro_batch["completion_mask"][row].bool()].tolist()
                assert (prompt, completion) == (node.prompt_ids, node.completion_ids)

        def logps(micro_batch):
            ids = torch.cat([micro_batch["prompt_ids"], micro_batch["completion_ids"]], 1)
            mask = torch.cat([micro_batch["prompt_mask"], micro_batch["completion_mask"]], 1)
            keep = micro_batch["completion_ids"].shape[1]
            with torch.no_grad():
                return trainer._get_per_token_logps_and_entropies(trainer.model, ids, mask, keep)[0]

        first, results = inputs[0], []
        document = first["prompt_ids"].clone()
        document[1::2, -12] += 1  # a token of what second turns were shown
        for packing in (True, False):
            trainer.run = change(trainer.run, **{"train.packing": packing})
            results.append((logps(first), logps({**first, "prompt_ids": document})))
        return results

    for before, after in with_trainer(settings, monkeypatch, act):
        assert torch.allclose(before[::2], after[::2])
        assert (before[1::2] - after[1::2]).abs().max() > 1e-4


def test_a_question_repeated_within_a_step_gets_a_stream_of_its_own_each_time():
    """Else its trees would be copies of each other. A question asked once keeps its stream beside any others."""
    recorded = []

    def grow(questions, branching, streams):
        recorded.append(list(streams))
        return [Tree(question, []) for question in questions]

    def streams_of(prompts, step):
        rollout(prompts, SimpleNamespace(
            run=RunConfig(), processes=Processes(), grower=SimpleNamespace(grow=grow, clock=Clock()),
            sampler=SimpleNamespace(refresh=lambda: None, sleep=lambda: None), num_generations=1,
            questions={name: Question(name, name) for name in "ab"}, state=SimpleNamespace(global_step=step),
            ahead=None, staged=None,
        ))  # fmt: skip
        return recorded.pop()

    repeated = streams_of(["a", "b", "a", "a"], step=3)
    assert len(set(repeated)) == 4
    assert streams_of(["b", "a"], step=3) == [repeated[1], repeated[0]]
    assert not {*streams_of(["a", "b"], step=4)} & {*repeated}


def test_an_order_of_questions_that_is_cut_anywhere_goes_on():
    from trl.trainer.utils import RepeatSampler

    def order(length):
        return list(WholeRun(RepeatSampler(range(5), 2, batch_size=2, shuffle=True, seed=3), length))

    full_order = order(40)
    assert len(full_order) == 40
    assert order(24) == full_order[:24]
    passes = [full_order[start : start + 8] for start in range(0, 40, 8)]
    assert all(len(set(questions)) == 4 for questions in passes), "every pass asks four of five, twice each"
    assert len({tuple(questions) for questions in passes}) > 1
    assert list(WholeRun([], 3)) == []


def turn(number, prompt, completion, *children):
    return Node(number, prompt, completion, [], True, "", None, children=list(children))


@pytest.fixture
def small_tree():
    """Two first turns; the first has two second turns, the second has one. Observations 90, 91 and 92."""
    a, b = [1, 2, 10, 11, 90, 91], [1, 2, 20, 92]
    return Tree(
        Question("q", "q"),
        [
            turn(1, [1, 2], [10, 11], turn(2, a, [12]), turn(2, a, [13, 14, 15])),
            turn(1, [1, 2], [20], turn(2, b, [21, 22])),
        ],
    )


def test_every_leaf_has_a_row_for_each_turn_of_its_path(small_tree):
    from querylect.train.rows import row_turns

    first, second = small_tree.roots
    assert list(row_turns([small_tree])) == [
        first,
        first.children[0],
        first,
        first.children[1],
        second,
        *second.children,
    ]


@pytest.mark.parametrize("every", [False, True])
def test_turns_without_signal_are_masked_where_no_term_looks_at_them(small_tree, every):
    from querylect.train.credit import Credit
    from querylect.train.rows import row_advantages, row_mask

    first, second = small_tree.roots
    credit = Credit({id(first): 0.5, id(first.children[1]): -1.0, id(second): -0.5}, [])
    assert row_advantages([small_tree], credit).tolist() == [0.5, 0, 0.5, -1, -0.5, 0]
    assert row_mask([small_tree], None if every else credit).tolist() == [1, int(every), 1, 1, 1, int(every)]
