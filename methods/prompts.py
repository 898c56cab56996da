"""The prompts of methods: the macros and variables of the template beside a method (NAME.j2).

`prompt: FILE` in a method's settings names a template whose macros replace those of the same name.
"""

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, StrictUndefined, TemplateError
from jinja2.runtime import Macro

from ..configs.methods import PromptConfig, ReadingConfig
from ..configs.section import Section
from ..data.types import Document
from ..errors import ConfigError
from ..rewriters.case import case_text, history_text, one_line, question_text

_CHARACTERS = 8
"""Characters that count as one word in scripts without spaces between words."""


def prompts_of(name: str, settings: Section) -> Any:
    """The prompts of a method by the names of its template. Raises ConfigError for a file that is no template."""
    prompts: dict[str, object] = {}
    try:
        for text in _templates(name, settings):
            prompts |= _prompts(text)
    except (OSError, TemplateError) as error:
        raise ConfigError(f"`prompt` {getattr(settings, 'prompt', None)} cannot be used: {error}") from error
    return SimpleNamespace(**prompts)


def prompt_text(name: str, settings: Section) -> str:
    """The text of the templates that a method's prompts are made of, for the keys of its answers."""
    names = [name, *(["reading"] if isinstance(settings, ReadingConfig) else [])]
    return "".join(text for name in names for text in _templates(name, settings))


def _templates(name: str, settings: Section) -> list[str]:
    files = [Path(__file__).with_name(f"{name}.j2")]
    if isinstance(settings, PromptConfig) and settings.prompt:
        files.append(Path(settings.prompt).expanduser())
    return [file.read_text(encoding="utf-8") for file in files if file.exists() or file != files[0]]


@cache
def _prompts(template: str) -> dict[str, object]:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    helpers = (case_text, history_text, question_text, numbered, one_line, shortened)
    environment.globals |= {helper.__name__: helper for helper in helpers}

    def stripped(macro: Callable[..., str]) -> Callable[..., str]:
        return lambda *args, **kwargs: macro(*args, **kwargs).strip()

    module = vars(environment.from_string(template).module)
    return {name: stripped(value) if isinstance(value, Macro) else value for name, value in module.items()}


def numbered(documents: Sequence[Document], words: int, start: int = 1) -> str:
    """One passage per line, numbered from `start`; a line that says so if there is none."""
    lines = [f"[{number}] {shortened(one_line(document), words)}" for number, document in enumerate(documents, start)]
    return "\n".join(lines) or "(none was found)"


def shortened(text: str, words: int) -> str:
    """`text` on one line, in at most `words` words of 8 characters on average."""
    tokens = text.split()
    line, max_length = " ".join(tokens[:words]), words * _CHARACTERS
    return line[:max_length] + ("…" if len(tokens) > words or len(line) > max_length else "")
