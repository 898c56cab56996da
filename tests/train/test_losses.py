"""The loss in every mode: against stock TRL on single turns, and against formulas turn by turn on trees."""

import pytest
from querylect.train.arguments import grpo_config

from ..lessons import change
from .credited import Credited
from .test_trl import loss_and_gradients, ready, step_inputs, with_trainer

pytestmark = pytest.mark.model

SINGLE = {"rollout.branching": [8], "policy.lora": None}

LOSSES = [
    {"train.loss_type": "dr_grpo", "train.beta": 0.2, "train.use_bias_correction_kl": False},
    {"train.loss_type": "dapo", "train.beta": 0.2, "train.entropy_coef": 0.1},
    {"train.loss_type": "dapo", "train.epsilon": 0.01, "train.epsilon_high": 0.02},
    {"train.loss_type": "cispo", "train.epsilon_high": 1.02},
    {"train.loss_type": "grpo", "train.importance_sampling_level": "sequence", "train.epsilon": 0.001},
]


def label_of(changes):
    return "-".join(str(value) for value in changes.values())


def disturb(model, scale=2e-3):
    """Move the trained weights, so that the probability ratio of a rollout in use is no longer 1."""
    import torch

    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter += scale * torch.randn_like(parameter)


def stock_losses(trainer, args):
    """The losses of an unchanged GRPOTrainer for the same completions and rewards, before and after `disturb`."""
    from datasets import Dataset
    from querylect.rollouts.policy import load_policy
    from trl import GRPOTrainer

    rows = [(root.prompt_ids, root.completion_ids, root.reward) for tree in trainer.trees for root in tree.roots]
    prompts, completions, rewards = map(list, zip(*rows, strict=True))
    model, tokenizer = load_policy(trainer.run.policy)
    stock = GRPOTrainer(
        model=model,
        args=args,
        train_dataset=Dataset.from_dict({"prompt": list(trainer.step_trees.questions)}),
        processing_class=tokenizer,
        reward_funcs=lambda completions, **_: rewards,
        rollout_func=lambda *_: {"prompt_ids": prompts, "completion_ids": completions, "logprobs": None},
    )
    stock.model.train()
    stock.current_gradient_accumulation_steps = args.gradient_accumulation_steps
    asked = [{"prompt": tree.question.id} for tree in trainer.trees for _ in tree.roots]
    output = stock._generate_and_score_completions(asked)
    from trl.trainer.utils import split_tensor_dict

    return stock, split_tensor_dict(output, args.steps_per_generation)


@pytest.mark.parametrize("changes", LOSSES, ids=label_of)
def test_a_single_turn_has_the_loss_and_the_gradient_of_stock_trl(settings, monkeypatch, tmp_path, changes):
    """fp32, the same completions and rewards, packed; on the first and on a second optimizer step of a rollout."""
    import torch

    config = change(settings, **SINGLE, **changes, **{"train.num_iterations": 2, "train.scale": "none"})

    def act(trainer):
        ready(trainer)
        inputs = step_inputs(trainer)
        assert all(len({root.reward for root in tree.roots}) > 1 for tree in trainer.trees), "no ties to be left out"
        stock, theirs = stock_losses(trainer, grpo_config(config, tmp_path))
        results = []
        for _ in range(2):
            results.append((loss_and_gradients(trainer, inputs), loss_and_gradients(stock, theirs)))
            disturb(trainer.model)
            disturb(stock.model)
        return results, trainer.packed_tokens

    results, packed = with_trainer(config, monkeypatch, act)
    assert packed
    for (losses, gradients), (their_losses, their_gradients) in results:
        torch.testing.assert_close(losses, their_losses, rtol=1e-4, atol=1e-6)
        assert gradients.keys() == their_gradients.keys()
        norm = sum(float(g.norm()) ** 2 for g in their_gradients.values()) ** 0.5
        difference = sum(float((gradients[n] - g).norm()) ** 2 for n, g in their_gradients.items()) ** 0.5
        assert norm > 0
        assert difference < 1e-3 * norm
    assert not torch.allclose(results[0][0][0], results[1][0][0], rtol=1e-3), "the ratio has left 1"


def turn_by_turn(trainer, node, model):
    """Log-probabilities of the sampled ids of one turn from a plain forward pass over prompt and completion."""
    import torch

    ids = torch.tensor([[*node.prompt_ids, *node.completion_ids]])
    with torch.no_grad():
        logits = model(input_ids=ids, use_cache=False).logits[0, len(node.prompt_ids) - 1 : -1].float()
    distribution = torch.log_softmax(logits / trainer.run.rollout.temperature, -1)
    return distribution.gather(-1, torch.tensor(node.completion_ids)[:, None])[:, 0]


def clipped(low, high):
    """PPO's pessimistic bound."""

    def term(ratio, advantage, _):
        inside = ratio.clamp(1 - low, 1 + high)
        return -(ratio * advantage).minimum(inside * advantage)

    return term


def test_with_staleness_only_the_clipped_ratio_to_the_sampler_corrects_it(settings, monkeypatch):
    """A token that the sampler recorded no log-probability of has a ratio of 1."""
    import torch

    def act(trainer):
        ready(trainer)
        batches = step_inputs(trainer)
        for one in batches:
            one.sampler_logps[0] = torch.nan
        disturb(trainer.model, 0.02)
        trainer.run = change(trainer.run, **{"train.staleness": 1})
        losses, _ = loss_and_gradients(trainer, batches)
        credit = Credited(trainer.trees, settings.train.credit, [0.5, 1.0], "none")
        total, clipped_tokens, count = 0.0, 0, 0
        for one, tree in zip(batches, trainer.trees, strict=True):
            turns = [node for node in tree.walk() if credit.has_signal(node)]
            leaves = one.by_token(one.leaves)
            sampled = list(one.sampler_logps.split(one.completions.tolist()))
            parts = []
            for node, recorded in zip(turns, sampled, strict=True):
                logps = turn_by_turn(trainer, node, trainer.model)
                ratio = torch.where(recorded.isnan(), 1.0, (logps - recorded).exp())
                parts.append(clipped(0.2, 0.2)(ratio, credit.of(node), logps))
                clipped_tokens += int(((ratio - 1).abs() > 0.2).sum())
            total += float((leaves * torch.cat(parts)).sum())
            count += sum(len(node.completion_ids) for path in tree.paths() for node in path)
        return float(losses.sum()), total / count, clipped_tokens

    loss, expected, clipped_tokens = with_trainer(settings, monkeypatch, act)
    assert clipped_tokens
    assert loss == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("lora", [None, {"r": 4}], ids=["full", "lora"])
@pytest.mark.parametrize("warm", [0, 6])
def test_the_reference_is_the_policy_as_grpo_found_it(settings, monkeypatch, lora, warm):
    """Packed, flat and by a plain forward pass of that policy, however far the trained one has moved since."""
    import torch

    changes = {"policy.lora": lora, "train.beta": 0.1, "train.warm_start.questions": warm}
    config = change(settings, **changes, **{"train.warm_start.learning_rate": 0.01})

    def act(trainer):
        start = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
        ready(trainer)
        disturb(trainer.model, 0.05)
        step_inputs(trainer)
        packed, flat = [], []
        for packing, logps in ((True, packed), (False, flat)):
            trainer.run = change(trainer.run, **{"train.packing": packing})
            logps += trainer._reference_logps(trainer.rollout.batches)
        moved = {n: float((p.detach() - start[n]).abs().sum()) for n, p in trainer.model.named_parameters()}
        for name, parameter in trainer.model.named_parameters():
            parameter.data.copy_(start[name])
        turns = [node for tree in trainer.trees for node in tree.walk()]
        expected = torch.cat([turn_by_turn(trainer, node, trainer.model) for node in turns])
        trained = {name for name, p in trainer.model.named_parameters() if p.requires_grad}
        return torch.cat(packed), torch.cat(flat), expected, moved, trained

    packed, flat, expected, moved, trained = with_trainer(config, monkeypatch, act)
    torch.testing.assert_close(flat, expected, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(packed, flat, rtol=1e-4, atol=1e-5)
    assert expected.abs().max() > 1
    assert sum(moved[name] for name in trained) > 1
    assert not any(moved[name] for name in moved.keys() - trained)
    assert not any(".ref." in name for name in trained)
