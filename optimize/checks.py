"""Which configs `querylect optimize` refuses, told from the settings alone."""

from ..configs.schema import RewardConfig, RewriterConfig
from ..errors import ConfigError


def refuse_unsupported(rewriter: RewriterConfig, reward: RewardConfig) -> None:
    """Raise ConfigError for a rewriter without a prompt file, the offer to stop, and rewards by answers."""
    if reward.kind == "answer":
        raise ConfigError(
            "reward.kind is answer, and `querylect optimize` scores prompts by the metric of their rankings. Set "
            "reward.kind=metric."
        )
    if rewriter.stop:
        raise ConfigError(
            "rewriter.stop is true, and the prompt that `querylect optimize` changes does not hold the offer to "
            "stop. Set rewriter.stop=false."
        )
    if rewriter.name != "few_shot":
        raise ConfigError(
            f"rewriter.name is {rewriter.name!r}, whose prompt is part of the code. `querylect optimize` "
            "changes the prompt file of rewriter.name=few_shot: name one with rewriter.prompt=FILE.yaml."
        )
