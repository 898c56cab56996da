"""The page templates. Every value is escaped, so text from questions, documents and models is never markup."""

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..behaviour import percent
from ..table import decimal, p_cell, signed


@cache
def page_environment() -> Environment:
    """The Jinja environment of the templates of this folder, each compiled once; an undefined value is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(signed=signed, decimal=decimal, percent=percent, p_cell=p_cell)
    return environment


def render_page(template: str, **values: object) -> str:
    """A self-contained HTML page from the template of that name."""
    return page_environment().get_template(template).render(**values)
