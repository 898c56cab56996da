"""Wrong rules of credit and loss that replace the product's: tests of the gradient must detect each of them."""

from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from statistics import fmean

import numpy as np
import torch
from querylect.train import credit, loss, turns

TRAINER = "querylect.train.trainer"
"""Imported only by a rule that replaces something in it, for it imports TRL."""


def equal_node_weights(monkeypatch):
    """A first turn of 4×4 weighs as much as a second turn, not as its four leaves."""

    def one_each(trees):
        return {id(node): 1 for tree in trees for node in tree.walk()}

    monkeypatch.setattr(turns, "leaves_below", one_each)


def siblings_only(monkeypatch):
    """Turns are compared with their siblings, although other turns answer the same prompt."""

    def by_parent(tree, node):
        parents = {id(child): parent for parent in tree.walk() for child in parent.children}
        return hash((tree.question.id, id(parents.get(id(node)))))

    monkeypatch.setattr(turns, "_state", by_parent)


def leaf_advantages_without_lambda(monkeypatch):
    """λ weighs a last turn in the values of earlier turns, and not in its own advantage."""
    state_groups = credit._state_groups

    def without(step):
        rewards = step.figure("reward")
        return [
            replace(group, values=np.where(step.ends[group.members], rewards[group.members], group.values))
            for group in state_groups(step)
        ]

    monkeypatch.setattr(credit, "_state_groups", without)


def plain_means(monkeypatch):
    """Baselines that hold a turn's own value shrink its advantage, each group's by another share."""

    def over_paths(step, leaf_advantages, groups):
        total, paths = np.zeros(len(leaf_advantages)), np.zeros(len(leaf_advantages))
        for leaf in np.flatnonzero(~np.isnan(leaf_advantages)):
            row = leaf
            while row >= 0:
                total[row] += step.leaves[leaf] * leaf_advantages[leaf]
                paths[row] += step.leaves[leaf]
                row = step.parent[row]
        return np.divide(total, paths, out=np.full(len(total), np.nan), where=paths > 0)

    monkeypatch.setattr(credit, "_strengths", lambda groups, step: [1.0] * len(groups))
    monkeypatch.setattr(credit, "_mean_over_paths", over_paths)


def signal_only_normalizer(monkeypatch):
    """Tokens of turns that were compared with nothing leave the normalizer, so that the others count more."""

    def without(step, *how):
        assigned = credit.assign_credit(step, *how)
        step.tokens[~assigned.has_signal] = 0
        return assigned

    monkeypatch.setattr(f"{TRAINER}.assign_credit", without)


def mean_over_a_whole_path(monkeypatch):
    """`loss_type: grpo` divides by the tokens of all turns of a path, not of each turn."""

    def of_paths(trees, leaves, advantages, *how):
        shares = {id(node): [] for tree in trees for node in tree.walk()}
        for path in (path for tree in trees for path in tree.paths()):
            mean_length = fmean(len(node.completion_ids) for node in path)
            for node in path:
                shares[id(node)].append(len(node.completion_ids) / mean_length)
        return loss.turn_batch(trees, leaves, advantages * [fmean(its) for its in shares.values()], *how)

    monkeypatch.setattr(f"{TRAINER}.turn_batch", of_paths)


def samples_of_a_nucleus_uncorrected(monkeypatch):
    """What was sampled with `top_p` below 1 is trained on as if it came from the policy itself."""
    monkeypatch.setattr(f"{TRAINER}.importance_weights", lambda trainer, _: (torch.ones_like(trainer), trainer))


def samplers_probabilities_of_the_parent(monkeypatch):
    """The importance weight of a turn is made of what the sampler recorded for the turn before."""

    def of_parents(trees, *how):
        trees = deepcopy(trees)
        for node in [node for tree in trees for node in tree.walk()][::-1]:
            for child in node.children:
                child.logprobs = np.resize(node.logprobs, len(child.completion_ids)).tolist()
        return loss.turn_batch(trees, *how)

    monkeypatch.setattr(f"{TRAINER}.turn_batch", of_parents)


def positions_go_on_at_a_branch(monkeypatch):
    """The positions of a packed row are those in the row, not the depth of a token in its sequence."""
    packing = import_module("querylect.train.packing")
    pack = packing.pack

    def in_a_row(sequences):
        trie = pack(sequences)
        return replace(trie, positions=np.arange(len(trie.ids)))

    monkeypatch.setattr(packing, "pack", in_a_row)


def kl_of_each_node_once(monkeypatch):
    """The KL term of a turn counts once, not as often as the turn has leaves."""
    loss = import_module("querylect.train.loss")
    kl_term = loss.kl_term
    monkeypatch.setattr(loss, "kl_term", lambda turn, *how: kl_term(turn, *how) / turn.by_token(turn.leaves))


def ratio_of_each_token(monkeypatch):
    """`importance_sampling_level: sequence` (GSPO) has a ratio for each token instead of one for the turn."""
    policy_loss = import_module("querylect.train.loss").policy_loss

    def by_token(*arguments):
        *others, settings, rollout, longest = arguments
        tokens = settings.model_copy(update={"importance_sampling_level": "token"})
        return policy_loss(*others, tokens, rollout, longest)

    monkeypatch.setattr(f"{TRAINER}.policy_loss", by_token)


def entropy_of_what_was_shown(monkeypatch):
    """The entropy bonus is taken over the tokens before an answer."""
    token_logps = import_module("querylect.train.packing").token_logps

    def shifted(model, sequences, targets, *arguments, **options):
        logps, _, tokens = token_logps(model, sequences, targets, *arguments, **options)
        before = [positions - len(positions) for positions in targets]
        return logps, token_logps(model, sequences, before, *arguments, **options)[1], tokens

    monkeypatch.setattr(f"{TRAINER}.token_logps", shifted)
