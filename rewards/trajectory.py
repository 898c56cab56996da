"""What a path from the first turn to the last is worth."""

from collections.abc import Sequence


def trajectory_value(rewards: Sequence[float], weights: Sequence[float]) -> float:
    """Σ_k λ_k·r_k over the turns of one path, first to last (seed 003: λ = 0.5, 1).

    A path may be shorter than `weights`: the weights of turns that were not taken are not used.
    Raises ValueError for an empty path and for more turns than weights.
    """
    if not 0 < len(rewards) <= len(weights):
        raise ValueError(
            f"{len(rewards)} rewards and {len(weights)} turn weights; expected a weight for each of >= 1 turns"
        )
    return sum(weight * reward for weight, reward in zip(weights, rewards, strict=False))
