"""The settings of a run folder as this version reads them: one of another version may have settings that are gone."""

import logging
import typing
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .load import read_yaml, validated
from .schema import RunConfig, Section

log = logging.getLogger(__name__)


def load_run_config(run: Path | str, overrides: Sequence[str] = ()) -> RunConfig:
    """The settings of a run folder, to evaluate, export or use it; those that this version does not have are left out.

    A warning names them. Raises ConfigError as `load_config`.
    """
    path = Path(run) / "config.yaml"
    values, left_out = known_settings(RunConfig, read_yaml(path))
    if left_out:
        log.warning("%s was written by another version; left out: %s", path, ", ".join(left_out))
    return validated(RunConfig, values, str(path), overrides)


def known_settings(schema: type[Section], values: Any, above: str = "") -> tuple[Any, list[str]]:
    """Plain values without the keys that a section does not have, and the dotted names of these."""
    if not isinstance(values, dict):
        return values, []
    kept: dict[str, Any] = {}
    left_out = [f"{above}{name}" for name in values if name not in schema.model_fields]
    for name in values.keys() & schema.model_fields.keys():
        kept[name] = values[name]
        inner, of_many = _section_in(schema.model_fields[name].annotation)
        if inner is not None and of_many and isinstance(values[name], dict):
            for one, value in values[name].items():
                kept[name] = {**kept[name], one: _known_below(inner, value, f"{above}{name}.{one}.", left_out)}
        elif inner is not None:
            kept[name] = _known_below(inner, values[name], f"{above}{name}.", left_out)
    return kept, left_out


def _known_below(schema: type[Section], values: Any, above: str, left_out: list[str]) -> Any:
    kept, more = known_settings(schema, values, above)
    left_out += more
    return kept


def _section_in(annotation: Any) -> tuple[type[Section] | None, bool]:
    """The section that a field holds, and whether it holds several of them by name."""
    for option in (annotation, *typing.get_args(annotation)):
        if isinstance(option, type) and issubclass(option, Section):
            return option, typing.get_origin(annotation) is dict
        if typing.get_origin(option) is not None and option is not annotation:
            found, of_many = _section_in(option)
            if found is not None:
                return found, of_many
    return None, False
