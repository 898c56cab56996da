"""What one sampled turn is worth."""

from .format import format_reward


def node_reward(metric: float | None, format_ok: bool, format_weight: float) -> float | None:
    """(1 − w)·metric + w·format, in [0, 1], with w = `format_weight` in [0, 1] (seed 003: w = 0.1, metric nDCG@10).

    The format penalty: where the format fails there is no search, `metric` is not looked at, and only the format term
    is left: w·0 = 0, the lowest reward there is. So a malformed turn costs w against a well-formed one that finds
    nothing. None where the format holds and `metric` is None: the environment did not answer, the turn is unscorable,
    and no reward is made up for it.

    Raises ValueError for a metric or a weight outside [0, 1] (NaN included).
    """
    if not 0 <= format_weight <= 1:
        raise ValueError(f"format_weight is {format_weight}; expected a number from 0 to 1")
    form = format_weight * format_reward(format_ok)
    if not format_ok:
        return form
    if metric is None:
        return None
    if not 0 <= metric <= 1:
        raise ValueError(f"metric is {metric}; expected a number from 0 to 1, or None for an unscorable turn")
    return (1 - format_weight) * metric + form
