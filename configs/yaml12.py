"""YAML 1.2 in and out with ruamel.yaml: `1e-5` is a number, `no` is text, `010` is ten; a duplicate key is refused."""

import re
from io import StringIO
from typing import Any

from ruamel.yaml import YAML


def parse_yaml(text: str) -> Any:
    """The value of one YAML document, of plain types. Raises ruamel.yaml.error.YAMLError."""
    return YAML(typ="safe", pure=True).load(text)


def card_metadata(text: str) -> dict[str, object]:
    """The YAML head of a card on the Hub, where a key may stand twice; {} without one. Raises YAMLError."""
    head = re.match(r"\s*---\r?\n(.*?)^---\s*$", text, re.DOTALL | re.MULTILINE)
    yaml = YAML(typ="safe", pure=True)
    yaml.allow_duplicate_keys = True
    values = yaml.load(head[1]) if head else None
    return values if isinstance(values, dict) else {}


def write_yaml(value: object) -> str:
    """YAML that `parse_yaml` reads back to an equal value; dictionaries keep their order."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # declared as None there
    yaml.width = 100
    stream = StringIO()
    yaml.dump(value, stream)
    return stream.getvalue()
