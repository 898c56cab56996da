"""Rewrite questions with a prompted, untrained model through `llms/`: an endpoint or a local model.

Each answer is a separate chat with one request per turn, so the token counts of an endpoint belong to that answer.
Generation runs in the caller's thread (requests to an endpoint run concurrently) while another batch searches. A
missing answer gives no record: its reason is reported, it is requested again next time, and the earlier turns stay.

An endpoint's tokenizer is not available, so document budgets (`rollout.document_tokens`, `rollout.observation_tokens`)
count whitespace-separated words.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from ..configs.evaluation import SystemConfig
from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..envs.client.base import StepClient
from ..envs.server.schemas import Step, StepResult
from ..llms.access import Llm
from ..llms.base import Message, SamplingParams
from ..rewriters.base import Rewriter
from ..rewriters.frozen import FrozenAnswer, ask_turn
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
    """The reason for each answer that the model did not give."""


@dataclass(slots=True)
class _Path:
    """One answer to one question, over all turns."""

    question: Question
    sample: int
    chat: list[Message]
    answer: FrozenAnswer | None = None
    """The answer of the current turn."""
    tokens: int | None = 0
    searches: int = 0
    seconds: float = 0.0
    open: bool = True
    """False where the model did not answer."""
    earlier: tuple[str, ...] = ()
    """The rewrites of earlier turns."""


def prompted_answers(
    parts: Iterable[Sequence[Question]],
    name: str,
    asking: Asking,
    system: SystemConfig,
    llm: Llm,
    client: StepClient,
    rewriter: Rewriter,
    rollout: RolloutConfig,
) -> Iterator[Prompted]:
    """Yield finished batches, not always in the order of `parts`. Raises as `Llm.ask` and the client."""
    pending = iter(parts)
    under_way: deque[_Batch] = deque()
    with ThreadPoolExecutor(1, "querylect-search") as searching:
        while True:
            while len(under_way) < UNDER_WAY and (part := next(pending, None)) is not None:
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
    """One batch of questions and its answers so far."""

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
    search_future: "Future[tuple[list[StepResult | None], float]] | None" = None

    def __post_init__(self) -> None:
        self.paths = [
            _Path(question, sample, list(self.rewriter.first(question)))
            for sample in range(self.asking.paths)
            for question in self.part
        ]

    @property
    def over(self) -> bool:
        """Whether the batch is finished."""
        return self.turn == self.asking.turns or not self._open

    @property
    def _open(self) -> list[_Path]:
        return [path for path in self.paths if path.open]

    def ask(self, llm: Llm) -> None:
        """Generate the next turn. Paths with the same sample number share a seed and are requested together."""
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
                self._missing_recorder(paths),
            )
            spent = (time.perf_counter() - started) / max(1, len(paths))
            for path, answer in zip(paths, answers, strict=True):
                path.seconds += spent
                path.open = answer is not None
                if answer is not None:
                    weight = self.rollout.keep_rewrites_weight
                    answer = replace(answer, rewrite=with_earlier(answer.rewrite, path.earlier, weight))
                path.answer = answer

    def search(self, client: StepClient, searching: ThreadPoolExecutor) -> None:
        """Start this turn's search; another batch generates meanwhile."""
        steps = [
            Step(question_id=path.question.id, plan=path.answer.rewrite.plan)
            for path in self._open
            if path.answer is not None and path.answer.rewrite.plan is not None
        ]
        with_text = self.turn < self.asking.turns

        def send() -> tuple[list[StepResult | None], float]:
            started = time.perf_counter()
            results = client.step(steps, with_text=with_text, metrics=self.asking.metrics) if steps else []
            return list(results), time.perf_counter() - started

        self.search_future = searching.submit(send)

    def take(self) -> None:
        """Record the results of the running search, if any, and extend the chats for the next turn."""
        if self.search_future is None:
            return
        results, seconds = self.search_future.result()
        self.search_future = None
        paths, pending_results = self._open, iter(results)
        for path in paths:
            answer = path.answer
            assert answer is not None, "an open path has an answer"
            planned = answer.rewrite.plan is not None
            result = next(pending_results) if planned else None
            path.searches += planned
            path.seconds += seconds / len(paths)
            path.tokens = None if path.tokens is None or answer.tokens is None else path.tokens + answer.tokens
            self.records.append(self._record(path, answer, result))
            if self.turn < self.asking.turns:
                documents = (
                    [hit.document for hit in result.ranking[: self.rollout.documents]] if result is not None else []
                )
                message = self.rewriter.follow_up(path.question, self._cut(documents), self.turn + 1)
                path.earlier += answer.rewrite.rewrites
                path.chat.append(Message(role="assistant", content=answer.text))
                path.chat.append(Message(role="user", content=message))

    def _draw(self, sample: int) -> SamplingParams:
        tokens = self.rollout.new_tokens(self.turn)
        if not self.system.sampled:
            return SamplingParams(max_tokens=tokens)
        # an endpoint may increment the seed for several passages, so the seeds of samples are `passages` apart
        seed = (self.asking.seed * 1_000_003 + sample * self.system.passages) % 2**31
        return SamplingParams(
            self.system.passages, self.rollout.temperature_of(1), self.rollout.top_p_of(1), tokens, seed
        )

    def _missing_recorder(self, paths: Sequence[_Path]) -> Callable[[int, str], None]:
        def note(index: int, reason: str) -> None:
            self.missing[paths[index].question.id, self.turn, paths[index].sample] = reason

        return note

    def _record(self, path: _Path, answer: FrozenAnswer, result: StepResult | None) -> EvalRecord:
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
        """The documents as shown to the model: each, and all together, cut to their budgets in words."""
        left = self.rollout.observation_tokens
        truncated = []
        for document in documents:
            budget = self.rollout.document_tokens if left is None else min(left, self.rollout.document_tokens)
            if budget <= 0:
                break
            title = document.title.split()[:budget]
            text = document.text.split()[: budget - len(title)]
            truncated.append(Document(document.id, " ".join(title), " ".join(text)))
            left = None if left is None else left - len(title) - len(text)
        return truncated
