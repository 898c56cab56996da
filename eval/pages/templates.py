"""The templates of the pages: every value is escaped, so that text of questions, documents and models stays text."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..table import format_p, signed


def page_environment() -> Environment:
    """The templates of this folder. A missing value is an error."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(signed=signed, p_cell=lambda p: format_p(p).removeprefix("= "))
    return environment
