"""Few-shot chat for small models: a system line and example conversations instead of instructions.

A model of some hundred million parameters follows examples, not rules. Every example is a conversation in exactly the
form of the real one (question, answer, titles, better answer), and all of them precede the question, so the prompts of
all questions share one prefix that an engine computes once. Such a model spends most of its time on prompt tokens: keep
the examples short.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, ValidationError, model_validator
from ruamel.yaml.error import YAMLError

from ..configs.load import parse_yaml
from ..configs.schema import RewriterConfig
from ..configs.section import Strict
from ..data.history import lines_of
from ..data.types import Document, Question, Utterance
from ..errors import ConfigError
from ..llms.base import Message
from .base import Rewrite, RewritingStrategy
from .case import question_text
from .forms import REWRITE_OPEN, PassageForm, TagForm, render
from .retriever_info import RetrieverInfo
from .template import Plan, planned, query_plan, tag_form

PROMPTS = Path(__file__).parent / "prompts"
_PLACEHOLDER = re.compile(r"\{(retriever|question|history)\}")


class ExampleTurn(Strict):
    """One turn of an example: the titles that it sees (none in a first turn) and the answer to give."""

    feedback: str = ""
    """What it is told about a native query of the turn before (`Conversation.follow_up`), in front of the titles."""
    documents: tuple[str, ...] = ()
    think: str = ""
    rewrite: str


class ExampleConversation(Strict):
    """One example conversation, of one turn or more."""

    question: str
    history: tuple[Utterance, ...] = ()
    """What was said before the question, oldest first."""
    retriever: str = ""
    """Whose query it shows, as the retriever's description names it; for a prompt with a place for {retriever}."""
    turns: tuple[ExampleTurn, ...] = Field(min_length=1)


class FewShotPrompt(Strict):
    """Everything that a small model is shown, as data."""

    system: str
    question: Annotated[str, Field(pattern=r"\{question\}")] = "{question}"
    """Template of the first user message, also with `{retriever}`, the name of the retriever that will search, and
    `{history}`, the conversation before the question, one utterance a line; without the latter it stands in front."""
    documents: Annotated[str, Field(pattern=r"\{documents\}")]
    """Template of a later user message; `{documents}` becomes one title per line, best first."""
    no_documents: str
    """The later user message where nothing was found or searched."""
    form: Literal["tags", "plain"] = "tags"
    """`tags`: answers are `<think>…</think><rewrite>…</rewrite>`. `plain`: the whole answer is the rewrite, and a turn
    that is cut at its token limit is read up to there. A small model then spends no tokens on tags."""
    opening: str = ""
    """What every answer begins with, given to the model instead of sampled; for the form `tags`."""
    examples: tuple[ExampleConversation, ...] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_opening(self) -> Self:
        for turn in (turn for example in self.examples for turn in example.turns):
            if not self.answer(turn).startswith(self.opening):
                raise ValueError(
                    f"the example answer {self.answer(turn)!r} does not begin with the opening {self.opening!r}"
                )
        return self

    def answer(self, turn: ExampleTurn) -> str:
        return turn.rewrite if self.form == "plain" else render(turn.think, [turn.rewrite])

    def ask(self, question: Question, retriever: str) -> str:
        history = f"{lines_of(question.history)}\n" if question.history else ""
        template = self.question if "{history}" in self.question else f"{{history}}{self.question}"
        values = {"retriever": retriever, "question": question_text(question), "history": history}
        return _PLACEHOLDER.sub(lambda mark: values[mark[1]], template)

    def show(self, titles: Sequence[str]) -> str:
        return self.documents.replace("{documents}", "\n".join(titles)) if titles else self.no_documents

    def messages(self) -> list[Message]:
        """The system line and all examples: the prefix that every question shares."""
        chat = [Message(role="system", content=self.system)]
        for example in self.examples:
            for number, turn in enumerate(example.turns, start=1):
                first = self.ask(Question("", example.question, history=example.history), example.retriever)
                feedback = f"{turn.feedback}\n" if turn.feedback else ""
                content = first if number == 1 else f"{feedback}{self.show(turn.documents)}"
                chat.append(Message(role="user", content=content))
                chat.append(Message(role="assistant", content=self.answer(turn)))
        return chat


def prompt_path(name: str) -> Path:
    """The file of a packaged prompt by name, or of one by path."""
    return Path(name).expanduser() if name.endswith((".yaml", ".yml")) else PROMPTS / f"{name}.yaml"


def load_prompt(name: str) -> FewShotPrompt:
    """Read a packaged prompt by name, or a YAML file by path. Raises ConfigError if it is no such prompt."""
    path = prompt_path(name)
    try:
        return FewShotPrompt.model_validate(parse_yaml(path.read_text(encoding="utf-8")))
    except (OSError, YAMLError, UnicodeDecodeError, ValidationError) as error:
        packaged = ", ".join(sorted(file.stem for file in PROMPTS.glob("*.yaml")))
        raise ConfigError(
            f"rewriter.prompt {name!r}: {path} is not a few-shot prompt: {error}\nGive a packaged one ({packaged}) or "
            "the path of a .yaml file."
        ) from error


class FewShotRewriter(RewritingStrategy):
    """The examples carry the strategy. The prompt names the retriever if it has a place for it."""

    name = "few_shot"

    def __init__(self, prompt: FewShotPrompt, plan: Plan, tags: TagForm, retriever: str) -> None:
        self.prompt, self.plan, self.tags, self.retriever = prompt, plan, tags, retriever
        self._examples = prompt.messages()

    def with_prompt(self, prompt: FewShotPrompt) -> "FewShotRewriter":
        return FewShotRewriter(prompt, self.plan, self.tags, self.retriever)

    @property
    def opening(self) -> str:
        return self.prompt.opening

    def first(self, question: Question) -> list[Message]:
        """The shared examples, then the question."""
        return [*self._examples, Message(role="user", content=self.prompt.ask(question, self.retriever))]

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """One title per line (the text of a document that has no title), best first."""
        return self.prompt.show([" ".join((document.title or document.text).split()) for document in documents])

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        form = PassageForm() if self.prompt.form == "plain" else self.tags
        return planned(question, form.parse(self.opening + text), self.plan)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        """The opening counts only where the text has none."""
        if self.prompt.form == "plain":
            return planned(question, PassageForm().read(text), self.plan)
        return planned(question, self.tags.read(text if REWRITE_OPEN in text else self.opening + text), self.plan)


def few_shot(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> FewShotRewriter:
    """Build the rewriter from the prompt that `config.prompt` names."""
    return FewShotRewriter(load_prompt(config.prompt), query_plan(config, k), tag_form(config), retriever.name)
