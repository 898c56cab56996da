"""A method: several model calls and searches that together find the context of a question, or answer it.

A method is an async function of one question, and reads in the order of its paper:

    async def reworded(question: Question, ask: Ask, search: Search, settings: OneQueryConfig) -> Result:
        reply = await ask(f"Say in other words: {question.text}", sampling(settings))
        ranking = await search(SearchPlan.of(answer_text(reply), k=settings.k))
        return Result(ranking.documents)

Calls that do not depend on each other are awaited together (`asyncio.gather`). The runner (methods/runner.py) runs many
questions side by side and serves their calls in batches; a method holds no model and no retriever. Where a model or a
retriever does not answer, the call raises StageError, which ends the question with a failure: it is counted and never
scored as 0.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Protocol, TypeVar

from jinja2 import Environment, StrictUndefined, TemplateError
from jinja2.runtime import Macro
from pydantic import BaseModel

from ..configs.methods import AskingConfig, PromptConfig
from ..data.types import Document
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.base import LlmResponse, Prompt, SamplingParams
from ..llms.prose import without_end_of_turn, without_thinking
from ..llms.structured import FormPrompt, Structured
from ..rewriters.case import case_text, history_text, one_line, question_text

MISSING = "no reply"
"""The failure of a method whose model did not reply."""
GARBLED = "not of the form that was asked for"
"""The failure where a reply was not of its form, even after one repair."""
NO_RANKING = "no ranking"
"""The failure of a method whose retriever did not answer."""

Role = Literal["writer", "reader"]
"""Which of two models is asked: the reader writes answers and drafts of them, the writer everything else."""
Form = TypeVar("Form", bound=BaseModel)

_CHARACTERS = 8
"""Characters that count as one word in scripts without spaces between words."""


class StageError(Exception):
    """A stage without an outcome: `failure` says why, `notes` are those of the result."""

    def __init__(self, failure: str, **notes: object) -> None:
        super().__init__(failure)
        self.failure, self.notes = failure, notes


@dataclass(frozen=True, slots=True)
class SearchResults:
    """The ranking of a plan, best first."""

    plan: SearchPlan
    documents: tuple[Document, ...]
    scores: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """How a method ended."""

    documents: tuple[Document, ...] = ()
    """The context for the reader, in display order."""
    notes: Mapping[str, Any] = field(default_factory=dict)
    """Intermediate results as plain data: hypotheses, queries, judgements."""
    failure: str = ""
    """Why there is nothing to read; "" if the method finished. No documents without a failure is a valid result."""
    answer: str | None = None
    """The final answer, for methods that write it themselves."""
    cut: bool = False
    """Whether that answer was cut at its token limit."""
    sources: tuple[str, ...] = ()
    """The knowledge base of each document, if the method searches several."""


class Ask(Protocol):
    """Asks a model. All raise StageError where it does not reply."""

    async def __call__(self, prompt: Prompt | str, draw: SamplingParams, role: Role = "writer") -> LlmResponse:
        """The reply to one prompt; a text is one user message."""

    async def json(self, prompt: FormPrompt, form: type[Form], draw: SamplingParams, role: Role = "writer") -> Form:
        """An answer of this form, repaired once; StageError where it is of another form even then."""

    async def structured(
        self, prompt: FormPrompt, form: type[Form], draw: SamplingParams, role: Role = "writer"
    ) -> Structured[Form]:
        """As `json`, with the text that was read, or with what is wrong with it."""


class Search(Protocol):
    """Searches knowledge bases."""

    async def __call__(self, plan: SearchPlan, source: str = "") -> SearchResults:
        """The results of a plan in a knowledge base; "" is the only one, or the first. Raises StageError where the
        retriever does not answer before its deadline."""

    async def scores(self, question: str, documents: Sequence[Document]) -> Sequence[float]:
        """The cross-encoder's score of each document; higher is better."""


def sampling(settings: AskingConfig, n: int = 1) -> SamplingParams:
    """How `n` answers to a prompt of a method with these settings are sampled."""
    return SamplingParams(n, settings.temperature, max_tokens=settings.max_tokens)


def answer_text(reply: LlmResponse) -> str:
    """The first text of a reply without its thinking."""
    return without_end_of_turn(without_thinking(reply.texts[0].text))


def prompts_of(name: str, settings: PromptConfig) -> Any:
    """The prompts of a method: the macros of its template, and those of the file that its settings name instead.

    Raises ConfigError for a file that is no template; so do the macros where they fail.
    """
    with _template_errors():
        macros = [macro for text in prompt_texts(name, settings) for macro in _macros(text)]
    return SimpleNamespace(**dict(macros))


def prompt_texts(name: str, settings: PromptConfig) -> list[str]:
    """The templates of a method's prompts; a macro of a later one replaces that of an earlier one."""
    own = Path(__file__).parent / f"{name}.j2"
    files = [*([own] if own.exists() else []), *([Path(settings.prompt).expanduser()] if settings.prompt else [])]
    return [file.read_text(encoding="utf-8") for file in files]


@cache
def _macros(template: str) -> list[tuple[str, Callable[..., str]]]:
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    helpers = (case_text, history_text, question_text, numbered, one_line, shortened)
    environment.globals |= {helper.__name__: helper for helper in helpers}

    def stripped(macro: Callable[..., str]) -> Callable[..., str]:
        def rendered(*args: object, **kwargs: object) -> str:
            with _template_errors():
                return macro(*args, **kwargs).strip()

        return rendered

    module = vars(environment.from_string(template).module)
    return [(name, stripped(macro)) for name, macro in module.items() if isinstance(macro, Macro)]


@contextmanager
def _template_errors() -> Iterator[None]:
    try:
        yield
    except (OSError, TemplateError) as error:
        raise ConfigError(
            f"the template of a prompt cannot be used: {error}. Correct `prompt`, or its file."
        ) from error


def numbered(documents: Sequence[Document], words: int, start: int = 1) -> str:
    """One passage per line, numbered from `start`; a line that says so if there is none."""
    lines = [f"[{number}] {shortened(one_line(document), words)}" for number, document in enumerate(documents, start)]
    return "\n".join(lines) or "(none was found)"


def shortened(text: str, words: int) -> str:
    """`text` on one line, in at most `words` words of 8 characters on average."""
    tokens = text.split()
    line, max_length = " ".join(tokens[:words]), words * _CHARACTERS
    return line[:max_length] + ("…" if len(tokens) > words or len(line) > max_length else "")
