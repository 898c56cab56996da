"""Prompts in the user's own words, from a YAML file or a folder with one text for each stage.

A text has placeholders for what changes from question to question, such as {question}. It is used as it is, and answers
to it are read as those to the project's own prompts. Braces around anything but a lower-case name are text, so JSON
examples need no escapes; {{name}} is the text {name}.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from ..configs.yaml12 import InvalidYAMLError, parse_yaml
from ..errors import ConfigError
from .base import Message, Prompt

HISTORY = "history"
COMMON = ("question", "options", "question_with_options", HISTORY)
"""Placeholders of every stage but `QUESTIONS`: the question, its options as lettered lines ("" without any), both, and
the conversation before the question, one utterance a line ("" without one). A text without a place for the conversation
has it in front."""
QUESTIONS = "questions"
"""The stage in which a model writes questions: nothing is asked before it."""

_ANSWER = ("documents", "field?")
MODEL_STAGES: Mapping[str, Sequence[str]] = {
    "answer_choice": _ANSWER,
    "answer_open": _ANSWER,
    "answer_content": _ANSWER,
    "alone_choice": ("field?",),
    "alone_open": ("field?",),
    "utility": ("documents", "right_answer"),
    "mimic": ("target", "mimic", "right_answer?"),
    "relevancy": ("document",),
    "declined": ("answer",),
    "faithfulness": ("documents", "answer"),
    "answer_relevancy": ("answer",),
    "guideline_answer": ("documents",),
    "guideline_points": ("ideal_answer",),
    "guideline_score": ("points", "answer"),
    "context_recall_statements": ("right_answer",),
    "context_recall_attributions": ("documents", "statements"),
    QUESTIONS: ("content", "count?", "origin?"),
    "answerable": ("content",),
    "answerable_yes_no": ("content",),
}
"""The stages of readers, judges and question writers, and their placeholders besides the common ones; "?" marks those
that a text may leave out. Those of methods are in methods/wording.py."""

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
        history = values.get(HISTORY, "")
        user = f"{{{HISTORY}}}\n\n{self.user}" if history and HISTORY not in self.placeholders() else self.user
        texts = (("system", self.system), ("user", user))
        messages = tuple(Message(role=role, content=_filled(text, values)) for role, text in texts if text)
        return Prompt(messages, self.version)


def read_wordings(stages: Mapping[str, Sequence[str]], path: str, setting: str) -> dict[str, Wording]:
    """The texts by stage: from a YAML file (stage: text, or stage: {system, user}), or a folder of STAGE.txt files.

    Raises ConfigError, which begins with `setting`, for what cannot be read, a stage that is not one of `stages`, a
    placeholder that the stage does not have, and a needed one that is missing.
    """
    wordings: dict[str, Wording] = {}
    for stage, text in _read(Path(path).expanduser(), setting).items():
        if stage not in stages:
            raise ConfigError(
                f"{setting}: {path} has a text for the stage {stage!r}; expected {', '.join(stages) or 'none'}. "
                "Rename or remove it."
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
            f"{setting}: cannot read {path} ({error.strerror}). Give a YAML file or a folder of STAGE.txt files."
        ) from error
    except (InvalidYAMLError, UnicodeDecodeError, ValidationError) as error:
        raise ConfigError(
            f"{setting}: {path} holds no prompts: {error}. Expected a text for each stage, or its `system` and `user`."
        ) from error
    if not texts:
        raise ConfigError(f"{setting}: {path} has no text for any stage. Add STAGE.txt files.")
    return texts


def _check(wording: Wording, fields: Sequence[str], where: str) -> None:
    common = () if wording.stage == QUESTIONS else COMMON
    known = {*common, *(field.rstrip("?") for field in fields)}
    actual = wording.placeholders()
    if unknown := sorted(actual - known):
        raise ConfigError(
            f"{where} has the placeholder {{{unknown[0]}}}; the stage has "
            f"{', '.join(f'{{{name}}}' for name in sorted(known))}. Write {{{{{unknown[0]}}}}} where it is text."
        )
    needed = {field for field in fields if not field.endswith("?")}
    shown = not common or actual & {"question", "question_with_options"}
    missing = sorted(needed - actual) or ([] if shown else ["question"])
    if missing:
        raise ConfigError(
            f"{where} lacks the placeholder {{{missing[0]}}}: the model would not see it. Put it where it belongs."
        )


def _filled(text: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda mark: f"{{{mark[1]}}}" if mark[1] else values[mark[2]], text)
