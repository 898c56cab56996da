"""The page of all settings, docs/config.md: `python -m querylect.configs.reference > docs/config.md`.

Generated from the JSON schemas of the pydantic models. A section that is used several times is described once, at its
first use, and linked from the others. Imports only pydantic.
"""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..markdown_tables import markdown_table
from . import methods
from .evaluation import SpecConfig
from .paper import PaperConfig
from .schema import RunConfig
from .section import Section

INTRODUCTION = """# Settings

<!-- Written by `make reference` from the models in configs/; change those, not this page. -->

Every setting of every file that querylect reads, with its type, its default and what it does. A file says only what
differs from the defaults; an override on the command line (`train.steps=80`) wins over the file. `querylect train
CONFIG --dry-run` prints all settings of a run as they will be used. A key that does not exist, a value of another type
or out of its range is refused with its location, its value and the nearest existing key. Python's None is `null`
in YAML; *required* marks a setting without a default. `NAME` in a path is a name that you choose.
"""

PAGES: tuple[tuple[str, str, str, type[Section]], ...] = (
    (
        "A run",
        "",
        "For `train`, `index`, `serve`, `eval RUN`, `rewrite` and every other command with a CONFIG.",
        RunConfig,
    ),
    (
        "The spec of an evaluation",
        "spec: ",
        "For `querylect eval spec.yaml`: every combination of environment, dataset and system ([evaluation.md]"
        "(evaluation.md)).",
        SpecConfig,
    ),
    ("A paper that is run again", "paper: ", "For `querylect paper` ([papers.md](papers.md)).", PaperConfig),
)

KINDS = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "`true` or `false`",
    "null": "`null`",
}
BOUNDS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
COUNTS = {"minItems": "at least", "minLength": "at least", "minProperties": "at least", "maxItems": "at most"}

Schema = Mapping[str, Any]
"""The JSON schema of a section or a setting."""


def main() -> None:
    """Print the page."""
    print(page(), end="")  # noqa: T201 (a command)


def page() -> str:
    """The whole page, in Markdown, with a newline at its end."""
    headings: dict[str, str] = {}
    parts = [INTRODUCTION]
    for title, prefix, description, model in PAGES:
        parts += [f"## {title}\n", f"{description}\n", *_sections(model, prefix, "", headings)]
    parts += ["## Methods\n", "What `settings` of a paper's system may say, by method ([methods.md](methods.md)).\n"]
    for model in _methods():
        name = "".join(re.findall(r"^`\w+`|, `\w+`", model.__doc__ or "")).replace("`", "")
        parts += _sections(model, f"{name} ", name, headings)
    return "\n".join(parts)


def _sections(model: type[Section], prefix: str, title: str, headings: dict[str, str]) -> Iterator[str]:
    """Tables of a model and of its sections that are not described yet, parents first.

    A heading is `prefix` and the path of the section; the model itself has the heading `title`, if any. `headings` has
    those of all sections, by the names of their classes.
    """
    root = model.model_json_schema()

    def described(schema: Schema, path: str, heading: str) -> Iterator[str]:
        inner = []
        for name, setting in schema["properties"].items():
            for relative, section in _sections_in(name, setting):
                if section not in headings:
                    section_path = f"{path}.{relative}" if path else relative
                    headings[section] = prefix + section_path
                    inner.append((section_path, section))
        if heading:
            yield f"### {heading}\n"
            yield f"{_linked(schema['description'])}\n"
        rows = [
            [f"`{name}`", _kind(setting, headings), _default(setting), _linked(_description(setting, root))]
            for name, setting in schema["properties"].items()
        ]
        yield "\n".join(markdown_table(["setting", "type", "default", ""], rows, "llll")) + "\n"
        for section_path, section in inner:
            yield from described(root["$defs"][section], section_path, headings[section])

    yield from described(root, "", title)


def _sections_in(name: str, setting: Schema) -> Iterator[tuple[str, str]]:
    """The names of the sections that a setting may hold, each with its path."""
    if "$ref" in setting:
        yield name, setting["$ref"].rpartition("/")[2]
    for option in (*setting.get("anyOf", ()), *([setting["items"]] if "items" in setting else [])):
        yield from _sections_in(name, option)
    if isinstance(values := setting.get("additionalProperties"), dict):
        yield from _sections_in(f"{name}.NAME", values)


def _kind(setting: Schema, headings: Mapping[str, str]) -> str:
    """What a value may be, in words, with its bounds."""
    if "$ref" in setting:
        heading = headings[setting["$ref"].rpartition("/")[2]]
        return f"[{heading}](#{anchor(heading)})"
    if "anyOf" in setting:
        return " or ".join(_kind(option, headings) for option in setting["anyOf"])
    if values := setting.get("enum", [setting["const"]] if "const" in setting else None):
        return ", ".join(f"`{value}`" for value in values)
    if setting.get("type") == "array":
        kind = f"list of {_kind(setting['items'], headings)}"
    elif setting.get("type") == "object":
        values = setting.get("additionalProperties")
        kind = f"by name: {_kind(values if isinstance(values, dict) else {}, headings)}"
    else:
        kind = KINDS.get(setting.get("type", ""), "any")
    bounds = " and ".join(f"{sign} {setting[name]:g}" for name, sign in BOUNDS.items() if name in setting)
    counts = ", ".join(f"{words} {setting[name]}" for name, words in COUNTS.items() if name in setting)
    return kind + f" {bounds}" * bool(bounds) + f" ({counts})" * bool(counts)


def _description(setting: Schema, root: Schema) -> str:
    """The text under a setting, or without one the first line of its section."""
    sections = (root["$defs"][section]["description"] for _, section in _sections_in("", setting))
    return " ".join((setting.get("description") or next(sections, "").splitlines()[0]).split())


def _default(setting: Schema) -> str:
    if "default" not in setting:
        return "*required*"
    value = setting["default"]
    if isinstance(value, dict) and "additionalProperties" not in setting and any(_sections_in("", setting)):
        return "as below"
    text = str(value) if isinstance(value, str | float) else json.dumps(value)
    return f"`{text}`" if text else "empty"


def anchor(heading: str) -> str:
    """The fragment under which GitHub, and the site, show a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _linked(text: str) -> str:
    return re.sub(r"docs/([\w-]+\.md)", r"[\1](\1)", text)


def _methods() -> list[type[Section]]:
    """The sections of configs/methods.py that belong to a method: their description begins with its name."""
    return [
        section
        for section in vars(methods).values()
        if inspect.isclass(section)
        and issubclass(section, Section)
        and section.__module__ == methods.__name__
        and (section.__doc__ or "").startswith("`")
    ]


if __name__ == "__main__":
    main()
