"""The gradient of a step of trees, against brute force: one plain forward pass per path, and credit of its own.

Every path is a row of its own, every turn of it counts, and nothing of credit.py, loss.py or packing/ is
used.
"""

from collections import defaultdict

import pytest
from querylect.rollouts.engines.base import stream
from querylect.train.step_trees import StepTrees
from querylect.train.turns import describe

from ..lessons import change
from .test_losses import disturb
from .test_trl import losses_and_gradients, ready, step_inputs, with_trainer
from .wrong_credit import (
    entropy_of_what_was_shown,
    equal_node_weights,
    kl_of_each_node_once,
    leaf_advantages_without_lambda,
    mean_over_a_whole_path,
    plain_means,
    positions_go_on_at_a_branch,
    ratio_of_each_token,
    samplers_probabilities_of_the_parent,
    samples_of_a_nucleus_uncorrected,
    siblings_only,
    signal_only_normalizer,
)

pytestmark = pytest.mark.model

FOUR = {"rollout.branching": [4, 4]}
TWO_TREES = {"train.questions_per_micro_batch": 2}
THREE_TURNS = {"rollout.branching": [2, 3, 2], "reward.turn_weights": [0.25, 0.5, 2.0]}
TRAJECTORY = {"train.credit": "trajectory"}
WARM = {"rollout.temperature": 1.5}

CASES = {
    "4x4": (FOUR, [equal_node_weights]),
    "4x4-trajectory": ({**FOUR, **TRAJECTORY}, [equal_node_weights, plain_means]),
    "4x4-grpo-warm": ({**FOUR, **WARM, "train.loss_type": "grpo"}, [mean_over_a_whole_path]),
    "4x4-dr_grpo": ({**FOUR, "train.loss_type": "dr_grpo"}, []),
    "4x4-two-trees": ({**FOUR, **TWO_TREES, "train.scale": "batch"}, []),
    "4x4-split-scaled": ({**FOUR, "train.max_tokens_per_micro_batch": 400, "train.scale": "group"}, []),
    "4x4-top_p": (
        {**FOUR, "rollout.top_p": 0.7, "rollout.temperature": 1.5},
        [samples_of_a_nucleus_uncorrected, samplers_probabilities_of_the_parent],
    ),
    "4x4-kl": ({**FOUR, "train.beta": 1.0}, [kl_of_each_node_once]),
    "4x4-entropy": ({**FOUR, **TWO_TREES, "train.entropy_coef": 0.5}, [entropy_of_what_was_shown]),
    "4x4-second step": (
        {**FOUR, "train.num_iterations": 2, "train.importance_sampling_level": "sequence", "train.epsilon": 0.005},
        [ratio_of_each_token],
    ),
    "2x3x2": (THREE_TURNS, [leaf_advantages_without_lambda, plain_means, positions_go_on_at_a_branch]),
    "2x3x2-trajectory": ({**THREE_TURNS, **TRAJECTORY}, []),
    "16x1": ({"rollout.branching": [16, 1]}, [siblings_only, signal_only_normalizer]),
    "16x1-trajectory": ({"rollout.branching": [16, 1], **TRAJECTORY}, []),
}
"""Settings, and rules that stand nowhere in the product and give another gradient by them. Single turns are compared
with stock TRL (test_losses.py)."""


def made_up_rewards(trees):
    """Rewards that depend on question, state and answer alone, so that equal answers to a state earn the same; some
    turns got no answer from the environment, and some were cut."""
    for tree in trees:
        for node in tree.walk():
            draw = stream(7, tree.question.id, *node.prompt_ids, *node.completion_ids) % 1000
            node.reward = None if draw < 90 else draw / 1000
            node.finished = draw % 11 != 0
    return trees


def mean(values):
    return sum(values) / len(values)


def brute_force_advantages(trees, config):
    """{(tree, path, turn): advantage}, by states as pairs of question and ids; None where there is no signal."""
    weights = [1.0] if len(config.rollout.branching) == 1 else config.reward.turn_weights
    paths = {(t, p): path for t, tree in enumerate(trees) for p, path in enumerate(tree.paths())}
    question = {t: tree.question.id for t, tree in enumerate(trees)}

    def state(t, node):
        return question[t], tuple(node.prompt_ids)

    if config.train.credit == "trajectory":
        totals = defaultdict(list)
        for (t, p), path in paths.items():
            if all(node.reward is not None for node in path):
                totals[t].append((p, sum(w * node.reward for w, node in zip(weights, path, strict=True))))
        by_leaf = {}
        for t, path_values in totals.items():
            values = [value for _, value in path_values]
            if max(values) - min(values) > 1e-9:
                by_leaf |= {(t, p): (value - mean(values)) / spread(values, config) for p, value in path_values}
        through = defaultdict(list)
        for (t, p), path in paths.items():
            for node in path:
                if (t, p) in by_leaf:
                    through[id(node)].append(by_leaf[t, p])
        advantages, reference = {}, {}
        for (t, p), path in paths.items():
            for k, node in enumerate(path):
                n, shares = len(totals[t]), through[id(node)]
                advantages[t, p, k] = None
                if shares and n > len(shares):
                    reference.setdefault(t, (n - len(shares)) / n)
                    advantages[t, p, k] = mean(shares) * reference[t] / ((n - len(shares)) / n)
        return advantages

    nodes = {id(node): (t, node) for (t, p), path in paths.items() for node in path}
    members = defaultdict(list)
    for t, node in nodes.values():
        members[state(t, node)].append(node)

    def value(t, node):
        if node.reward is None:
            return None
        weighted = weights[node.turn - 1] * node.reward
        if not node.children:
            return weighted
        later = [value(t, entry) for entry in members[state(t, node.children[0])]]
        later = [entry for entry in later if entry is not None]
        return weighted + mean(later) if later else None

    values = {key: value(t, node) for key, (t, node) in nodes.items()}
    scored = {s: [values[id(n)] for n in group if values[id(n)] is not None] for s, group in members.items()}
    every = defaultdict(list)
    for s, group in members.items():
        every[group[0].turn] += scored[s]
    advantages, reference = {}, {}
    for key, (t, node) in sorted(nodes.items(), key=lambda item: item[1][1].turn):
        group = scored[state(t, node)]
        n = len(group)
        if n < 2:
            advantages[key] = None
            continue
        reference.setdefault(question[t], n / (n - 1))
        if values[key] is None or max(group) - min(group) <= 1e-9:
            advantages[key] = None
            continue
        advantages[key] = (values[key] - mean(group)) / spread(
            every[node.turn] if config.train.scale == "batch" else group, config
        )
        if config.train.scale != "group":
            advantages[key] *= n / (n - 1) / reference[question[t]]
    return {(t, p, k): advantages[id(node)] for (t, p), path in paths.items() for k, node in enumerate(path)}


def spread(values, config):
    if config.train.scale == "none":
        return 1.0
    return (sum((value - mean(values)) ** 2 for value in values) / (len(values) - 1)) ** 0.5


def nucleus_mass(distribution, top_p):
    """The probability of the likeliest tokens that together have at least `top_p`; others are never sampled."""
    cumulative = distribution.sort(-1, descending=True).values.cumsum(-1)
    fewer = (cumulative < top_p).sum(-1, keepdim=True)
    return cumulative.gather(-1, fewer.clamp(max=cumulative.shape[-1] - 1))[..., 0]


def log_distributions(model, path, temperature):
    """For each turn of a path, the log-probabilities (tokens, vocabulary) of what may be sampled."""
    import torch

    ids = torch.tensor([[*path[-1].prompt_ids, *path[-1].completion_ids]])
    logps = torch.log_softmax(model(input_ids=ids, use_cache=False).logits[0].float() / temperature, -1)
    ends = [len(node.prompt_ids) + len(node.completion_ids) for node in path]
    return [logps[len(node.prompt_ids) - 1 : end - 1] for node, end in zip(path, ends, strict=True)]


def sampled(distribution, node):
    """The log-probabilities (tokens,) of what was sampled."""
    import torch

    return distribution.gather(-1, torch.tensor(node.completion_ids)[:, None])[:, 0]


def sampled_logps(model, trees, config):
    """{(tree, path, turn): (tokens,) log-probabilities}, without gradient."""
    import torch

    logps = {}
    with torch.no_grad():
        for t, tree in enumerate(trees):
            for p, path in enumerate(tree.paths()):
                turns = log_distributions(model, path, config.rollout.temperature)
                logps |= {(t, p, k): sampled(turns[k], node) for k, node in enumerate(path)}
    return logps


def brute_force_gradients(model, trees, config, old=None):
    """Gradients of the loss by its definition, path by path, of the parameters that are trained. `old`: the
    log-probabilities before the first step on the trees, where this is a later one with a ratio for each turn."""
    import torch

    advantages = brute_force_advantages(trees, config)
    how = config.train
    temperature, top_p = config.rollout.temperature, config.rollout.top_p
    losses, entropies, tokens, rows_ = defaultdict(float), defaultdict(float), defaultdict(int), 0
    if how.beta:
        with model.disable_adapter():
            reference = sampled_logps(model, trees, config)
    for t, tree in enumerate(trees):
        batch = t // how.questions_per_micro_batch
        for p, path in enumerate(tree.paths()):
            for k, (node, distribution) in enumerate(
                zip(path, log_distributions(model, path, temperature), strict=True)
            ):
                rows_ += 1
                length, advantage = len(node.completion_ids), advantages[t, p, k] or 0.0
                logps = chosen = sampled(distribution, node)
                if top_p < 1:  # sampled with probability p / mass, where the policy has p
                    chosen = chosen * nucleus_mass(distribution.detach().exp(), top_p)
                term = -advantage * chosen.sum()
                if old is not None:
                    ratio = (logps - old[t, p, k]).mean().exp()
                    bounded = ratio.clamp(1 - how.epsilon, 1 + how.epsilon)
                    term = -length * torch.min(ratio * advantage, bounded * advantage)
                if how.beta:
                    difference = reference[t, p, k] - logps
                    ratio = (logps - logps.detach()).exp()
                    term = term + how.beta * ((difference.exp() - difference - 1) * ratio).sum()
                losses[batch] = losses[batch] + (term / length if how.loss_type == "grpo" else term)
                entropies[batch] = entropies[batch] - (distribution.exp() * distribution).sum()
                tokens[batch] += length
    budget = rows_ * config.rollout.max_new_tokens
    loss = sum(losses.values()) / {"grpo": rows_, "dapo": sum(tokens.values()), "dr_grpo": budget}[how.loss_type]
    loss = loss - how.entropy_coef * mean([entropies[batch] / tokens[batch] for batch in tokens])
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return dict(zip(trained, torch.autograd.grad(loss, list(trained.values())), strict=True))


def relative_difference(gradients, expected):
    norm = sum(float(g.double().norm()) ** 2 for g in expected.values()) ** 0.5
    assert norm > 0
    return sum(float((gradients[n].double() - g.double()).norm()) ** 2 for n, g in expected.items()) ** 0.5 / norm


@pytest.mark.parametrize(("changes", "wrong_rules"), CASES.values(), ids=CASES)
def test_the_gradient_equals_brute_force_and_a_wrong_rule_of_credit_is_noticed(
    settings, monkeypatch, changes, wrong_rules
):
    config = change(settings, **changes)
    grow = StepTrees._grow
    monkeypatch.setattr(StepTrees, "_grow", lambda *arguments: made_up_rewards(grow(*arguments)))

    later = config.train.num_iterations > 1

    def act(trainer):
        ready(trainer)
        inputs, trees = step_inputs(trainer), trainer.trees
        old = sampled_logps(trainer.model.eval(), trees, config) if later else None
        if later:
            disturb(trainer.model)
        trainer.model.train()
        right = [losses_and_gradients(trainer, inputs, packing)[1] for packing in (True, False)]
        metrics, wrong = trainer.rollout.metrics, []
        for rule in wrong_rules:
            with monkeypatch.context() as patch:
                rule(patch)
                again = inputs if later else step_inputs(trainer)
                wrong.append(losses_and_gradients(trainer, again, packing=True)[1])
            assert list(map(describe, trainer.trees)) == list(map(describe, trees)), "the same step"
        trainer.model.eval()
        expected = brute_force_gradients(trainer.model, trees, config, old)
        distances = [[relative_difference(gradients, expected) for gradients in several] for several in (right, wrong)]
        return *distances, metrics

    right, wrong, metrics = with_trainer(config, monkeypatch, act)
    assert max(right) <= 1e-5
    assert min(wrong, default=1) > 1e-2
    assert metrics["states/turn1"] == 1
    if config.rollout.branching == [16, 1]:
        assert metrics["states/turn2"] < 16, "some first turns said the same"
