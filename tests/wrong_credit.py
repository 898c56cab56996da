"""Wrong rules of credit that replace the product's: tests of the gradient must detect each of them."""

from importlib import import_module
from statistics import fmean

import torch
from querylect.train import credit, mismatch
from querylect.train.credit import Credit, assign_credit
from querylect.train.rows import row_advantages, row_mask, row_turns

TRAINER = "querylect.train.trainer"
"""Imported only by a rule that replaces something in it, for it imports TRL."""


def leaves(node):
    return sum(map(leaves, node.children)) if node.children else 1


def equal_node_weights(monkeypatch, module=None):
    """A first turn of 4×4 weighs as much as a second turn, not as its four leaves."""

    def equal(trees, assigned):
        weighted = row_advantages(trees, assigned) / row_advantages(trees, _LeavesAsAdvantages())
        return weighted.nan_to_num()  # rows that count for nothing

    monkeypatch.setattr(module or import_module(TRAINER), "row_advantages", equal)


class _LeavesAsAdvantages:
    def of(self, node):
        return float(leaves(node))


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

    monkeypatch.setattr(f"{TRAINER}.assign_credit", recorded)
    monkeypatch.setattr(f"{TRAINER}.row_mask", lambda trees, assigned: row_mask(trees, last[0]))


def mean_over_a_whole_path(monkeypatch):
    """`loss_type: grpo` divides by the tokens of all turns of a path, not of each turn."""

    def of_paths(trees, assigned):
        shares = [
            len(node.completion_ids) * len(path) / sum(len(turn.completion_ids) for turn in path)
            for tree in trees
            for path in tree.paths()
            for node in path
        ]
        assert len(shares) == len(list(row_turns(trees)))
        return row_advantages(trees, assigned) * row_advantages(trees, assigned).new_tensor(shares)

    monkeypatch.setattr(f"{TRAINER}.row_advantages", of_paths)


def samples_of_a_nucleus_uncorrected(monkeypatch):
    """What was sampled with `top_p` below 1 is trained on as if it came from the policy itself."""
    monkeypatch.setattr(mismatch, "importance_weights", lambda differences, _: torch.ones_like(differences))
