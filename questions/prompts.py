"""Prompts of writer and judge from prompts.yaml, and the forms of their answers."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from string import Template
from typing import Any

from pydantic import BaseModel, ConfigDict

from ..configs.llm import Style
from ..configs.load import parse_yaml
from ..data.leakage import words
from ..data.types import Document
from ..llms.structured import FormPrompt, WorkedExample
from ..storage import data_sha256

_ONE_QUESTION = 'Answer with one JSON object and nothing else: {"question": "your question"}.'
STYLE_PROMPTS: tuple[Style, ...] = ("question", "keyword", "vague", "multi_hop")


class Written(BaseModel):
    """The writer's questions about a content."""

    model_config = ConfigDict(extra="forbid")

    questions: list[str]


class OneQuestion(BaseModel):
    """The answer of a writer that is asked for a single question."""

    model_config = ConfigDict(extra="forbid")

    question: str


class Answerability(BaseModel):
    """The judge's answer: first the reasons, then what follows from them."""

    model_config = ConfigDict(extra="forbid")

    explanation: str
    answerable: bool


@cache
def _templates() -> dict[str, dict[str, Any]]:
    templates: dict[str, dict[str, Any]] = parse_yaml(Path(__file__).with_name("prompts.yaml").read_text("utf-8"))
    return templates


def prompt(name: str, form: type[BaseModel], **values: object) -> FormPrompt:
    """The prompt of that name in prompts.yaml; `values` replace the $names in it."""
    template = _templates()[name]
    examples = tuple(WorkedExample(row["case"], form(**row["answer"])) for row in template["examples"])
    listing = "\n".join(f"{example.case}\n{example.json}" for example in examples)

    def fill(text: str) -> str:
        return Template(text).substitute(values, examples=listing, one_question=_ONE_QUESTION)

    return FormPrompt(fill(template["task"]), fill(template["case"]), examples, fill(template["request"]))


def versions(names: Sequence[str]) -> dict[str, str]:
    """12 hex digits for the wording of each of these prompts, which results record."""
    return {name: data_sha256(_templates()[name])[:12] for name in names}


def example_questions() -> frozenset[str]:
    """The words of the example questions of all styles, which small models copy."""
    return frozenset(
        words(example["answer"]["question"]) for style in STYLE_PROMPTS for example in _templates()[style]["examples"]
    )


def excerpt(passages: Sequence[Document], limit: int) -> str:
    """Titles and texts of at most `limit` words together, an equal share of each passage."""
    share = max(1, limit // len(passages))
    return "\n\n".join(" ".join(passage.contents.split()[:share]) for passage in passages)
