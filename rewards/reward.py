"""Rewards of a sampled turn and of a trajectory."""

from collections.abc import Sequence


def node_reward(metric: float | None, format_ok: bool, format_weight: float) -> float | None:
    """(1 − w)·metric + w·format, in [0, 1], with w = `format_weight` in [0, 1] (Yuan et al.: w = 0.1, metric nDCG@10).

    Format penalty: if the format fails there is no search, `metric` is ignored and only the format term is left:
    w·0 = 0, the lowest possible reward. A malformed turn thus gets w less than a well-formed one that finds nothing.
    Returns None if the format holds and `metric` is None: the environment did not answer, so the turn cannot be scored.

    Raises ValueError for a metric or a weight outside [0, 1] (NaN included).
    """
    if not 0 <= format_weight <= 1:
        raise ValueError(f"format_weight is {format_weight}; expected a number from 0 to 1")
    format_term = format_weight * format_reward(format_ok)
    if not format_ok:
        return format_term
    if metric is None:
        return None
    if not 0 <= metric <= 1:
        raise ValueError(f"metric is {metric}; expected a number from 0 to 1, or None for a failed search")
    return (1 - format_weight) * metric + format_term


def answer_reward(score: float, raw_score: float | None, metric: float, weight: float) -> float:
    """(1 − w)·metric + w·answer, in [0, 1], with w = `weight` in [0, 1], for the score of a reader's answer in [0, 1].

    With `raw_score`, the score with the raw question's documents, answer is (1 + score − raw_score) / 2: the Gain
    Beyond RAG of s3 (Jiang et al. 2025, arXiv 2505.14146), mapped from [−1, 1] into [0, 1]. Without it, answer is the
    score. `metric`: that of the ranking.

    Raises ValueError for a number outside [0, 1] (NaN included).
    """
    for name, value in (("score", score), ("raw_score", raw_score or 0.0), ("metric", metric), ("weight", weight)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} is {value}; expected a number from 0 to 1")
    answer = score if raw_score is None else (1 + score - raw_score) / 2
    return (1 - weight) * metric + weight * answer


def format_reward(ok: bool) -> float:
    """1 if the sampled turn has its rewriter's format, else 0 (Yuan et al.)."""
    return 1.0 if ok else 0.0


def trajectory_value(rewards: Sequence[float], weights: Sequence[float], costs: Sequence[float] = ()) -> float:
    """Σ_k λ_k·r_k − Σ_k c_k over the turns of one path, first to last (Yuan et al.: λ = 0.5, 1, and no costs c).

    A path may be shorter than `weights`; the surplus weights are not used.
    Raises ValueError for an empty path and for more turns than weights.
    """
    if not 0 < len(rewards) <= len(weights):
        raise ValueError(
            f"{len(rewards)} rewards and {len(weights)} turn weights; expected a weight for each of >= 1 turns"
        )
    return sum(weight * reward for weight, reward in zip(weights, rewards, strict=False)) - sum(costs)


def weight_of_turn(weights: Sequence[float], turn: int, stopped: bool) -> float:
    """λ of a turn (1 for the first); one that stopped also has those of the turns after it, which keep its ranking."""
    return sum(weights[turn - 1 :]) if stopped else weights[turn - 1]
