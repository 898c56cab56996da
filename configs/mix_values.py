"""Settings of a mix as plain values: a member inherits the run's and overrides them."""

from collections.abc import Callable

PATH = ("mix", "environments")
"""Path of the members in a config; they are keyed by names that the user chose."""

SHARED = ("env", "client", "rewriter")
"""Sections that a member inherits, key by key."""


def filled_in(values: object) -> object:
    """The run's values with inherited settings filled into every member; malformed values are left to validation."""
    if not isinstance(values, dict):
        return values
    return _each_member(
        values, lambda member: {key: _merged(values.get(key, {}), member.get(key, {})) for key in SHARED}
    )


def shortened(values: dict[str, object]) -> dict[str, object]:
    """The inverse of `filled_in`: members without the settings that they inherit."""
    return _each_member(values, lambda member: {key: _difference(values[key], member[key]) for key in SHARED})


def _each_member(
    values: dict[str, object], changed: Callable[[dict[str, object]], dict[str, object]]
) -> dict[str, object]:
    """The values of a run with the `changed` settings of every member; unchanged where it mixes nothing."""
    mix = values.get(PATH[0])
    members = mix.get(PATH[1]) if isinstance(mix, dict) else None
    if not isinstance(mix, dict) or not isinstance(members, dict):
        return values
    members = {name: {} if member is None else member for name, member in members.items()}
    members |= {name: {**member, **changed(member)} for name, member in members.items() if isinstance(member, dict)}
    return {**values, "mix": {**mix, "environments": members}}


def _merged(base: object, overrides: object) -> object:
    if not (isinstance(base, dict) and isinstance(overrides, dict)):
        return overrides
    return {**base, **{key: _merged(base[key], value) if key in base else value for key, value in overrides.items()}}


def _difference(base: object, merged: object) -> object:
    """The `overrides` for which `_merged(base, overrides)` is `merged`."""
    if not (isinstance(base, dict) and isinstance(merged, dict)):
        return merged
    return {
        key: _difference(base.get(key), value) for key, value in merged.items() if key not in base or base[key] != value
    }
