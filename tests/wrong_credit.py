"""Wrong rules of credit that replace the product's: tests of the gradient must detect each of them."""

from collections import defaultdict
from importlib import import_module
from statistics import fmean

import torch
from querylect.train import batch, credit, mismatch
from querylect.train.batch import leaves_below, turn_batch
from querylect.train.credit import Credit, assign_credit

TRAINER = "querylect.train.trainer"
"""Imported only by a rule that replaces something in it, for it imports TRL."""


def equal_node_weights(monkeypatch, module=batch):
    """A first turn of 4×4 weighs as much as a second turn, not as its four leaves."""

    def one_each(trees):
        return {id(node): 1 for tree in trees for node in tree.walk()}

    monkeypatch.setattr(module, "leaves_below", one_each)


def siblings_only(monkeypatch):
    """Turns are compared with their siblings, although other turns answer the same prompt."""

    def by_parent(tree, node):
        parents = {id(child): parent for parent in tree.walk() for child in parent.children}
        return tree.question.id, id(parents.get(id(node)))

    monkeypatch.setattr(credit, "_state", by_parent)


def leaf_advantages_without_lambda(monkeypatch, module=None):
    """λ weighs a last turn in the values of earlier turns, and not in its own advantage."""

    def without(trees, how, weights, *options):
        assigned = assign_credit(trees, how, weights, *options)
        last = {id(node): weights[node.turn - 1] for tree in trees for node in tree.walk() if not node.children}
        return Credit({key: value / last.get(key, 1.0) for key, value in assigned.advantages.items()}, assigned.groups)

    monkeypatch.setattr(module or import_module(TRAINER), "assign_credit", without)


def plain_means(monkeypatch):
    """Baselines that hold a turn's own value shrink its advantage, each group's by another share."""

    def over_paths(trees, leaf_advantages, groups):
        through = {}
        for tree in trees:
            for path in tree.paths():
                for node in path if id(path[-1]) in leaf_advantages else ():
                    through.setdefault(id(node), []).append(leaf_advantages[id(path[-1])])
        return {key: fmean(values) for key, values in through.items()}

    monkeypatch.setattr(credit, "_strengths", lambda groups, trees: {})
    monkeypatch.setattr(credit, "_mean_over_paths", over_paths)


def signal_only_normalizer(monkeypatch):
    """Tokens of turns that were compared with nothing leave the normalizer, so that the others count more."""
    last = []

    def recorded(trees, how, weights, *options):
        last[:] = [assign_credit(trees, how, weights, *options)]
        return last[0]

    def with_signal(trees):
        leaves = leaves_below(trees)
        nodes = [node for tree in trees for node in tree.walk() if last[0].has_signal(node)]
        return sum(leaves[id(node)] * len(node.completion_ids) for node in nodes)

    monkeypatch.setattr(f"{TRAINER}.assign_credit", recorded)
    monkeypatch.setattr(f"{TRAINER}.sampled_tokens", with_signal)


def mean_over_a_whole_path(monkeypatch):
    """`loss_type: grpo` divides by the tokens of all turns of a path, not of each turn."""

    def of_paths(trees, assigned, *how):
        shares = defaultdict(list)
        for path in (path for tree in trees for path in tree.paths()):
            mean_length = fmean(len(node.completion_ids) for node in path)
            for node in path:
                shares[id(node)].append(len(node.completion_ids) / mean_length)
        changed = {key: value * fmean(shares[key]) for key, value in assigned.advantages.items() if key in shares}
        return turn_batch(trees, Credit(changed, assigned.groups), *how)

    monkeypatch.setattr(f"{TRAINER}.turn_batch", of_paths)


def samples_of_a_nucleus_uncorrected(monkeypatch):
    """What was sampled with `top_p` below 1 is trained on as if it came from the policy itself."""
    monkeypatch.setattr(mismatch.ImportanceCorrection, "weigh", lambda self, trainer, *_: torch.ones_like(trainer))
