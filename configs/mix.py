"""A mix: several environments for one policy, each as a config of its own.

A member of `mix.environments` sets only what differs and inherits the rest from `env`, `client` and `rewriter` of the
run. So one override of `env.dataset.path` applies to all members.
"""

from ..errors import ConfigError
from .schema import SHARED, RunConfig


def environments(config: RunConfig) -> dict[str, RunConfig]:
    """One config per environment, by name; {"": config} without a mix."""
    if config.mix is None:
        return {"": config}
    return {
        name: config.model_copy(update={"mix": None, **{key: getattr(member, key) for key in SHARED}})
        for name, member in config.mix.environments.items()
    }


def deadlines(config: RunConfig) -> dict[str, float]:
    """Seconds of `client.deadline` by environment; {"": …} without a mix."""
    return {name: member.client.deadline for name, member in environments(config).items()}


def chosen(config: RunConfig, name: str | None) -> dict[str, RunConfig]:
    """The entry `name` of `environments(config)`; all entries for None. Raises ConfigError."""
    by_name = environments(config)
    if name is None:
        return by_name
    if name not in by_name or config.mix is None:
        raise ConfigError(f"--env is {name!r}; the config mixes {', '.join(by_name) or 'nothing: leave it out'}.")
    return {name: by_name[name]}


def only(config: RunConfig, name: str | None) -> RunConfig:
    """The config of the environment `name`, or of the only one. Raises ConfigError."""
    runs = chosen(config, name)
    if len(runs) > 1:
        raise ConfigError(f"the config mixes {', '.join(runs)}, and this takes one of them: --env NAME.")
    return next(iter(runs.values()))
