"""The page of all settings, docs/config.md: `python -m querylect.configs.reference > docs/config.md`.

Generated from the pydantic models and the strings under their fields. A section that is used several times is described
once, at its first use, and linked from the others. Imports only pydantic.
"""

import inspect
import json
import re
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Annotated, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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

NAMED: dict[object, str] = {
    str: "text",
    int: "whole number",
    float: "number",
    bool: "`true` or `false`",
    type(None): "`null`",
    object: "any",
}


def main() -> None:
    """Print the page."""
    print(page(), end="")  # noqa: T201 (a command)


def page() -> str:
    """The whole page, in Markdown, with a newline at its end."""
    writer = _Writer()
    parts = [INTRODUCTION]
    for title, prefix, description, model in PAGES:
        parts += [f"## {title}\n", f"{description}\n", *writer.sections(model, prefix)]
    parts += ["## Methods\n", "What `settings` of a paper's system may say, by method ([methods.md](methods.md)).\n"]
    for model in _methods():
        parts += writer.sections(model, f"{_name_of_method(model)} ", title=_name_of_method(model))
    return "\n".join(parts)


@dataclass
class _Writer:
    headings: dict[type[BaseModel], str] = field(default_factory=dict)
    """The heading under which a section is described."""

    def sections(self, root: type[BaseModel], prefix: str, title: str = "") -> Iterator[str]:
        """Tables of a model and of its sections that are not described yet, parents first.

        A heading is `prefix` and the path of the section; the model itself has the heading `title`, if any.
        """
        self.headings[root] = title
        pending = [("", root)]
        for number, (path, model) in enumerate(pending, start=1):
            inner = []
            for name, setting in model.model_fields.items():
                for relative, section in _sections_in(name, setting.annotation):
                    if section not in self.headings:
                        section_path = f"{path}.{relative}" if path else relative
                        self.headings[section] = prefix + section_path
                        inner.append((section_path, section))
            pending[number:number] = inner
        for _, model in pending:
            if heading := self.headings[model]:
                yield f"### {heading}\n"
                yield f"{_linked(inspect.cleandoc(model.__doc__ or ''))}\n"
            yield self.table(model)

    def table(self, model: type[BaseModel]) -> str:
        rows = []
        for name, setting in model.model_fields.items():
            kind = self.type_of(setting.annotation, setting.metadata)
            description = " ".join((setting.description or "").split()) or _about_sections(setting.annotation)
            rows.append([f"`{name}`", kind, _default(setting), _linked(description)])
        return "\n".join(markdown_table(["setting", "type", "default", ""], rows, "llll")) + "\n"

    def type_of(self, annotation: object, metadata: Iterable[object] = ()) -> str:
        """What a value may be, in words, with its bounds."""
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Annotated:
            return self.type_of(arguments[0], [*_flat(arguments[1:]), *metadata])
        if origin in (Union, types.UnionType):
            kinds = [*(option for option in arguments if option is not type(None)), *({*arguments} & {type(None)})]
            return " or ".join(self.type_of(option, metadata if option in (int, float) else ()) for option in kinds)
        return self._one_type(annotation) + _bounds(metadata)

    def _one_type(self, annotation: object) -> str:
        origin, arguments = get_origin(annotation), get_args(annotation)
        if origin is Literal:
            return ", ".join(f"`{value}`" for value in arguments)
        if origin is list:
            return f"list of {self.type_of(arguments[0])}"
        if origin is dict:
            return f"by name: {self.type_of(arguments[1])}"
        if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
            return f"[{self.headings[annotation]}](#{anchor(self.headings[annotation])})"
        return NAMED[annotation]


def anchor(heading: str) -> str:
    """The fragment under which GitHub, and the site, show a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _sections_in(name: str, annotation: object) -> Iterator[tuple[str, type[BaseModel]]]:
    """The sections that a setting may hold, each with its path."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        yield name, annotation
    elif get_origin(annotation) is not Literal:
        path = f"{name}.NAME" if get_origin(annotation) is dict else name
        for option in get_args(annotation):
            yield from _sections_in(path, option)


def _about_sections(annotation: object) -> str:
    """Description of a setting that has none: the first line of its section."""
    return next(((section.__doc__ or "").splitlines()[0] for _, section in _sections_in("", annotation)), "")


def _flat(metadata: Iterable[object]) -> Iterator[object]:
    for item in metadata:
        yield from item.metadata if isinstance(item, FieldInfo) else (item,)


def _bounds(metadata: Iterable[object]) -> str:
    limits = {name: getattr(item, name) for item in metadata for name in (*_SIGNS, *_COUNTS) if hasattr(item, name)}
    signs = [f"{_SIGNS[name]} {value:g}" for name, value in limits.items() if name in _SIGNS and value is not None]
    counts = [f"{_COUNTS[name]} {value}" for name, value in limits.items() if name in _COUNTS and value is not None]
    return " " * bool(signs) + " and ".join(signs) + f" ({', '.join(counts)})" * bool(counts)


_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_COUNTS = {"min_length": "at least", "max_length": "at most"}


def _default(setting: FieldInfo) -> str:
    value = setting.get_default(call_default_factory=True)
    if value is PydanticUndefined:
        return "*required*"
    if isinstance(value, BaseModel):
        return "as below"
    text = json.dumps(value) if not isinstance(value, str | float) else str(value)
    return f"`{text}`" if text else "empty"


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


def _name_of_method(model: type[Section]) -> str:
    return re.match(r"((?:, )?`\w+`)+", model.__doc__ or "").group().replace("`", "")  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
