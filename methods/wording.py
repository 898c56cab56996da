"""A method in the user's own words: its prompts from a YAML file or a folder, one text for each stage.

A text has placeholders for what changes from question to question, such as {question}; `STAGES` lists those of every
stage. A text is used as it is, and answers to it are read as those to the method's own prompts. Braces around anything
but a lower-case name are text, so JSON examples need no escapes; {{name}} is the text {name}.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ..configs.yaml12 import InvalidYAMLError, parse_yaml
from ..data.types import Question
from ..errors import ConfigError
from ..llms.base import Message, Prompt
from ..llms.structured import AskForm
from ..rewriters.levels import question_text
from .method import Method, Outcome, PromptStep, Step, Steps

COMMON = ("question", "options", "question_with_options")
"""Placeholders of every stage: the question, its options as lettered lines ("" without any), and both."""

_REWRITER: Mapping[str, Sequence[str]] = {"rewriter": ()}
STAGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("general", "explore", "direct", "small", "hyde", "query2doc", "multi_query"), _REWRITER),
    "hcqr": {"formulator": (), "rewriter": ("guess", "reasoning?", "evidence?", "features?")},
    "chr": {"hypotheses": ()},
    "csqe": {"pick": ("documents",), "passage": ()},
    "thinkqe": {"expand": ("documents",)},
    "qa_rag": {"answer": ()},
    "cot": {"reader": ()},
    "direct_gen": {"reader": ()},
    "std_rag": {"reader": ("passages", "further?")},
    "misknow": {"judge": ("passages", "draft"), "reader": ("passages", "further?")},
    "migres": {
        "filter": ("passages",),
        "extract": ("passages",),
        "judge": ("information",),
        "queries": ("missing", "information?", "previous?"),
        "reader": ("further", "passages?"),
    },
    "main_rag": {"predictor": ("document",), "judge": ("document", "answer")},
}
"""The stages of every method that asks a model, and their placeholders besides the common ones; "?" marks those that a
text may leave out."""

_PLACEHOLDER = re.compile(r"\{\{([a-z_]+)\}\}|\{([a-z_]+)\}")


class _Chat(BaseModel):
    model_config = ConfigDict(extra="forbid")
    system: str = ""
    user: str


_FILE = TypeAdapter(dict[str, str | _Chat])


@dataclass(frozen=True, slots=True)
class Wording:
    """The text of one stage."""

    stage: str
    user: str
    system: str = ""

    @property
    def version(self) -> str:
        """The stage and a hash of the text, which results record."""
        digest = hashlib.sha256(f"{self.system}\0{self.user}".encode()).hexdigest()
        return f"{self.stage}-{digest[:8]}"

    def placeholders(self) -> set[str]:
        """The names of the placeholders."""
        return {name for _, name in _PLACEHOLDER.findall(self.system + self.user) if name}

    def prompt(self, values: Mapping[str, str]) -> Prompt:
        """The prompt with these values for the placeholders; a value is never read as a template."""
        texts = (("system", self.system), ("user", self.user))
        messages = tuple(Message(role=role, content=_filled(text, values)) for role, text in texts if text)
        return Prompt(messages, self.version)


@dataclass(frozen=True)
class Reworded:
    """A method whose prompts are worded by the user."""

    method: Method
    wordings: Mapping[str, Wording]

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    @property
    def versions(self) -> Sequence[str]:
        """Those of the method, and of the texts that replace some of its prompts."""
        return (*self.method.versions, *(wording.version for wording in self.wordings.values()))

    def steps(self, question: Question) -> Steps:
        """The steps of the method, with other prompts."""
        steps = self.method.steps(question)
        answer: object = None
        while True:
            try:
                yielded = steps.send(answer)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                return outcome
            if isinstance(yielded, Sequence):
                answer = yield [self._reworded(step, question) for step in yielded]
            else:
                answer = yield self._reworded(yielded, question)

    def _reworded(self, step: Step, question: Question) -> Step:
        if not isinstance(step, PromptStep | AskForm) or step.prompt.stage not in self.wordings:
            return step
        lines = question_text(question).removeprefix(question.text).strip()
        common = dict(zip(COMMON, (question.text, lines, question_text(question)), strict=True))
        prompt = self.wordings[step.prompt.stage].prompt({**common, **step.prompt.fields})
        if isinstance(step, PromptStep):
            return replace(step, prompt=prompt, small=None)
        return replace(step, prompt=prompt)


def reworded(name: str, method: Method, path: str | None) -> Method:
    """The method with the texts of `path`; the method itself for None. Raises ConfigError as `read_wordings`."""
    if path is None:
        return method
    return Reworded(method, read_wordings(name, path))


def read_wordings(name: str, path: str) -> dict[str, Wording]:
    """The texts by stage: from a YAML file (stage: text, or stage: {system, user}), or a folder of STAGE.txt files.

    Raises ConfigError for what cannot be read, a stage that the method does not have, a placeholder that the stage does
    not have, and a needed one that is missing.
    """
    stages, setting = STAGES.get(name, {}), f"the setting `prompts` of the method {name!r}"
    wordings: dict[str, Wording] = {}
    for stage, text in _read(Path(path).expanduser(), setting).items():
        if stage not in stages:
            raise ConfigError(
                f"{setting}: {path} has a text for the stage {stage!r}; the method has {', '.join(stages) or 'none'}. "
                "Rename or remove it.",
                code="unknown-stage",
            )
        chat = text if isinstance(text, _Chat) else _Chat(user=text)
        wordings[stage] = wording = Wording(stage, chat.user.strip(), chat.system.strip())
        _check(wording, stages[stage], f"{setting}: the text for the stage {stage!r} in {path}")
    return wordings


def _read(path: Path, setting: str) -> Mapping[str, str | _Chat]:
    try:
        if path.is_dir():
            files = sorted(path.glob("*.txt"))
            texts: Mapping[str, str | _Chat] = {file.stem: file.read_text(encoding="utf-8") for file in files}
        else:
            texts = _FILE.validate_python(parse_yaml(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(
            f"{setting}: cannot read {path} ({error.strerror}). Give a YAML file or a folder of STAGE.txt files.",
            code="unreadable-file",
        ) from error
    except (InvalidYAMLError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(
            f"{setting}: {path} holds no prompts: {error}. Expected a text for each stage, or its `system` and `user`.",
            code="invalid-prompt",
        ) from error
    if not texts:
        raise ConfigError(f"{setting}: {path} has no text for any stage. Add STAGE.txt files.", code="invalid-prompt")
    return texts


def _check(wording: Wording, fields: Sequence[str], where: str) -> None:
    known = {*COMMON, *(field.rstrip("?") for field in fields)}
    actual = wording.placeholders()
    if unknown := sorted(actual - known):
        raise ConfigError(
            f"{where} has the placeholder {{{unknown[0]}}}; the stage has "
            f"{', '.join(f'{{{name}}}' for name in sorted(known))}. Write {{{{{unknown[0]}}}}} where it is text.",
            code="unknown-placeholder",
        )
    needed = {field for field in fields if not field.endswith("?")}
    missing = sorted(needed - actual) or ([] if actual & {"question", "question_with_options"} else ["question"])
    if missing:
        raise ConfigError(
            f"{where} lacks the placeholder {{{missing[0]}}}: the model would not see it. Put it where it belongs.",
            code="missing-placeholder",
        )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda mark: f"{{{mark[1]}}}" if mark[1] else values[mark[2]], text)
