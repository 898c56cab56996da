"""Advantages for the objective E[max reward of k samples] ("max@k"; with rewards of 0 and 1 it is pass@k).

Given n ≥ k samples of one state with rewards r_1 … r_n, the mean of max_S r over all C(n, k) subsets S of size k is an
unbiased estimate of the objective. In its policy gradient, sample i gets the mean over the subsets that contain it. The
baseline of each subset is the maximum without i, which does not depend on i. The difference is the marginal
contribution of i:

    A_i = k · mean over S ∋ i, |S| = k, of (max_S r − max_{S∖i} r)             k ≥ 2
    A_i = r_i − mean of the other rewards                                      k = 1

so that (1/n) · Σ_i A_i ∇log π(x_i) is an unbiased estimate of ∇E[max of k]. For k ≥ 2, A_i ≥ 0: a sample gets credit
from the subsets of which it is the strict best, and none from those where another sample ties with it.

With rewards sorted ascending, C(m, k − 1) of the (k − 1)-subsets of the others lie entirely below rank m, therefore

    mean over S ∋ j of (max_S r − max_{S∖j} r) = Σ_{m=1..j} (r_(m) − r_(m−1)) · C(m, k − 1) / C(n − 1, k − 1)

which is one pass over sorted rewards, O(n log n), without cancellation.

Source: Walder and Karkhanis, "Pass@K Policy Optimization: Solving Harder Reinforcement Learning Problems", 2025 (the
leave-one-out-minus-one baseline). Measured on bandits, its variance is below that of leaving i out of subsets of size k
where k is near n or most samples are equally good, and near it elsewhere; it also exists for k = n.
"""

from collections.abc import Sequence
from math import comb
from statistics import fmean

from ..errors import ConfigError

TIE = 1e-9
"""Differences up to this are treated as rounding errors."""


def best_of_k_advantages(rewards: Sequence[float | None], k: int) -> list[float | None]:
    """The advantage of each of n alternatives, in their order; None where the reward is None (unscorable).

    rewards: one per sample of a state. Differences of at most TIE count as 0, so a tie gives exactly 0. Unscorable
    alternatives are ignored. If fewer than max(k, 2) are scored, no unbiased estimate exists and all advantages are 0.
    Raises ConfigError where k is not from 1 to n.
    """
    if not 1 <= k <= len(rewards):
        raise ConfigError(
            f"the advantage of the best of k samples has k = {k} for groups of {len(rewards)} samples, and k must be "
            "from 1 to the samples of a group. Lower k, or sample more (rollout.branching)."
        )
    scored = sorted((reward, index) for index, reward in enumerate(rewards) if reward is not None)
    count = len(scored)
    advantages: list[float | None] = [None if reward is None else 0.0 for reward in rewards]
    if count < max(k, 2) or scored[-1][0] - scored[0][0] <= TIE:
        return advantages
    if k == 1:
        mean = fmean(reward for reward, _ in scored)
        for reward, index in scored:  # r − mean of the others = (r − mean of all) · n / (n − 1)
            deviation = reward - mean
            advantages[index] = deviation * count / (count - 1) if abs(deviation) > TIE else 0.0
        return advantages
    contribution, previous, subsets = 0.0, scored[0][0], comb(count - 1, k - 1)
    for rank, (reward, index) in enumerate(scored):
        if reward - previous > TIE:
            contribution += (reward - previous) * (comb(rank, k - 1) / subsets)
            previous = reward
        advantages[index] = k * contribution
    return advantages
