"""The page of all settings, docs/config.md: `python -m querylect.configs.reference > docs/config.md`.

Generated from the JSON schemas of the pydantic models. A section that is used several times is described once, at its
first use, and linked from the others. Imports only pydantic.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from . import methods
from .evaluation import SpecConfig
from .paper import PaperConfig
from .schema import RunConfig
from .section import Section

INTRODUCTION = """# Settings

<!-- Written by `make reference` from the models in configs/; change those, not this page. -->

Every setting of every file that querylect reads, with its type, its default and what it does. A file says only what
differs from the defaults; an override on the command line (`train.steps=80`) wins over the file. `querylect train
CONFIG --dry-run` prints all settings of a run as they will be used. Python's None is `null` in YAML. `NAME` in a path
is a name that you choose.
"""
PAGES: tuple[tuple[str, str, str, type[Section]], ...] = (
    ("A run", "", "For every command with a CONFIG.", RunConfig),
    ("The spec of an evaluation", "spec: ", "For `querylect eval SPEC` ([evaluation.md](evaluation.md)).", SpecConfig),
    ("A paper that is run again", "paper: ", "For `querylect paper` ([papers.md](papers.md)).", PaperConfig),
)
TYPES = {"string": "text", "integer": "whole number", "boolean": "`true` or `false`", "null": "`null`"}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}


def page() -> str:
    """The whole page, in Markdown, with a newline at its end."""
    headings: dict[str, str] = {}
    parts = [INTRODUCTION]
    for title, prefix, description, model in PAGES:
        parts += [f"## {title}\n", f"{description}\n", *_sections(model, prefix, headings)]
    parts += ["## Methods\n", "What `settings` of a paper's system may say, by method ([methods.md](methods.md)).\n"]
    for section in vars(methods).values():
        if getattr(section, "__module__", "") == methods.__name__ and str(section.__doc__).startswith("`"):
            name = str(section.__doc__).split("`")[1]
            parts += [f"### {name}\n\n{_linked(str(section.__doc__))}\n", *_sections(section, f"{name} ", headings)]
    return "\n".join(parts)


def _sections(model: type[Section], prefix: str, headings: dict[str, str]) -> Iterator[str]:
    """A model and those of its sections that are not described yet, under `prefix` and their path.

    `headings` has the headings of all sections, by the names of their classes.
    """
    root = model.model_json_schema()
    pages = [("", root)]
    for path, schema in pages:
        if path:
            yield f"### {prefix}{path}\n\n{_linked(schema['description'])}\n"
        for name, setting in schema["properties"].items():
            for relative, section in _sections_in(f"{path}.{name}".strip("."), setting):
                if section not in headings:
                    headings[section] = prefix + relative
                    pages.append((relative, root["$defs"][section]))
            inner = [root["$defs"][section]["description"] for _, section in _sections_in("", setting)]
            text = " ".join((setting.get("description") or inner[0]).split())
            if "description" not in setting:
                text = re.split(r"(?<=\.) (?=[A-Z`])", text, maxsplit=1)[0]  # the first sentence of the section's own
            yield f"- `{name}` ({_kind(setting, headings)}{_default(setting)}): {_linked(text)}"
        yield ""


def _sections_in(path: str, setting: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The names of the sections that a setting may hold, each with its path."""
    if "$ref" in setting:
        yield path, setting["$ref"].rpartition("/")[2]
    for option in (*setting.get("anyOf", ()), *([setting["items"]] if "items" in setting else [])):
        yield from _sections_in(path, option)
    for values in _values(setting):
        yield from _sections_in(f"{path}.NAME", values)


def _values(setting: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """What the values of a mapping may be; nothing for another type of setting."""
    values = [*setting.get("patternProperties", {}).values(), setting.get("additionalProperties")]
    return [value for value in values if isinstance(value, dict)][:1]


def _kind(setting: Mapping[str, Any], headings: Mapping[str, str]) -> str:
    """What a value may be, in words, with its bounds."""
    match setting:
        case {"$ref": reference}:
            heading = headings[reference.rpartition("/")[2]]
            return f"[{heading}](#{anchor(heading)})"
        case {"anyOf": options}:
            return " or ".join(_kind(option, headings) for option in options)
        case {"enum": values}:
            return ", ".join(f"`{value}`" for value in values)
        case {"const": value}:
            return f"`{value}`"
        case {"type": "array", "items": items}:
            return f"list of {_kind(items, headings)}"
        case {"type": "object"}:
            return f"by name: {_kind(_values(setting)[0], headings)}" if _values(setting) else "by name: any"
    bounds = " and ".join(f"{sign} {setting[name]:g}" for name, sign in BOUNDS.items() if name in setting)
    return f"{TYPES.get(setting.get('type', ''), setting.get('type', 'any'))} {bounds}".strip()


def _default(setting: Mapping[str, Any]) -> str:
    """The default, which a section has in its own description."""
    value = setting.get("default", ...)
    if value is ...:
        return ", *required*"
    if value == "" or (any(_sections_in("", setting)) and value):
        return ""
    return f", `{value if isinstance(value, str | float) else json.dumps(value)}`"


def anchor(heading: str) -> str:
    """The fragment under which GitHub, and the site, show a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


if __name__ == "__main__":
    print(page(), end="")  # noqa: T201 (a command)
