"""Settings of a mix as plain values: a member inherits the run's and overrides them."""

from collections.abc import Mapping
from typing import Any

PLACE = ("mix", "environments")
"""Path of the members in a config; they are keyed by names that the user chose."""


SHARED = ("env", "client", "rewriter")
"""Sections that a member inherits, key by key."""


def filled_in(values: Any) -> Any:
    """The run's values with inherited settings filled into every member; malformed values are left to validation."""
    by_name = members(values)
    if by_name is None:
        return values
    filled = {name: _filled_member(values, member) for name, member in by_name.items()}
    return {**values, "mix": {**values["mix"], "environments": filled}}


def shortened(values: dict[str, Any]) -> dict[str, Any]:
    """The inverse of `filled_in`: members without the settings that they inherit."""
    by_name = members(values)
    if by_name is None:
        return values
    short = {
        name: {key: _difference(values[key], value) if key in SHARED else value for key, value in member.items()}
        for name, member in by_name.items()
    }
    return {**values, "mix": {**values["mix"], "environments": short}}


def members(values: Any) -> dict[str, Any] | None:
    """The members in the values of a run, by name; None where it mixes nothing."""
    mix = values.get(PLACE[0]) if isinstance(values, dict) else None
    by_name = mix.get(PLACE[1]) if isinstance(mix, dict) else None
    return by_name if isinstance(by_name, dict) else None


def taken_over(key: tuple[str | int, ...], values: Mapping[str, Any]) -> bool:
    """Whether a member inherited this setting, so that it has to be corrected in the run."""
    return key[:2] == PLACE and len(key) > 3 and _has(values, key[3:]) and not _has(values, key)


def _filled_member(values: Mapping[str, Any], member: Any) -> Any:
    if member is not None and not isinstance(member, dict):
        return member
    overrides = member or {}
    return {**overrides, **{key: _merged(values.get(key, {}), overrides.get(key, {})) for key in SHARED}}


def _merged(base: Any, overrides: Any) -> Any:
    if not (isinstance(base, dict) and isinstance(overrides, dict)):
        return overrides
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in overrides.items()}}


def _difference(base: Any, merged: Any) -> Any:
    """The `overrides` for which `_merged(base, overrides)` is `merged`."""
    if not (isinstance(base, dict) and isinstance(merged, dict)):
        return merged
    return {
        key: _difference(base.get(key), value) for key, value in merged.items() if key not in base or base[key] != value
    }


def _has(values: Any, key: tuple[str | int, ...]) -> bool:
    for step in key:
        if not isinstance(values, Mapping) or step not in values:
            return False
        values = values[step]
    return True
