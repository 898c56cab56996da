"""Reads config.yaml of a run folder, drops the settings that this version does not have, and refuses those of a
folder from elsewhere that do more than describe (trust.py). Settings in `Section.removed` are left to validation."""

import logging
import typing
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from ..errors import ConfigError
from .differences import among
from .load import read_yaml, section_of, validated
from .schema import RunConfig
from .section import Section
from .trust import UntrustedSetting, is_own_run, links_outside, refuse_untrusted, untrusted_in

log = logging.getLogger(__name__)


def load_run_config(
    run: Path | str, overrides: Sequence[str] = (), *, trust: bool = False, unused: Collection[str] = ()
) -> RunConfig:
    """The config of a run folder, to evaluate, export or use it; a warning names settings that were dropped.

    Unless `trust` is given, a folder from elsewhere is refused if it has `untrusted_settings`; those in the sections
    `unused` do not count. Raises ConfigError, and as `load_config`.
    """
    path = Path(run) / "config.yaml"
    values, left_out = known_settings(RunConfig, read_yaml(path))
    if left_out:
        log.warning("%s was written by another version; left out: %s", path, ", ".join(left_out))
    config = validated(RunConfig, values, str(path), overrides)
    if not trust:
        untrusted = untrusted_settings(Path(run), config, overrides)
        # read by `querylect optimize` and `querylect train` alone, which take no run folder
        unused = [*unused, "optimize.reflection", "reward.answer"]
        refuse_untrusted(str(run), [setting for setting in untrusted if not among(setting.key, unused)])
    return config


def untrusted_settings(run: Path, config: RunConfig, overrides: Sequence[str] = ()) -> list[UntrustedSetting]:
    """Settings and links with which the run folder of `config` reaches beyond its own data; none if it is the user's.

    What `overrides` set is the user's word and not listed.
    """
    if is_own_run(run):
        return []
    try:
        without = validated(RunConfig, known_settings(RunConfig, read_yaml(run / "config.yaml"))[0], str(run))
    except ConfigError:
        without = config
    of_folder = set(map(str, _untrusted_of(without, run)))  # members of a mix inherit what an override has set
    overridden = [override.partition("=")[0].strip() for override in overrides]
    settings = [
        setting
        for setting in _untrusted_of(config, run)
        if str(setting) in of_folder
        and not any(setting.key == name or setting.key.startswith(f"{name}.") for name in overridden)
    ]
    return [*settings, *links_outside(run)]


def _untrusted_of(config: RunConfig, run: Path) -> list[UntrustedSetting]:
    return list(untrusted_in(config.model_dump(mode="json", exclude={"output"}), run))


def known_settings(schema: type[Section], values: object, prefix: str = "") -> tuple[Any, list[str]]:
    """The values without keys that `schema` neither has nor removed, and the dotted names of those keys."""
    if not isinstance(values, dict):
        return values, []
    retained: dict[str, object] = {name: values[name] for name in values if name in schema.removed}
    left_out = [f"{prefix}{name}" for name in values if name not in {*schema.model_fields, *schema.removed}]

    def known(inner: type[Section], value: object, name: str) -> object:
        inner_values, inner_left_out = known_settings(inner, value, f"{prefix}{name}.")
        left_out.extend(inner_left_out)
        return inner_values

    for name in values.keys() & schema.model_fields.keys():
        value, annotation = values[name], schema.model_fields[name].annotation
        if (inner := section_of(annotation)) is None:
            retained[name] = value
        elif typing.get_origin(annotation) is dict and isinstance(value, dict):
            retained[name] = {
                member: known(inner, of_member, f"{name}.{member}") for member, of_member in value.items()
            }
        else:
            retained[name] = known(inner, value, name)
    return retained, left_out
