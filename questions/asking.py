"""Asks the writer for questions and the judge for verdicts, in batches; results are handed on batch by batch.

A request without a reply is *missing*: it is not recorded, and the next call asks for it again. A reply that has the
wrong form twice is a *failure*: it is recorded with its text. A question whose verdict failed stays unjudged: it counts
neither as answerable nor as unanswerable.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..configs.schema import QuestionsConfig
from ..data.types import Document
from ..envs.plan import is_unicode
from ..envs.retrievers.question_index import content_hash, same_question
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams
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
"""Contents per batch. Without a cache, a killed process has at most one batch to ask again."""
PAIRS = 256
_FIRST_TOKENS = 20
_MAX_FAILURE_CHARS = 2000

Item = TypeVar("Item")
Pair = tuple[str, Document]
"""A question and a content."""


@dataclass(frozen=True, slots=True)
class LineCost:
    """Calls and tokens behind one record. Token counts are None if the endpoint does not report them."""

    calls: int = 0
    prompt_tokens: int | None = 0
    tokens: int | None = 0

    def plus(self, replies: Sequence[LlmResponse]) -> "LineCost":
        """The sum of this and the cost of `replies`."""
        tokens_in, tokens_out = self.prompt_tokens, self.tokens
        for reply in replies:
            tokens_in = None if tokens_in is None or reply.prompt_tokens is None else tokens_in + reply.prompt_tokens
            tokens_out = None if tokens_out is None or reply.tokens is None else tokens_out + reply.tokens
        return LineCost(self.calls + len(replies), tokens_in, tokens_out)


@dataclass(frozen=True, slots=True)
class PairJudgement:
    """A verdict on one pair."""

    question: str
    answerable: bool | None
    """None if the verdict did not have the required form."""
    why: str = ""
    """The judge's explanation, or what is wrong with its reply."""


@dataclass(frozen=True, slots=True)
class LineAnswers:
    """The questions and verdicts of one content."""

    key: str
    """Hash of the content and of everything else that the answers depend on."""
    id: str
    hash: str
    judged: tuple[PairJudgement, ...]
    """The distinct questions in the order they were written, each with its verdict."""
    written: int
    """Number of questions that the writer wrote, including blank and repeated ones."""
    failure: str
    """What is wrong with the writer's reply; "" if it is valid."""
    text: str
    """The first 2,000 characters of a failed reply."""
    spent: LineCost


@dataclass(frozen=True, slots=True)
class AskedPair:
    """A verdict on a pair whose question was not written for that content."""

    key: str
    content: str
    judged: PairJudgement
    spent: LineCost


class QuestionWriter:
    """Gets questions from a writer and verdicts from a judge."""

    def __init__(self, config: QuestionsConfig, writer: Llm, judge: Llm) -> None:
        self._config, self._writer, self._judge = config, writer, judge
        self.identity = identity(config, writer.identity, judge.identity)
        """Everything that answers depend on besides the content."""
        self._salt = digest(self.identity)

    def key(self, content: Document) -> str:
        """The key of the answers about a content."""
        return digest([self._salt, content_hash(content)])

    def pair_key(self, question: str, content: Document) -> str:
        """The key of a verdict on a pair; it does not depend on the writer."""
        judge = {name: value for name, value in self.identity.items() if name.startswith("judge") or name == "words"}
        return digest([judge, question, content_hash(content)])

    def contents(
        self,
        contents: Sequence[Document],
        keep: Callable[[LineAnswers], None],
        advance: Callable[[int], None] | None = None,
    ) -> int:
        """Ask about every content and call `keep` for each complete one. Returns the number of incomplete ones.

        Raises as `Llm.ask`.
        """
        missing = 0
        for batch in _batches(contents, BATCH):
            config = self._config
            draw = SamplingParams(temperature=config.writer_temperature, max_tokens=config.max_tokens, seed=config.seed)
            prompts = [writer_prompt(content, config.per_content, config.about, config.words) for content in batch]
            answers = ask_structured(self._writer, prompts, Written, draw, config.form)
            proposed = [distinct(answer.value.questions) if answer.value else [] for answer in answers]
            pairs = [
                (question, content)
                for content, questions in zip(batch, proposed, strict=True)
                for question in questions
            ]
            verdicts = iter(self._verdicts(pairs))
            for content, questions, answer in zip(batch, proposed, answers, strict=True):
                content_verdicts = [next(verdicts) for _ in questions]
                if answer.missing or any(verdict is None for verdict in content_verdicts):
                    missing += 1
                    continue
                judged = [verdict for verdict in content_verdicts if verdict is not None]
                keep(
                    LineAnswers(
                        self.key(content),
                        content.id,
                        content_hash(content),
                        tuple(verdict for verdict, _ in judged),
                        len(answer.value.questions) if answer.value else 0,
                        answer.failure,
                        _storable(answer.text[:_MAX_FAILURE_CHARS]) if answer.failure else "",
                        LineCost().plus([*answer.replies, *(reply for _, replies in judged for reply in replies)]),
                    )
                )
            if advance is not None:
                advance(len(batch))
        return missing

    def pairs(
        self, pairs: Sequence[Pair], keep: Callable[[AskedPair], None], advance: Callable[[int], None] | None = None
    ) -> int:
        """Judge pairs and call `keep` for each verdict. Returns how many got no reply. Raises as `Llm.ask`."""
        missing = 0
        for batch in _batches(pairs, PAIRS):
            for (question, content), verdict in zip(batch, self._verdicts(batch), strict=True):
                if verdict is None:
                    missing += 1
                    continue
                spent = LineCost().plus(verdict[1])
                keep(AskedPair(self.pair_key(question, content), content.id, verdict[0], spent))
            if advance is not None:
                advance(len(batch))
        return missing

    def _verdicts(self, pairs: Sequence[Pair]) -> list[tuple[PairJudgement, Sequence[LlmResponse]] | None]:
        config = self._config
        verdicts: list[tuple[PairJudgement, Sequence[LlmResponse]] | None] = []
        if config.judge_form == "structured":
            prompts = [judge_prompt(question, content, config.words) for question, content in pairs]
            draw = SamplingParams(max_tokens=config.judge_tokens)
            answers = ask_structured(self._judge, prompts, Verdict, draw, config.form)
            for (question, _), answer in zip(pairs, answers, strict=True):
                if answer.missing:
                    verdicts.append(None)
                    continue
                verdict = answer.value
                why = verdict.explanation if verdict else answer.failure
                judged = PairJudgement(question, verdict.answerable if verdict else None, _storable(why))
                verdicts.append((judged, answer.replies))
            return verdicts
        yes_no_prompts = [yes_no_prompt(question, content, config.words) for question, content in pairs]
        replies = self._judge.ask(yes_no_prompts, SamplingParams(max_tokens=1, first_logprobs=_FIRST_TOKENS))
        for (question, _), reply in zip(pairs, replies, strict=True):
            if reply is None:
                verdicts.append(None)
                continue
            (completion,) = reply.texts
            answerable = yes_or_no(completion.text, completion.first)
            why = "" if answerable is not None else f"neither Yes nor No among the first tokens: {completion.text!r}"
            verdicts.append((PairJudgement(question, answerable, _storable(why)), (reply,)))
        return verdicts


def identity(config: QuestionsConfig, writer: Mapping[str, Any], judge: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that answers depend on besides the content, as JSON data."""
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
    """The questions without blank and repeated ones; questions are compared without case and whitespace."""
    texts: dict[str, str] = {}
    for question in questions:
        if question.strip() and is_unicode(question):
            texts.setdefault(same_question(question), " ".join(question.split()))
    return list(texts.values())


def digest(content: object) -> str:
    """sha256 of JSON data."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


def asked_of(row: Mapping[str, Any]) -> LineAnswers:
    """An `LineAnswers` from JSON data. Raises KeyError or TypeError if the fields do not fit."""
    judged = tuple(PairJudgement(**verdict) for verdict in row["judged"])
    return LineAnswers(**{**row, "judged": judged, "spent": LineCost(**row["spent"])})


def pair_of(row: Mapping[str, Any]) -> AskedPair:
    """An `AskedPair` from JSON data. Raises as `asked_of`."""
    return AskedPair(**{**row, "judged": PairJudgement(**row["judged"]), "spent": LineCost(**row["spent"])})


def _storable(text: str) -> str:
    """The text with lone surrogates replaced by question marks, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()


def _batches(items: Sequence[Item], size: int) -> Iterator[Sequence[Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
