"""Configuration from the schema's defaults, a YAML file and dotted overrides; later ones win.

All mistakes are raised as one ConfigError that names the source (file or override), the key, its value and what was
expected. Imports only pydantic and ruamel.yaml.
"""

import difflib
import json
import os
import typing
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import ValidationError

from ..errors import ConfigError
from .mix_values import shortened
from .schema import RunConfig
from .section import Section
from .yaml12 import InvalidYAMLError, parse_yaml, write_yaml

Settings = typing.TypeVar("Settings", bound=Section)

Key = tuple[str | int, ...]
"""Path in a configuration: section and key names, and list indices."""

_FOLDER = Path(__file__).parent


def known_configs() -> list[str]:
    """Names of the configurations that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def is_override(argument: str) -> bool:
    """Whether an argument that may name a config is KEY=VALUE instead: no file has that name."""
    return "=" in argument and not os.path.exists(argument)  # unlike Path.exists, False for what no path can be


def load_config(path_or_name: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and validate a configuration.

    `path_or_name` is a packaged name (`demo`) or a YAML file; None starts from the defaults of the schema. Each
    override is `dotted.key=VALUE` with a YAML value (`train.learning_rate=1e-5`, `rollout.branching=[2,2]`); a later
    one wins over an earlier one. Raises ConfigError.
    """
    source = "the defaults"
    values: dict[str, object] = {}
    if path_or_name is not None:
        path = _config_path(path_or_name)
        source, values = str(path), read_yaml(path)
    return validated(RunConfig, values, source, overrides)


def validated(
    schema: type[Settings], values: dict[str, object], source: str, overrides: Sequence[str] = ()
) -> Settings:
    """The settings in `values`, read from `source`, after the overrides. Raises ConfigError."""
    by_key: dict[Key, str] = {}
    for override in overrides:
        key, value = _parse_override(override, schema)
        if missing := _missing_member(key, values, schema):
            parent, present = missing
            raise ConfigError(
                f"override {override!r}: there is no {key[len(parent)]!r} in {_dotted(parent)}; {source} has "
                f"{', '.join(present) or 'none'}. Give a whole one as {_dotted(key[: len(parent) + 1])}={{…}}."
            )
        _set(values, key, value)
        by_key[key] = override
    try:
        return schema.model_validate(values, strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(_error_lines(error, values, source, by_key, schema))) from error


def dump_config(config: RunConfig) -> str:
    """Return the whole configuration as YAML; `load_config` reads it back to an equal one."""
    return write_yaml(shortened(config.model_dump(mode="json")))


def _config_path(path_or_name: str) -> Path:
    if path_or_name in known_configs():
        return _FOLDER / f"{path_or_name}.yaml"
    path = Path(path_or_name).expanduser()
    if path.is_file():
        return path
    names = ", ".join(known_configs())
    matches = difflib.get_close_matches(path.name.removesuffix(".yaml"), known_configs(), n=1)
    hint = f"Did you mean {matches[0]!r}? " if matches else ""
    raise ConfigError(
        f"config {path_or_name!r} not found: no such file and no packaged config. {hint}"
        f"Give a YAML file or one of: {names}."
    )


def read_yaml(path: Path) -> dict[str, object]:
    """The mapping in a YAML file. Raises ConfigError where there is none."""
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        message = f"{path} is not UTF-8 text (byte {error.start}); expected a YAML file."
        raise ConfigError(message) from error
    except InvalidYAMLError as error:
        raise ConfigError(f"{path}, {error}.") from error
    if not isinstance(values, dict):
        actual = "nothing" if values is None else f"a {type(values).__name__}"
        message = f"{path} holds {actual}; expected a mapping with keys such as env, policy and train."
        raise ConfigError(message)
    return values


def _parse_override(override: str, schema: type[Section]) -> tuple[Key, object]:
    name, equals, text = override.partition("=")
    name = name.strip()
    if not equals or not name:
        message = f"override {override!r} has no key and value; write it as key=value, such as train.steps=5."
        raise ConfigError(message)
    key: Key = tuple(name.split("."))
    if _schema_key(key, schema)[0] not in _schema_keys(schema):
        raise ConfigError(f"override {override!r}: {_unknown_key_message(key, schema)}")
    try:
        return key, parse_yaml(text)
    except InvalidYAMLError as error:
        message = f"override {override!r}: the value is not valid YAML, {error}."
        raise ConfigError(message) from error


def _set(values: dict[str, object], key: Key, value: object) -> None:
    *sections, last = map(str, key)
    for section in sections:
        inner = values.get(section)
        values[section] = values = dict(inner) if isinstance(inner, dict) else {}
    values[last] = value


def section_of(annotation: object) -> type[Section] | None:
    """The section class inside an annotation such as `LoraConfig | None` or `dict[Name, DatasetConfig | None]`; None
    for a plain setting."""
    if options := typing.get_args(annotation):
        return next(filter(None, map(section_of, options)), None)
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


@cache
def _schema_keys(section: type[Section]) -> Mapping[Key, type[Section] | None]:
    """Every key of the schema, sections included, in order, and the class of a section."""
    keys: dict[Key, type[Section] | None] = {}
    for name, info in section.model_fields.items():
        inner = keys[name,] = section_of(info.annotation)
        if inner is not None:
            keys |= {(name, *key): below for key, below in _schema_keys(inner).items()}
    return keys


def _schema_key(key: Key, schema: type[Section]) -> tuple[Key, dict[int, str]]:
    """The key as in the schema, without member names that the user chose, and those names by depth."""
    schema_key: list[str | int] = []
    names: dict[int, str] = {}
    section: type[Section] | None = schema
    is_name = False
    for depth, step in enumerate(key):
        if is_name:
            names[depth], is_name = str(step), False
            continue
        schema_key.append(step)
        info = section.model_fields.get(str(step)) if section is not None else None
        section = section_of(info.annotation) if info is not None else None
        is_name = info is not None and typing.get_origin(info.annotation) is dict
    return tuple(schema_key), names


def _missing_member(key: Key, values: Mapping[str, object], schema: type[Section]) -> tuple[Key, list[str]] | None:
    """For a key of a member that `values` lacks: the path of the members and the names present; else None."""
    for depth, name in _schema_key(key, schema)[1].items():
        parent: object = values
        for step in key[:depth]:
            parent = parent.get(step) if isinstance(parent, dict) else None
        present = list(parent) if isinstance(parent, dict) else []
        if len(key) > depth + 1 and name not in present:
            return key[:depth], present
    return None


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))


def _unknown_key_message(key: Key, schema: type[Section]) -> str:
    """The key of the schema, in any section, whose last part is most similar; else the keys beside it."""

    def likeness(candidate: Key) -> tuple[float, float]:
        last = difflib.SequenceMatcher(None, str(key[-1]), str(candidate[-1])).ratio()
        full = difflib.SequenceMatcher(None, _dotted(key), _dotted(candidate)).ratio()
        return (last, full)

    keys = _schema_keys(schema)
    nearest = max(keys, key=likeness)
    if likeness(nearest)[0] >= 0.6:
        for depth, name in _schema_key(key, schema)[1].items():
            if nearest[:depth] == key[:depth] and len(nearest) > depth:
                nearest = (*nearest[:depth], name, *nearest[depth:])
        return f"unknown key {_dotted(key)}; did you mean {_dotted(nearest)}?"
    parent = _schema_key(key[:-1], schema)[0]
    siblings = ", ".join(str(candidate[-1]) for candidate in keys if candidate[:-1] == parent)
    return f"unknown key {_dotted(key)}; {_dotted(key[:-1]) or 'a file'} has {siblings or 'no keys'}."


def _error_lines(
    error: ValidationError, values: Mapping[str, object], source: str, by_key: Mapping[Key, str], schema: type[Section]
) -> Iterator[str]:
    """One line per wrong key, with what pydantic says of each option of a union."""
    sentences: dict[Key, list[str]] = {}
    for problem in error.errors(include_url=False, include_context=False):
        key, value = _existing(problem["loc"], values)
        if problem["type"] == "extra_forbidden":
            sentence = _unknown_key_message(key, schema)
        elif problem["type"] == "value_error":
            sentence = problem["msg"].removeprefix("Value error, ")
        elif key in sentences:
            sentence = problem["msg"]
        else:
            sentence = f"{_dotted(key)} is {_preview(value)}: {problem['msg']}"
        sentences.setdefault(key, []).append(sentence)
    for key, options in sentences.items():
        if any(longer != key and longer[: len(key)] == key for longer in sentences):
            continue
        override = next((text for by, text in reversed(list(by_key.items())) if key[: len(by)] == by), None)
        yield f"{source if override is None else f'override {override!r}'}: {', or '.join(dict.fromkeys(options))}"


def _existing(location: Key, values: object) -> tuple[Key, object]:
    """The part of pydantic's error location that exists in the values, without the names of union options that pydantic
    adds, and the value there."""
    key: list[str | int] = []
    for step in location:
        children = dict(enumerate(values)) if isinstance(values, list) else values
        if isinstance(children, Mapping) and step in children:
            values = children[step]
            key.append(step)
    return tuple(key), values


def _preview(value: object) -> str:
    """A value as JSON, cut to 80 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."
