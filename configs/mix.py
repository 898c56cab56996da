"""Configs of several environments: what a member takes over from the run, and one member's config by itself.

A member of `mix.environments` says only what differs: `env`, `client` and `rewriter` of the run are the rest. So one
override of `env.dataset.path` moves all members to another set. Light: no pydantic here, plain data in and out.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from .schema import RunConfig

PLACE = ("mix", "environments")
"""Where the members stand in a config, under names that the user chose."""

SHARED = ("env", "client", "rewriter")
"""The sections that a member takes over, key by key."""


def filled_in(values: Any) -> Any:
    """The values of a run, every member with what it takes over; what is not of that shape is left to validation."""
    found = members(values)
    if found is None:
        return values
    whole = {name: _over(values, member) for name, member in found.items()}
    return {**values, "mix": {**values["mix"], "environments": whole}}


def shortened(values: dict[str, Any]) -> dict[str, Any]:
    """The opposite: members without what they would take over. `filled_in` of it is `values` again."""
    found = members(values)
    if found is None:
        return values
    short = {
        name: {key: _apart(values[key], value) if key in SHARED else value for key, value in member.items()}
        for name, member in found.items()
    }
    return {**values, "mix": {**values["mix"], "environments": short}}


def members(values: Any) -> dict[str, Any] | None:
    """The members in the values of a run, by name; None where it mixes nothing."""
    mix = values.get(PLACE[0]) if isinstance(values, dict) else None
    found = mix.get(PLACE[1]) if isinstance(mix, dict) else None
    return found if isinstance(found, dict) else None


def taken_over(key: tuple[str | int, ...], values: Mapping[str, Any]) -> bool:
    """Whether a setting of a member stands in the run instead: then the run is where it is mended."""
    return key[:2] == PLACE and len(key) > 3 and _has(values, key[3:]) and not _has(values, key)


def environments(config: "RunConfig") -> dict[str, "RunConfig"]:
    """The run on each of its environments alone, by name; {"": config} where it has only one."""
    if config.mix is None:
        return {"": config}
    return {
        name: config.model_copy(update={"mix": None, **{key: getattr(member, key) for key in SHARED}})
        for name, member in config.mix.environments.items()
    }


def chosen(config: "RunConfig", name: str | None) -> dict[str, "RunConfig"]:
    """The environment called `name` as `environments` gives it; all of them for None. Raises ConfigError."""
    known = environments(config)
    if name is None:
        return known
    if config.mix is None:
        raise ConfigError(f"--env is {name!r}, but the config mixes nothing and has one environment. Leave it out.")
    if name not in known:
        raise ConfigError(f"--env is {name!r}; the config mixes {', '.join(known)}. Name one of them.")
    return {name: known[name]}


def only(config: "RunConfig", name: str | None) -> "RunConfig":
    """The run on one environment: the one called `name`, or its only one. Raises ConfigError."""
    found = chosen(config, name)
    if len(found) > 1:
        raise ConfigError(f"the config mixes {', '.join(found)}, and this takes one environment. Name it: --env NAME.")
    return next(iter(found.values()))


def _over(values: Mapping[str, Any], member: Any) -> Any:
    if member is not None and not isinstance(member, dict):
        return member
    own = member or {}
    return {**own, **{key: _merged(values.get(key, {}), own.get(key, {})) for key in SHARED}}


def _merged(base: Any, own: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in own.items()}}


def _apart(base: Any, own: Any) -> Any:
    """What `_merged` has to be given beside `base` to give `own`."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {key: _apart(base.get(key), value) for key, value in own.items() if key not in base or base[key] != value}


def _has(values: Any, key: tuple[str | int, ...]) -> bool:
    for step in key:
        if not isinstance(values, Mapping) or step not in values:
            return False
        values = values[step]
    return True
