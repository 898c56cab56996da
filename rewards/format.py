"""The reward for keeping to the output format."""


def format_reward(ok: bool) -> float:
    """1 where the sampled turn keeps to its rewriter's format, else 0 (seed 003)."""
    return 1.0 if ok else 0.0
