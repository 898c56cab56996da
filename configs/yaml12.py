"""YAML in and out by the 1.2 core schema: `1e-5` is a number, `no` is text, `010` is ten, dates are text.

PyYAML follows YAML 1.1, where `1e-5` is text and `no` is false. Duplicate keys, which YAML forbids and PyYAML lets
pass, are refused here. Infinite and not-a-number values stay text: no setting takes them.
"""

import math
import re
from collections.abc import Hashable
from typing import Any

import yaml

_RESOLVERS: tuple[tuple[str, str, str], ...] = (
    ("tag:yaml.org,2002:null", r"^(?:~|null|Null|NULL|)$", "~nN\0"),
    ("tag:yaml.org,2002:bool", r"^(?:true|True|TRUE|false|False|FALSE)$", "tTfF"),
    ("tag:yaml.org,2002:int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", "-+0123456789"),
    ("tag:yaml.org,2002:float", r"^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("tag:yaml.org,2002:merge", r"^<<$", "<"),
)


class _Loader(yaml.SafeLoader):
    """SafeLoader with the core schema's scalars and without duplicate keys."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Build a dictionary; raises yaml.MarkedYAMLError at a key that is not text or stands twice."""
        keys: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            problem = "" if key.tag == "tag:yaml.org,2002:str" else "a key that is not text"
            problem = f"duplicate key {key.value!r}" if not problem and key.value in keys else problem
            if problem:
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            keys.add(key.value)
        return super().construct_mapping(node, deep)


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    text = node.value
    return int(text, 8) if text.startswith("0o") else int(text, 16) if text.startswith("0x") else int(text)


def _construct_float(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> float:
    value = float(node.value)
    if not math.isfinite(value):
        raise yaml.MarkedYAMLError(problem=f"{node.value} is too large for a number", problem_mark=node.start_mark)
    return value


class _Dumper(yaml.SafeDumper):
    """SafeDumper that quotes whatever either YAML version would read as something else than text."""

    yaml_implicit_resolvers = {first: list(rules) for first, rules in yaml.SafeDumper.yaml_implicit_resolvers.items()}

    def ignore_aliases(self, data: Any) -> bool:
        """Write every value out in full."""
        return True


for _tag, _pattern, _first in _RESOLVERS:
    _characters = ["" if character == "\0" else character for character in _first]
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), _characters)
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), _characters)
_Loader.add_constructor("tag:yaml.org,2002:int", _construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _construct_float)
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document. Raises yaml.YAMLError; never builds a Python object of another kind."""
    return yaml.load(text, Loader=_Loader)


def write_yaml(value: Any) -> str:
    """Return YAML that `parse_yaml` reads back to an equal value; dictionaries keep their order."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
