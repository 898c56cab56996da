"""What a sweep varies: settings with their values, as `--set KEY=A,B,C` says them."""

from collections.abc import Sequence

from ruamel.yaml.error import YAMLError

from ..configs.yaml12 import parse_yaml
from ..errors import ConfigError

NAMED_BY_SWEEP = ("name", "output")
"""Settings that a sweep chooses for its runs."""


def swept_values(settings: Sequence[str]) -> dict[str, list[object]]:
    """The values by setting. Raises ConfigError for a text that is no key with values, and for what a sweep sets."""
    return dict(map(_values_of, settings))


def _values_of(text: str) -> tuple[str, list[object]]:
    key, equals, values = text.partition("=")
    key = key.strip()
    if key in NAMED_BY_SWEEP:
        raise ConfigError(f"a sweep sets {key} itself. Leave it out, and name the sweep with --name.")
    problem = "" if equals and key and values.strip() else "there is no key and no value"
    try:
        parsed = parse_yaml(f"[{values}]") if equals else []
    except YAMLError as error:
        problem = str(error)
    if problem:
        raise ConfigError(f"--set {text!r} is no key with values ({problem}). Write it as --set train.steps=20,40.")
    return key, list(parsed)
