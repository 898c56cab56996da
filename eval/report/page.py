"""The page templates. Every value is escaped, so text from questions, documents and models is never markup."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ..table import decimal, signed


def render_page(template: str, **values: object) -> str:
    """A self-contained HTML page from the template of that name in this folder."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(signed=signed, decimal=decimal)
    return environment.get_template(template).render(**values)
