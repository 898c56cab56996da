"""Questions for contents, and verdicts on pairs: asked in batches, written down batch by batch.

What a model did not reply to is *missing*: it is not written down and asked for again by the next call. What it said
in another form, twice, is a *failure* and is written down with its text. A question whose verdict failed is kept as
what it is, unjudged, and is never taken for answerable or not.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..configs.schema import QuestionsConfig
from ..data.types import Document
from ..envs.plan import is_unicode
from ..envs.question_index import content_hash, same_question
from ..llms.access import Llm
from ..llms.base import Draw, Reply
from ..llms.structured import ask_structured, version_in
from .prompts import (
    JUDGE_VERSIONS,
    WRITER_VERSION,
    Verdict,
    Written,
    judge_prompt,
    writer_prompt,
    yes_no_prompt,
    yes_or_no,
)

BATCH = 32
"""Contents that are asked about side by side; what a killed process has to ask again at most, where no cache is."""
PAIRS = 256
_FIRST_TOKENS = 20
_SHOWN = 2000

One = TypeVar("One")
Pair = tuple[str, Document]
"""A question and a content."""


@dataclass(frozen=True, slots=True)
class Spent:
    """What was said for one line. Tokens are None where an endpoint does not say."""

    calls: int = 0
    prompt_tokens: int | None = 0
    tokens: int | None = 0

    def plus(self, replies: Sequence[Reply]) -> "Spent":
        """With more replies."""
        read, wrote = self.prompt_tokens, self.tokens
        for reply in replies:
            read = None if read is None or reply.prompt_tokens is None else read + reply.prompt_tokens
            wrote = None if wrote is None or reply.tokens is None else wrote + reply.tokens
        return Spent(self.calls + len(replies), read, wrote)


@dataclass(frozen=True, slots=True)
class Judged:
    """A verdict on one pair."""

    question: str
    answerable: bool | None
    """None where the judge did not keep to the form."""
    why: str = ""
    """The judge's explanation, or what is wrong with its answer."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What came of one content."""

    key: str
    """Of the content and of everything that the answers depend on."""
    id: str
    hash: str
    judged: tuple[Judged, ...]
    """The different questions that were written, in their order, with the verdicts."""
    written: int
    """Questions that the writer wrote, blank and repeated ones included."""
    failure: str
    """What is wrong with the writer's answer; "" where nothing is."""
    text: str
    """That answer, its first 2,000 characters."""
    spent: Spent


@dataclass(frozen=True, slots=True)
class AskedPair:
    """A verdict on a pair that nobody wrote the question for."""

    key: str
    content: str
    judged: Judged
    spent: Spent


class Interviewer:
    """Asks a writer and a judge."""

    def __init__(self, config: QuestionsConfig, writer: Llm, judge: Llm) -> None:
        self._config, self._writer, self._judge = config, writer, judge
        self.identity = identity(config, writer.identity, judge.identity)
        """What all answers depend on besides the content."""
        self._salt = digest(self.identity)

    def key(self, content: Document) -> str:
        """Of the answers about a content."""
        return digest([self._salt, content_hash(content)])

    def pair_key(self, question: str, content: Document) -> str:
        """Of a verdict; that of a judge depends on no writer."""
        judge = {name: value for name, value in self.identity.items() if name.startswith("judge") or name == "words"}
        return digest([judge, question, content_hash(content)])

    def contents(
        self, contents: Sequence[Document], keep: Callable[[Asked], None], advance: Callable[[int], None] | None = None
    ) -> int:
        """Ask about every content and hand each on that is complete; gives how many were not. Raises as `Llm.ask`."""
        missing = 0
        for batch in _batches(contents, BATCH):
            config = self._config
            draw = Draw(temperature=config.writer_temperature, max_tokens=config.max_tokens, seed=config.seed)
            prompts = [writer_prompt(one, config.per_content, config.about, config.words) for one in batch]
            said = ask_structured(self._writer, prompts, Written, draw, config.form)
            proposed = [distinct(one.value.questions) if one.value else [] for one in said]
            pairs = [
                (question, content)
                for content, questions in zip(batch, proposed, strict=True)
                for question in questions
            ]
            verdicts = iter(self._verdicts(pairs))
            for content, questions, one in zip(batch, proposed, said, strict=True):
                own = [next(verdicts) for _ in questions]
                if one.missing or any(verdict is None for verdict in own):
                    missing += 1
                    continue
                judged = [verdict for verdict in own if verdict is not None]
                keep(
                    Asked(
                        self.key(content),
                        content.id,
                        content_hash(content),
                        tuple(verdict for verdict, _ in judged),
                        len(one.value.questions) if one.value else 0,
                        one.failure,
                        _storable(one.text[:_SHOWN]) if one.failure else "",
                        Spent().plus([*one.replies, *(reply for _, replies in judged for reply in replies)]),
                    )
                )
            if advance is not None:
                advance(len(batch))
        return missing

    def pairs(
        self, pairs: Sequence[Pair], keep: Callable[[AskedPair], None], advance: Callable[[int], None] | None = None
    ) -> int:
        """Have pairs judged and hand each on; gives how many got no reply. Raises as `Llm.ask`."""
        missing = 0
        for batch in _batches(pairs, PAIRS):
            for (question, content), verdict in zip(batch, self._verdicts(batch), strict=True):
                if verdict is None:
                    missing += 1
                    continue
                spent = Spent().plus(verdict[1])
                keep(AskedPair(self.pair_key(question, content), content.id, verdict[0], spent))
            if advance is not None:
                advance(len(batch))
        return missing

    def _verdicts(self, pairs: Sequence[Pair]) -> list[tuple[Judged, Sequence[Reply]] | None]:
        config = self._config
        found: list[tuple[Judged, Sequence[Reply]] | None] = []
        if config.judge_form == "structured":
            prompts = [judge_prompt(question, content, config.words) for question, content in pairs]
            draw = Draw(max_tokens=config.judge_tokens)
            answers = ask_structured(self._judge, prompts, Verdict, draw, config.form)
            for (question, _), said in zip(pairs, answers, strict=True):
                if said.missing:
                    found.append(None)
                    continue
                verdict = said.value
                why = verdict.explanation if verdict else said.failure
                found.append((Judged(question, verdict.answerable if verdict else None, _storable(why)), said.replies))
            return found
        asked = [yes_no_prompt(question, content, config.words) for question, content in pairs]
        replies = self._judge.ask(asked, Draw(max_tokens=1, first_logprobs=_FIRST_TOKENS))
        for (question, _), reply in zip(pairs, replies, strict=True):
            if reply is None:
                found.append(None)
                continue
            (said_first,) = reply.texts
            answer = yes_or_no(said_first.text, said_first.first)
            why = "" if answer is not None else f"neither Yes nor No among the first tokens: {said_first.text!r}"
            found.append((Judged(question, answer, _storable(why)), (reply,)))
        return found


def identity(config: QuestionsConfig, writer: Mapping[str, Any], judge: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that answers depend on besides the content, as plain data."""
    structured = config.judge_form == "structured"
    return {
        "writer": dict(writer),
        "writer_prompt": version_in(WRITER_VERSION, config.form),
        "per_content": config.per_content,
        "about": config.about,
        "words": config.words,
        "max_tokens": config.max_tokens,
        "temperature": config.writer_temperature,
        "seed": config.seed if config.writer_temperature > 0 else None,
        "judge": dict(judge),
        "judge_prompt": version_in(JUDGE_VERSIONS[config.judge_form], config.form if structured else "json"),
        "judge_tokens": config.judge_tokens if structured else None,
    }


def distinct(questions: Sequence[str]) -> list[str]:
    """Questions without blank and repeated ones; case and blanks make no difference."""
    found: dict[str, str] = {}
    for question in questions:
        if question.strip() and is_unicode(question):
            found.setdefault(same_question(question), " ".join(question.split()))
    return list(found.values())


def digest(content: Any) -> str:
    """sha256 of plain data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def asked_of(row: Mapping[str, Any]) -> Asked:
    """From plain data. Raises KeyError or TypeError for what is no such answer."""
    judged = tuple(Judged(**one) for one in row["judged"])
    return Asked(**{**row, "judged": judged, "spent": Spent(**row["spent"])})


def pair_of(row: Mapping[str, Any]) -> AskedPair:
    """The same for a pair."""
    return AskedPair(**{**row, "judged": Judged(**row["judged"]), "spent": Spent(**row["spent"])})


def _storable(text: str) -> str:
    """A text as UTF-8 can hold it; half a character becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def _batches(things: Sequence[One], size: int) -> Iterator[Sequence[One]]:
    return (things[start : start + size] for start in range(0, len(things), size))
