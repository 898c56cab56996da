"""Questions rewritten by a model that is asked through `llms/`: an endpoint, or a local model, as it stands.

Each answer of a question is a chat of its own, one request a turn, so that what an endpoint says of its tokens is that
answer's. Texts are generated in the caller's thread (the endpoint's requests side by side there); meanwhile another
batch searches. An answer that did not come is no record: it is told with its reason and asked for again next time, and
what the model said before it stands.

There is no tokenizer of an endpoint's model here: budgets of documents (`rollout.document_tokens`,
`rollout.observation_tokens`) count words between spaces.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from ..configs.evaluation import SystemConfig
from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..envs.wire import Step, StepResult
from ..llms.access import Llm
from ..llms.base import Draw, Message
from ..rewriters.base import Rewriter
from ..rewriters.frozen import Answer, ask_turn
from ..rewriters.plans import with_earlier
from .answering import UNDER_WAY, Asking
from .journal import Key
from .records import EvalRecord, metrics_of


@dataclass(frozen=True, slots=True)
class Prompted:
    """A finished batch."""

    questions: int
    records: list[EvalRecord]
    missing: dict[Key, str]
    """Why the model gave no answer."""


@dataclass(slots=True)
class _Path:
    """One answer of one question, turn after turn."""

    question: Question
    sample: int
    chat: list[Message]
    answer: Answer | None = None
    """Of the turn under way."""
    tokens: int | None = 0
    searches: int = 0
    seconds: float = 0.0
    open: bool = True
    """False where the model did not answer."""
    earlier: tuple[str, ...] = ()
    """The rewrites of the turns before the one under way."""


def prompted_answers(
    parts: Iterable[Sequence[Question]],
    name: str,
    asking: Asking,
    system: SystemConfig,
    llm: Llm,
    client: Any,
    rewriter: Rewriter,
    rollout: RolloutConfig,
) -> Iterator[Prompted]:
    """The batches as they are finished, not always in the order of `parts`. Raises as `Llm.ask` and the client."""
    waiting = iter(parts)
    under_way: deque[_Batch] = deque()
    with ThreadPoolExecutor(1, "querylect-search") as searching:
        while True:
            while len(under_way) < UNDER_WAY and (part := next(waiting, None)) is not None:
                under_way.appendleft(_Batch(part, name, asking, system, rewriter, rollout))
            if not under_way:
                return
            batch = under_way.popleft()
            batch.take()
            if batch.over:
                yield Prompted(len(batch.part), batch.records, batch.missing)
                continue
            batch.ask(llm)
            batch.search(client, searching)
            under_way.append(batch)


@dataclass(slots=True)
class _Batch:
    """The answers to some questions, as far as they have come."""

    part: Sequence[Question]
    name: str
    asking: Asking
    system: SystemConfig
    rewriter: Rewriter
    rollout: RolloutConfig
    records: list[EvalRecord] = field(default_factory=list)
    missing: dict[Key, str] = field(default_factory=dict)
    turn: int = 0
    paths: list[_Path] = field(init=False)
    found: "Future[tuple[list[StepResult | None], float]] | None" = None

    def __post_init__(self) -> None:
        self.paths = [
            _Path(question, sample, list(self.rewriter.first(question)))
            for sample in range(self.asking.paths)
            for question in self.part
        ]

    @property
    def over(self) -> bool:
        """Whether nothing is left to ask."""
        return self.turn == self.asking.turns or not self._open

    @property
    def _open(self) -> list[_Path]:
        return [path for path in self.paths if path.open]

    def ask(self, llm: Llm) -> None:
        """Have the next turn generated; answers of one sample are asked for together, for they share a seed."""
        self.turn += 1
        for sample in range(self.asking.paths):
            paths = [path for path in self._open if path.sample == sample]
            started = time.perf_counter()
            answers = ask_turn(
                llm,
                self.rewriter,
                [path.question for path in paths],
                [path.chat for path in paths],
                self.turn,
                self._draw(sample),
                self._missed(paths),
            )
            spent = (time.perf_counter() - started) / max(1, len(paths))
            for path, answer in zip(paths, answers, strict=True):
                path.seconds += spent
                path.open = answer is not None
                if answer is not None:
                    kept = self.rollout.keep_rewrites_weight
                    answer = replace(answer, rewrite=with_earlier(answer.rewrite, path.earlier, kept))
                path.answer = answer

    def search(self, client: Any, searching: ThreadPoolExecutor) -> None:
        """Send the plans of this turn; another batch is generated meanwhile."""
        steps = [
            Step(question_id=path.question.id, plan=path.answer.rewrite.plan)
            for path in self._open
            if path.answer is not None and path.answer.rewrite.plan is not None
        ]
        with_text = self.turn < self.asking.turns

        def send() -> tuple[list[StepResult | None], float]:
            started = time.perf_counter()
            found = client.step(steps, with_text=with_text, metrics=self.asking.metrics) if steps else []
            return list(found), time.perf_counter() - started

        self.found = searching.submit(send)

    def take(self) -> None:
        """Note what the search under way gave, if there is one, and write the next turn's chats."""
        if self.found is None:
            return
        results, seconds = self.found.result()
        self.found = None
        paths, given = self._open, iter(results)
        for path in paths:
            answer = path.answer
            assert answer is not None, "an open path has an answer"
            planned = answer.rewrite.plan is not None
            result = next(given) if planned else None
            path.searches += planned
            path.seconds += seconds / len(paths)
            path.tokens = None if path.tokens is None or answer.tokens is None else path.tokens + answer.tokens
            self.records.append(self._record(path, answer, result))
            if self.turn < self.asking.turns:
                shown = [hit.document for hit in result.ranking[: self.rollout.documents]] if result is not None else []
                message = self.rewriter.follow_up(path.question, self._cut(shown), self.turn + 1)
                path.earlier += answer.rewrite.rewrites
                path.chat.append(Message(role="assistant", content=answer.text))
                path.chat.append(Message(role="user", content=message))

    def _draw(self, sample: int) -> Draw:
        tokens = self.rollout.new_tokens(self.turn)
        if not self.system.sampled:
            return Draw(max_tokens=tokens)
        # an endpoint may count up from the seed to give several passages: those of another sample begin behind them
        seed = (self.asking.seed * 1_000_003 + sample * self.system.passages) % 2**31
        return Draw(self.system.passages, self.rollout.temperature_of(1), self.rollout.top_p_of(1), tokens, seed)

    def _missed(self, paths: Sequence[_Path]) -> Callable[[int, str], None]:
        def note(place: int, reason: str) -> None:
            self.missing[paths[place].question.id, self.turn, paths[place].sample] = reason

        return note

    def _record(self, path: _Path, answer: Answer, result: StepResult | None) -> EvalRecord:
        rewrite = answer.rewrite
        hits = result.ranking if result is not None else []
        failed = rewrite.plan is None
        return EvalRecord(
            system=self.name,
            turn=self.turn,
            question_id=path.question.id,
            question=path.question.text,
            think=rewrite.think,
            rewrites=tuple(rewrite.rewrites),
            ranking=tuple(hit.id for hit in hits),
            metrics=metrics_of(
                result.metrics if result is not None else {},
                self.asking.metrics,
                failed=failed,
                scored=failed or result is not None,
            ),
            tokens=path.tokens,
            prompt_tokens=answer.prompt_tokens,
            searches=path.searches,
            format_ok=rewrite.format_ok,
            scores=tuple(hit.score for hit in hits),
            plan=rewrite.plan.model_dump(mode="json") if rewrite.plan is not None else None,
            seconds=path.seconds,
            sample=path.sample,
            cut=not answer.finished,
        )

    def _cut(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn sees them, each and all together within their budgets in words."""
        left = self.rollout.observation_tokens
        kept = []
        for document in documents:
            budget = self.rollout.document_tokens if left is None else min(left, self.rollout.document_tokens)
            if budget <= 0:
                break
            title = document.title.split()[:budget]
            text = document.text.split()[: budget - len(title)]
            kept.append(Document(document.id, " ".join(title), " ".join(text)))
            left = None if left is None else left - len(title) - len(text)
        return kept
