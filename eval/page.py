"""The HTML page. Every value is escaped, so text from questions, documents and models is never markup."""

import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from .table import decimal, signed


@dataclass(frozen=True, slots=True)
class Drawing:
    """A finished figure."""

    title: str
    caption: str
    image: str
    """An SVG as a data: URL."""


def render_page(**values: object) -> str:
    """A self-contained HTML page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(signed=signed, decimal=decimal, bold=_bold)
    return environment.get_template("page.html.j2").render(**values)


def _bold(text: str) -> Markup:
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", str(escape(text))))
