"""Settings of a sweep: runs of one config that differ in some settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from ..errors import ConfigError
from .load import read_yaml, validated
from .names import Name
from .section import Section
from .yaml12 import InvalidYAMLError, parse_yaml

NAMED_BY_SWEEP = ("name", "output", "tracking.group")
"""Settings that a sweep chooses for its runs."""


class SweepConfig(Section):
    """Runs of one config that differ in some settings."""

    name: Name | None = None
    """Name of the sweep: the folder of its runs, their group in Weights & Biases, its job in Slurm. None: the name of
    the config and `-sweep`."""
    set: Annotated[dict[str, Annotated[list[object], Field(min_length=1)]], Field(min_length=1)]
    """Values by setting, such as train.learning_rate; a run for every combination."""

    @field_validator("set")
    @classmethod
    def _check_keys(cls, values: dict[str, list[object]]) -> dict[str, list[object]]:
        for key in values:
            if key in NAMED_BY_SWEEP:
                raise ValueError(f"a sweep sets {key} itself; leave it out, and name the sweep with `name`")
        return values


def load_sweep(path: str | None, settings: Sequence[str] = (), name: str | None = None) -> SweepConfig:
    """The sweep of a YAML file and of `key=a,b,c` settings, which win; so does `name`. Raises ConfigError."""
    values = read_yaml(Path(path).expanduser()) if path is not None else {}
    given = dict(map(_values_of, settings))
    in_file = values.get("set", {})
    if given and isinstance(in_file, dict):
        values["set"] = {**in_file, **given}
    return validated(SweepConfig, values | ({"name": name} if name is not None else {}), path or "--set")


def _values_of(text: str) -> tuple[str, list[object]]:
    key, equals, values = text.partition("=")
    problem = "" if equals and key.strip() else "there is no key and no value"
    try:
        parsed = parse_yaml(f"[{values}]") if equals else []
    except InvalidYAMLError as error:
        problem = str(error)
    if problem:
        message = f"--set {text!r} is no key with values ({problem}); write it as --set train.steps=20,40."
        raise ConfigError(message)
    return key.strip(), list(parsed)
