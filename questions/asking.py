"""Asks the writer for questions and the judge for verdicts; the reply cache resumes an interrupted call.

A request without a reply is *missing*: the next call asks for it again. A reply that has the wrong form twice is a
*failure*: it is recorded with its text. A question whose verdict failed stays unjudged: it counts
neither as answerable nor as unanswerable.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..configs.schema import QuestionsConfig
from ..data.sampling import in_batches
from ..data.types import Document
from ..envs.plan import is_unicode
from ..envs.retrievers.question_index import content_hash, same_question
from ..errors import IncompleteError
from ..llms.access import Llm
from ..llms.base import LlmResponse, SamplingParams, complete_sum
from ..llms.structured import Structured, ask_structured, version_in
from ..storage import data_sha256
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
"""Contents or pairs that are asked about at once; progress is told after each batch."""
_FIRST_TOKENS = 20
_MAX_FAILURE_CHARS = 2000

ASKED = "asked.jsonl"
"""File of the answers about contents."""

Pair = tuple[str, Document]
"""A question and a content."""


@dataclass(frozen=True, slots=True)
class LineCost:
    """Calls and tokens behind one record. Token counts are None if the endpoint does not report them."""

    calls: int = 0
    prompt_tokens: int | None = 0
    tokens: int | None = 0


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


Verdicted = tuple[PairJudgement, Sequence[LlmResponse]]
"""A verdict and the replies behind it."""


class QuestionWriter:
    """Gets questions from a writer and verdicts from a judge."""

    def __init__(self, config: QuestionsConfig, writer: Llm, judge: Llm) -> None:
        self._config, self._writer, self._judge = config, writer, judge
        self.identity = identity(config, writer.identity, judge.identity)
        """Everything that answers depend on besides the content."""
        self._salt = data_sha256(self.identity)

    @property
    def model(self) -> Llm:
        """The writer."""
        return self._writer

    def key(self, content: Document) -> str:
        """The key of the answers about a content."""
        return data_sha256([self._salt, content_hash(content)])

    def contents(self, contents: Sequence[Document]) -> Iterator[list[LineAnswers | None]]:
        """Ask about every content, batch by batch; None for one with a missing reply. Raises as `Llm.ask`."""
        config = self._config
        draw = SamplingParams(max_tokens=config.max_tokens)
        for batch in in_batches(contents, BATCH):
            prompts = [writer_prompt(content, config.per_content, config.about, config.words) for content in batch]
            answers = ask_structured(self._writer, prompts, Written, draw, config.form)
            proposed = [distinct(answer.value.questions) if answer.value else [] for answer in answers]
            pairs = [
                (question, content)
                for content, questions in zip(batch, proposed, strict=True)
                for question in questions
            ]
            verdicts = iter(self.verdicts(pairs))
            records: list[LineAnswers | None] = []
            for content, questions, answer in zip(batch, proposed, answers, strict=True):
                content_verdicts = [next(verdicts) for _ in questions]
                judged = [verdict for verdict in content_verdicts if verdict is not None]
                if answer.missing or len(judged) < len(content_verdicts):
                    records.append(None)
                    continue
                records.append(
                    LineAnswers(
                        key=self.key(content),
                        id=content.id,
                        hash=content_hash(content),
                        judged=tuple(verdict for verdict, _ in judged),
                        written=len(answer.value.questions) if answer.value else 0,
                        failure=answer.failure,
                        text=_storable(answer.text[:_MAX_FAILURE_CHARS]) if answer.failure else "",
                        spent=cost_of([*answer.replies, *(reply for _, replies in judged for reply in replies)]),
                    )
                )
            yield records

    def verdicts(self, pairs: Sequence[Pair]) -> list[Verdicted | None]:
        """Judge pairs; None for a missing reply. Raises as `Llm.ask`."""
        config = self._config
        if config.judge_form == "structured":
            prompts = [judge_prompt(question, content, config.words) for question, content in pairs]
            draw = SamplingParams(max_tokens=config.judge_tokens)
            answers = ask_structured(self._judge, prompts, Verdict, draw, config.form)
            return [_verdict(question, answer) for (question, _), answer in zip(pairs, answers, strict=True)]
        yes_no_prompts = [yes_no_prompt(question, content, config.words) for question, content in pairs]
        replies = self._judge.ask(yes_no_prompts, SamplingParams(max_tokens=1, first_logprobs=_FIRST_TOKENS))
        return [_first_token_verdict(question, reply) for (question, _), reply in zip(pairs, replies, strict=True)]


def _verdict(question: str, answer: Structured[Verdict]) -> Verdicted | None:
    if answer.missing:
        return None
    if answer.value is None:
        return PairJudgement(question, None, _storable(answer.failure)), answer.replies
    return PairJudgement(question, answer.value.answerable, _storable(answer.value.explanation)), answer.replies


def _first_token_verdict(question: str, reply: LlmResponse | None) -> Verdicted | None:
    if reply is None:
        return None
    (completion,) = reply.texts
    answerable = yes_or_no(completion.text, completion.first)
    why = "" if answerable is not None else f"neither Yes nor No among the first tokens: {completion.text!r}"
    return PairJudgement(question, answerable, _storable(why)), (reply,)


def identity(config: QuestionsConfig, writer: Mapping[str, object], judge: Mapping[str, object]) -> dict[str, object]:
    """Everything that answers depend on besides the content, as JSON data."""
    structured = config.judge_form == "structured"
    return {
        "writer": dict(writer),
        "writer_prompt": version_in(WRITER_VERSION, config.form),
        "per_content": config.per_content,
        "about": config.about,
        "words": config.words,
        "max_tokens": config.max_tokens,
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


def cost_of(replies: Sequence[LlmResponse]) -> LineCost:
    """The calls and tokens of these replies."""
    prompt, completions = [reply.prompt_tokens for reply in replies], [reply.tokens for reply in replies]
    return LineCost(len(replies), complete_sum(prompt), complete_sum(completions))


def total_cost(costs: Sequence[LineCost]) -> dict[str, int | None]:
    """The calls and tokens of all records; None for tokens that an endpoint did not report for one of them."""
    return {
        "calls": sum(cost.calls for cost in costs),
        "prompt_tokens": complete_sum([cost.prompt_tokens for cost in costs]),
        "tokens": complete_sum([cost.tokens for cost in costs]),
    }


def refuse_missing(missing: int, total: int) -> None:
    """Raise IncompleteError where a model did not reply."""
    if missing:
        raise IncompleteError(
            f"{missing} of {total} replies are missing, and nothing was written. Give the same command again: replies "
            "that came are kept."
        )


def _storable(text: str) -> str:
    """The text with lone surrogates replaced by question marks, so that it can be encoded as UTF-8."""
    return text.encode("utf-8", "replace").decode()
