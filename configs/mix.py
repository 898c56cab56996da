"""A mix: several environments for one policy, each as a config of its own.

A member of `mix.environments` sets only what differs and inherits the rest from `env`, `client` and `rewriter` of the
run. So one override of `env.dataset.path` applies to all members.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from .schema import RunConfig

SHARED = ("env", "client", "rewriter")
"""Sections that a member inherits, key by key."""


def environments(config: "RunConfig") -> dict[str, "RunConfig"]:
    """One config per environment, by name; {"": config} without a mix."""
    if config.mix is None:
        return {"": config}
    return {
        name: config.model_copy(update={"mix": None, **{key: getattr(member, key) for key in SHARED}})
        for name, member in config.mix.environments.items()
    }


def deadlines(config: "RunConfig") -> dict[str, float]:
    """Seconds of `client.deadline` by environment; {"": …} without a mix."""
    return {name: member.client.deadline for name, member in environments(config).items()}


def chosen(config: "RunConfig", name: str | None) -> dict[str, "RunConfig"]:
    """The entry `name` of `environments(config)`; all entries for None. Raises ConfigError."""
    by_name = environments(config)
    if name is None:
        return by_name
    if name not in by_name or config.mix is None:
        raise ConfigError(f"--env is {name!r}; the config mixes {', '.join(by_name) or 'nothing: leave it out'}.")
    return {name: by_name[name]}


def only(config: "RunConfig", name: str | None) -> "RunConfig":
    """The config of the environment `name`, or of the only one. Raises ConfigError."""
    runs = chosen(config, name)
    if len(runs) > 1:
        raise ConfigError(f"the config mixes {', '.join(runs)}, and this takes one of them: --env NAME.")
    return next(iter(runs.values()))


def filled_in(values: Any) -> Any:
    """The plain values of a run with what its members inherit; malformed values are left to validation."""
    return _with_members(values, lambda base, member: _merged(base or {}, member or {}))


def shortened(values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `filled_in`: members without the settings that they inherit."""
    changed: dict[str, Any] = _with_members(values, _difference)
    return changed


def _with_members(values: Any, change: Callable[[Any, Any], Any]) -> Any:
    """The values with `change(run's, member's)` as each shared section of each member."""
    match values:
        case {"mix": {"environments": dict(members)} as mix}:
            new = {
                name: {**(member or {}), **{key: change(values.get(key), (member or {}).get(key)) for key in SHARED}}
                if isinstance(member, dict | None)
                else member
                for name, member in members.items()
            }
            return {**values, "mix": {**mix, "environments": new}}
    return values


def _merged(base: Any, overrides: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(overrides, dict)):
        return overrides
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in overrides.items()}}


def _difference(base: Any, merged: Any) -> Any:
    """The `overrides` for which `_merged(base, overrides)` is `merged`."""
    if not (isinstance(base, dict) and isinstance(merged, dict)):
        return merged
    return {key: _difference(base.get(key), value) for key, value in merged.items() if base.get(key, ...) != value}
