"""A configuration from a YAML file, the defaults of the schema and dotted overrides, in rising order of precedence.

Whatever is wrong ends in one ConfigError that says where (file or override), which key, the value seen and what was
expected. Light: pydantic and PyYAML only.
"""

import difflib
import json
import typing
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from ..errors import ConfigError
from .mix import PLACE, has_member, members, schema_key, shortened, taken_over
from .schema import RunConfig, Section
from .yaml12 import parse_yaml, write_yaml

Key = tuple[str | int, ...]
"""A place in a configuration: names of sections and keys, and positions in lists."""

_FOLDER = Path(__file__).parent


def known_configs() -> list[str]:
    """Names of the configurations that come with the package, sorted."""
    return sorted(path.stem for path in _FOLDER.glob("*.yaml"))


def load_config(path_or_name: str | None, overrides: Sequence[str] = ()) -> RunConfig:
    """Read and validate a configuration.

    `path_or_name` is a packaged name (`demo`) or a YAML file; None starts from the defaults of the schema. Each
    override is `dotted.key=VALUE` with a YAML value (`train.learning_rate=1e-5`, `rollout.branching=[2,2]`); a later
    one wins over an earlier one. Raises ConfigError.
    """
    where = "the defaults"
    values: dict[str, Any] = {}
    if path_or_name is not None:
        path = _find(path_or_name)
        where, values = str(path), _read(path)
    typed: dict[Key, str] = {}
    for override in overrides:
        key, value = _parse_override(override)
        if len(key) > 3 and not has_member(values, key):
            raise ConfigError(
                f"override {override!r}: there is no environment {key[2]!r}; {where} mixes "
                f"{', '.join(members(values) or {}) or 'none'}. Give a whole one as mix.environments.{key[2]}={{…}}."
            )
        _set(values, key, value)
        typed[key] = override
    try:
        return RunConfig.model_validate(values, strict=True)
    except ValidationError as error:
        raise ConfigError("\n".join(_complaints(error, values, where, typed))) from error


def dump_config(config: RunConfig) -> str:
    """Return the whole configuration as YAML; `load_config` reads it back to an equal one."""
    return write_yaml(shortened(config.model_dump(mode="json")))


def _find(path_or_name: str) -> Path:
    if path_or_name in known_configs():
        return _FOLDER / f"{path_or_name}.yaml"
    path = Path(path_or_name).expanduser()
    if path.is_file():
        return path
    names = ", ".join(known_configs())
    if path.is_dir():
        raise ConfigError(
            f"config {path_or_name!r} is a folder; give a YAML file or one of the packaged configs: {names}."
        )
    near = difflib.get_close_matches(path.name.removesuffix(".yaml"), known_configs(), n=1)
    hint = f"Did you mean {near[0]!r}? " if near else ""
    raise ConfigError(
        f"config {path_or_name!r} not found: no such file and no packaged config. {hint}"
        f"Give a YAML file or one of: {names}."
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        values = parse_yaml(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not UTF-8 text (byte {error.start}); expected a YAML file.") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}{_yaml_problem(error)}") from error
    if not isinstance(values, dict):
        seen = "nothing" if values is None else f"a {type(values).__name__}"
        raise ConfigError(f"{path} holds {seen}; expected a mapping with keys such as env, policy and train.")
    return values


def _yaml_problem(error: yaml.YAMLError) -> str:
    mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
    if mark is None:
        return f" is not valid YAML: {' '.join(str(error).split())}."
    problem = error.problem or error.context or "syntax error"  # type: ignore[attr-defined]
    return f", line {mark.line + 1}, column {mark.column + 1}: {problem}."


def _parse_override(override: str) -> tuple[Key, Any]:
    name, equals, text = override.partition("=")
    name = name.strip()
    if not equals or not name:
        raise ConfigError(f"override {override!r} has no key and value; write it as key=value, such as train.steps=5.")
    key: Key = tuple(name.split("."))
    if schema_key(key) not in dict(_known_keys(RunConfig)):
        raise ConfigError(f"override {override!r}: {_unknown_key(key)}")
    try:
        return key, parse_yaml(text)
    except yaml.YAMLError as error:
        raise ConfigError(f"override {override!r}: the value is not valid YAML{_yaml_problem(error)}") from error


def _set(values: dict[str, Any], key: Key, value: Any) -> None:
    *sections, last = map(str, key)
    for section in sections:
        inner = values.get(section)
        values[section] = values = dict(inner) if isinstance(inner, dict) else {}
    values[last] = value


def _section_of(annotation: Any) -> type[Section] | None:
    """The section class inside an annotation such as `LoraConfig | None`; None for a plain setting."""
    for option in typing.get_args(annotation) or (annotation,):
        if isinstance(option, type) and issubclass(option, Section):
            return option
    return None


def _known_keys(section: type[Section], above: Key = ()) -> Iterator[tuple[Key, type[Section] | None]]:
    """Every key of the schema, sections included, in order."""
    for name, info in section.model_fields.items():
        inner = _section_of(info.annotation)
        yield (*above, name), inner
        if inner is not None:
            yield from _known_keys(inner, (*above, name))


def _dotted(key: Key) -> str:
    return ".".join(map(str, key))


def _unknown_key(key: Key) -> str:
    """One sentence that names the nearest known key: the one whose last name is most alike, in any section."""

    def likeness(candidate: Key) -> tuple[float, float]:
        last = difflib.SequenceMatcher(None, str(key[-1]), str(candidate[-1])).ratio()
        whole = difflib.SequenceMatcher(None, _dotted(key), _dotted(candidate)).ratio()
        return (last, whole)

    known = dict(_known_keys(RunConfig))
    nearest = max(known, key=likeness)
    if likeness(nearest)[0] >= 0.6:
        if nearest[:2] == PLACE == key[:2]:
            nearest = (*key[:3], *nearest[2:])
        return f"unknown key {_dotted(key)}; did you mean {_dotted(nearest)}?"
    above = schema_key(key[:-1])
    if above in known and known[above] is None:
        return f"unknown key {_dotted(key)}; {_dotted(key[:-1])} is a single setting."
    beside = [str(candidate[-1]) for candidate in known if candidate[:-1] == above]
    if above and beside:
        return f"unknown key {_dotted(key)}; {_dotted(key[:-1])} has {', '.join(beside)}."
    return f"unknown key {_dotted(key)}; known are {', '.join(RunConfig.model_fields)}."


def _complaints(
    error: ValidationError, values: Mapping[str, Any], where: str, typed: Mapping[Key, str]
) -> Iterator[str]:
    """One line per wrong key. The options of a union are joined: `expected a list or 'local'`."""
    expected: dict[Key, list[str]] = {}
    sentences: list[tuple[Key, str]] = []
    for problem in error.errors(include_url=False, include_context=False):
        if taken_over(problem["loc"], values):
            continue
        key = _place(problem["loc"], values)
        message = problem["msg"]
        if problem["type"] == "extra_forbidden":
            sentences.append((key, _unknown_key(key)))
        elif problem["type"] == "value_error":
            sentences.append((key, message.removeprefix("Value error, ") + "."))
        else:
            expected.setdefault(key, []).append(_expectation(problem["type"], message, key))
    for key, options in expected.items():
        if any(deeper != key and deeper[: len(key)] == key for deeper in expected):
            continue
        seen = _shown(_value_at(values, key))
        quote = " (quote it to make it text)" if options == ["text"] else ""
        sentences.append((key, f"{_dotted(key)} is {seen}; expected {' or '.join(dict.fromkeys(options))}{quote}."))
    for key, sentence in sentences:
        override = next((text for made, text in reversed(list(typed.items())) if key[: len(made)] == made), None)
        yield f"override {override!r}: {sentence}" if override is not None else f"{where}: {sentence}"


def _place(location: Key, values: Mapping[Any, Any]) -> Key:
    """The part of an error's location that exists in the file: pydantic adds the names of union options."""
    key: list[str | int] = []
    current: Any = values
    for step in location:
        inside_list = isinstance(current, list) and isinstance(step, int) and step < len(current)
        if not inside_list and not (isinstance(current, Mapping) and step in current):
            continue
        current = current[step]
        key.append(step)
    return tuple(key)


def _value_at(values: Any, key: Key) -> Any:
    for step in key:
        values = values[step]
    return values


def _shown(value: Any) -> str:
    """A value as YAML's flow style writes it, cut to one short line."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _expectation(kind: str, message: str, key: Key) -> str:
    """What a setting takes, in the words of this program where pydantic speaks of Python."""
    plain = {
        "int_type": "a whole number",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "text",
        "list_type": "a list",
    }
    if kind in plain:
        return plain[kind]
    if kind == "model_type":
        section = dict(_known_keys(RunConfig)).get(schema_key(key))
        return f"a section with the keys {', '.join(section.model_fields)}" if section else "a section"
    if kind == "too_short":
        return "a list with at least one item" if message.startswith("List") else "at least one entry"
    expected = message.removeprefix("Input should be ").replace("a valid ", "a ")
    return f"a number {expected}" if expected.startswith(("greater", "less")) else expected
