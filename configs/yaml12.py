"""YAML 1.2 in and out with ruamel.yaml: `1e-5` is a number, `no` is text, `010` is ten.

Narrower than YAML where no setting needs more: dates are text, numbers are finite, keys are text. Written text means
the same to readers of YAML 1.1.
"""

import math
import re
from io import StringIO
from itertools import accumulate
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.constructor import SafeConstructor
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode
from ruamel.yaml.reader import ReaderError
from ruamel.yaml.representer import SafeRepresenter
from ruamel.yaml.resolver import implicit_resolvers

_TAG = "tag:yaml.org,2002:"
_BRACKETS = re.compile(r"[][{}]")
_MOST_OPEN = 1000
"""Flow brackets that may be open at once: the parser's time grows with their square, and Python cannot nest more."""


class InvalidYAMLError(ValueError):
    """Text that is not YAML; the message says where and why: `line 4, column 5: …`."""


class _Constructor(SafeConstructor):
    def check_mapping_key(
        self, node: MappingNode, key_node: Node, mapping: dict[object, object], key: object, value: object
    ) -> bool:
        """Refuse keys that stand twice or are not text."""
        if not isinstance(key, str) or key in mapping:
            problem = f"duplicate key {key!r}" if isinstance(key, str) else "a key that is not text"
            raise MarkedYAMLError(problem=problem, problem_mark=key_node.start_mark)
        return True

    def construct_yaml_float(self, node: ScalarNode) -> float:
        """Refuse infinities and NaN."""
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            problem = f"{node.value} is no finite number; give one, or quote it as text"
            raise MarkedYAMLError(problem=problem, problem_mark=node.start_mark)
        return value


class _Representer(SafeRepresenter):
    def ignore_aliases(self, data: object) -> bool:
        """Write every value out in full."""
        return True

    def represent_str(self, data: str) -> ScalarNode:
        """Quote what YAML 1.1 or 1.2 reads as something else than text, and what only 1.2 allows in a list.

        Double quotes escape U+0085, which is otherwise read as an end of line.
        """
        if "\x85" in data:
            return self.represent_scalar(f"{_TAG}str", data, style='"')
        is_ambiguous = (
            data.startswith(":") or "?" in data or any(pattern.match(data) for _, _, pattern, _ in implicit_resolvers)
        )
        return self.represent_scalar(f"{_TAG}str", data, style="'" if is_ambiguous else None)

    def represent_float(self, data: float) -> ScalarNode:
        """Write a point, without which YAML 1.1 reads text: 1.0e-05."""
        text = repr(data)
        return self.represent_scalar(f"{_TAG}float", text if "." in text else text.replace("e", ".0e"))

    def represent_list(self, data: list[object]) -> SequenceNode:
        """Write a list in one line."""
        return self.represent_sequence(f"{_TAG}seq", data, flow_style=True)


_Constructor.add_constructor(f"{_TAG}float", _Constructor.construct_yaml_float)
for _kind in ("timestamp", "value"):
    _Constructor.add_constructor(f"{_TAG}{_kind}", _Constructor.construct_yaml_str)
_Representer.add_representer(str, _Representer.represent_str)
_Representer.add_representer(float, _Representer.represent_float)
_Representer.add_representer(list, _Representer.represent_list)


def _yaml() -> YAML:
    yaml = YAML(typ="safe", pure=True)
    yaml.Constructor, yaml.Representer = _Constructor, _Representer
    yaml.default_flow_style = False
    yaml.brace_single_entry_mapping_in_flow_sequence = True
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 100
    return yaml


def parse_yaml(text: str) -> Any:
    """Return the value of one YAML document. Raises InvalidYAMLError; builds no Python objects of other kinds."""
    return _load(_yaml(), text)


def card_metadata(text: str) -> dict[str, object]:
    """The YAML head of a card on the Hub, read as leniently as others write it; empty without one.

    Raises InvalidYAMLError.
    """
    head = re.match(r"\s*---\r?\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    values = _load(yaml, head[1]) if head else None
    return values if isinstance(values, dict) else {}


def _load(yaml: YAML, text: str) -> Any:
    if _most_open(text) > _MOST_OPEN:
        raise InvalidYAMLError("its brackets or blocks are nested too deeply")
    try:
        return yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InvalidYAMLError(f"{position}{error.problem or error.context or 'syntax error'}") from error
    except ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise InvalidYAMLError(f"line {line}: {error.reason} (#x{error.character:04x})") from error
    except RecursionError:
        raise InvalidYAMLError("its brackets or blocks are nested too deeply") from None
    except (YAMLError, ValueError) as error:
        raise InvalidYAMLError(" ".join(str(error).split())) from error


def _most_open(text: str) -> int:
    """How many flow brackets are open at once, those in strings included."""
    return max(accumulate((1 if bracket in "[{" else -1 for bracket in _BRACKETS.findall(text)), initial=0))


def write_yaml(value: object) -> str:
    """Return YAML that `parse_yaml` reads back to an equal value; dictionaries keep their order."""
    stream = StringIO()
    _yaml().dump(value, stream)
    return stream.getvalue()
