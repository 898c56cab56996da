"""YAML 1.2 in and out with ruamel.yaml: `1e-5` is a number, `no` is text, `010` is ten; a duplicate key is refused."""

import re
from io import StringIO
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import ScalarNode, SequenceNode
from ruamel.yaml.representer import SafeRepresenter


class InvalidYAMLError(ValueError):
    """Text that is not YAML; the message says where and why: `line 4, column 5: …`."""


class _Constructor(SafeConstructor):
    """Dates are text."""


_Constructor.add_constructor("tag:yaml.org,2002:timestamp", _Constructor.construct_yaml_str)


class _Representer(SafeRepresenter):
    def ignore_aliases(self, data: object) -> bool:
        """Write every value out in full."""
        return True

    def represent_list(self, data: list[object]) -> SequenceNode:
        """Write a list in one line."""
        return self.represent_sequence("tag:yaml.org,2002:seq", data, flow_style=True)

    def represent_str(self, data: str) -> ScalarNode:
        """Quote what a list in one line, or a reader, would take for something else than this text."""
        quoted = '"' if "\x85" in data else "'" if data.startswith(":") or "?" in data else None
        return self.represent_scalar("tag:yaml.org,2002:str", data, style=quoted)


_Representer.add_representer(list, _Representer.represent_list)
_Representer.add_representer(str, _Representer.represent_str)


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document. Raises InvalidYAMLError; builds no Python objects of other kinds."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor = _Constructor
    return _load(yaml, text)


def card_metadata(text: str) -> dict[str, object]:
    """The YAML head of a card on the Hub, where a key may stand twice; {} without one. Raises InvalidYAMLError."""
    head = re.match(r"\s*---\r?\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    values = _load(yaml, head[1]) if head else None
    return values if isinstance(values, dict) else {}


def _load(yaml: YAML, text: str) -> Any:
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidYAMLError(f"{position}{error.problem or error.context or 'syntax error'}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise InvalidYAMLError(" ".join(str(error).split())) from error


def write_yaml(value: object) -> str:
    """Return YAML that `parse_yaml` reads back to an equal value; dictionaries keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 100
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()
