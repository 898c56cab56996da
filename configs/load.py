"""Settings from the schema's defaults, a YAML file and dotted overrides; later ones win.

A wrong setting is a ConfigError that names the file or override, the key, its value and what was expected. Imports only
pydantic and ruamel.yaml.
"""

import difflib
import json
import os
import re
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from io import StringIO
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from ..errors import ConfigError, in_one_line
from .schema import RunConfig
from .section import Section
from .training import TrainConfig

Settings = typing.TypeVar("Settings", bound=Section)

_FOLDER = Path(__file__).parent


def known_configs(folder: Path = _FOLDER) -> list[str]:
    """Names of the YAML files that come with the package in a folder of it, sorted."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def config_file(name: str, folder: Path = _FOLDER) -> Path:
    """The YAML file `name`, or the packaged one of that name in `folder`. Raises ConfigError."""
    names = known_configs(folder)
    path = folder / f"{name}.yaml" if name in names else Path(name).expanduser()
    if path.is_file():
        return path
    nearest = difflib.get_close_matches(path.name.removesuffix(".yaml"), names, n=1)
    hint = f"Did you mean {nearest[0]!r}? " if nearest else ""
    raise ConfigError(f"there is no file {name!r}. {hint}Give a YAML file or one of: {', '.join(names)}.")


def is_override(argument: str) -> bool:
    """Whether an argument that may name a config is KEY=VALUE instead: no file has that name."""
    return "=" in argument and not os.path.exists(argument)  # unlike Path.exists, False for what no path can be


def load_config(name: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and validate a configuration: a packaged one (`demo`), a YAML file, or for None the schema's defaults.

    Each override is `dotted.key=VALUE` with a YAML value (`train.learning_rate=1e-5`, `rollout.branching=[2,2]`); a
    later one wins. One in place of the name changes `demo`. Raises ConfigError.
    """
    if name is None:
        return validated(RunConfig, {}, "the defaults", overrides)
    if is_override(name):
        name, overrides = "demo", [name, *overrides]
    path = config_file(name)
    return validated(RunConfig, read_yaml(path), str(path), overrides)


def validated(
    schema: type[Settings], values: Mapping[str, Any], source: str, overrides: Sequence[str] = ()
) -> Settings:
    """The settings in `values`, read from `source`, after the overrides. Raises ConfigError."""
    changed = deepcopy(dict(values))
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key:
            raise ConfigError(f"override {override!r}: expected key=value, such as train.steps=5")
        try:
            _set(changed, key.strip(), parse_yaml(text), set(_setting_names(schema)))
        except (YAMLError, ValueError) as error:
            raise ConfigError(f"override {override!r}: {in_one_line(error)}") from error
    try:
        return schema.model_validate(changed, strict=True)
    except ValidationError as error:
        problems = error.errors(include_url=False)
    lines = []
    for problem in problems:
        key = ".".join(map(str, problem["loc"]))
        by = [override for override in overrides if f"{key}.".startswith(f"{override.partition('=')[0]}.")]
        if problem["type"] == "extra_forbidden":
            message = f"there is no setting {key}; did you mean {_nearest(key, schema)}?"
        elif problem["type"] == "value_error":
            message = problem["msg"].removeprefix("Value error, ")
        else:
            message = f"{key} is {_preview(problem['input'])}: {problem['msg']}"
        lines.append(f"{f'override {by[-1]!r}' if by else source}: {message}")
    raise ConfigError("\n".join(lines))


def dump_config(config: RunConfig) -> str:
    """The whole configuration as YAML; `load_config` reads it back to an equal one."""
    return write_yaml(config.model_dump(mode="json"))


def read_yaml(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file. Raises ConfigError where there is none."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except (YAMLError, ValueError) as error:
        raise ConfigError(f"{path}: {in_one_line(error)}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds {_preview(values)}; expected a mapping with keys such as env and train")
    return values


def _set(values: dict[str, Any], key: str, value: object, names: set[str]) -> None:
    """Set a dotted key. Raises ValueError below a name of the user's, such as a system's, that `values` lacks."""
    *sections, last = key.split(".")
    path = ""
    for section in sections:
        if f"{path}NAME" in names and section not in values:
            raise ValueError(f"there is no {section!r} in {path[:-1]}, which has {', '.join(values) or 'none'}")
        path += f"{section}."
        if not isinstance(values.get(section), dict):
            values[section] = {}
        values = values[section]
    values[last] = value


def _setting_names(section: type[Section], prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings and sections; NAME stands for one that the user chooses."""
    for name, info in section.model_fields.items():
        yield (path := f"{prefix}{name}")
        if inner := _section_in(info.annotation):
            if typing.get_origin(info.annotation) is dict:
                yield (path := f"{path}.NAME")
            yield from _setting_names(inner, f"{path}.")


def _section_in(annotation: object) -> type[Section] | None:
    """The section class in an annotation such as `LoraConfig | None`; None for a plain setting."""
    if options := typing.get_args(annotation):
        return next(filter(None, map(_section_in, options)), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def _nearest(key: str, schema: type[Section]) -> str:
    """The setting, in any section, whose last name is most similar."""

    def likeness(candidate: str) -> tuple[float, float]:
        last = difflib.SequenceMatcher(None, key.rpartition(".")[2], candidate.rpartition(".")[2]).ratio()
        return last, difflib.SequenceMatcher(None, key, candidate).ratio()

    return max(_setting_names(schema), key=likeness)


def _preview(value: object) -> str:
    """A value as JSON, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def parse_yaml(text: str) -> Any:
    """The value of one YAML document, of plain types. Raises ruamel.yaml.error.YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def write_yaml(value: object) -> str:
    """YAML that `parse_yaml` reads back to an equal value; dictionaries keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 100
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()


def load_run_config(run: Path | str, overrides: Sequence[str] = (), *, trust: bool = False) -> RunConfig:
    """`load_config` of a run folder.

    Without `trust`, ConfigError too for the folder of another user whose settings run code that `overrides` do not set.
    """
    path = Path(run) / "config.yaml"
    if not trust and not is_own(path):
        overridden = {override.partition("=")[0].strip() for override in overrides}
        code = [f"{key}={value}" for key, value in _code_in(read_yaml(path)) if key not in overridden]
        if code:
            raise ConfigError(
                f"{run} is not yours, and its settings run code: {'; '.join(code)}. Set these yourself (key=value), "
                "or, if you trust its author, use them with --trust (trust=True in Python)."
            )
    return load_config(str(path), overrides)


def is_own(path: Path) -> bool:
    """Whether a file or folder belongs to the user of this process."""
    return path.stat().st_uid == os.getuid()


def _code_in(values: Any, key: str = "") -> Iterator[tuple[str, object]]:
    """The settings `python:FILE`, which run code, with their dotted names."""
    inner = values.items() if isinstance(values, Mapping) else enumerate(values) if isinstance(values, list) else ()
    for name, value in inner:
        yield from _code_in(value, f"{key}.{name}" if key else str(name))
    if str(values).startswith("python:"):
        yield key, values


FREE_TO_CHANGE = (
    "tracking", "eval", "answers", "client", "env.host", "env.port", "train.save_steps",
    "train.validate_steps", "train.keep_checkpoints", "rollout.micro_batch",
    "rollout.max_prompt_tokens", "rollout.vllm", "rollout.server", "optimize.searches",
    "synthetic", *(f"{model}.{name}"
                   for model in ("rewriter.llm", "optimize.reflection", "optimize.task", "reward.answer.reader")
                   for name in ("concurrency", "deadline", "cache")),
)  # fmt: skip
"""Settings that never change what a run learns."""


def free_to_change(train: TrainConfig) -> tuple[str, ...]:
    """Settings that a resumed run may change; `train.steps` is one of them unless the learning rate decays by it."""
    return (*FREE_TO_CHANGE, "train.steps") if train.lr_schedule == "constant" else FREE_TO_CHANGE


def flat(values: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    """Every value under its dotted name: {"train": {"steps": 4}} gives ("train.steps", 4)."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def among(name: str, sections: Collection[str]) -> bool:
    """Whether a dotted name is one of `sections` or below one; the prefix of a mix's member is ignored."""
    name = re.sub(r"^mix\.environments\.[^.]+\.", "", name)
    return any(f"{name}.".startswith(f"{section}.") for section in sections)
