"""The answers of systems with a model: a policy (eval/answering.py), or a prompted model through `llms/`, which is an
endpoint or a local model.

Each answer of a prompted model is a separate chat with one request per turn, so the token counts of an endpoint belong
to that answer; the requests of a batch run concurrently. A missing answer gives no record: its reason is reported, it
is requested again next time, and the earlier turns stay.

An endpoint's tokenizer is not available, so the budgets of documents (`rollout.document_tokens`,
`rollout.observation_tokens`) and histories (`rollout.history_tokens`) count whitespace-separated words.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from ..configs.evaluation import SystemConfig
from ..configs.schema import RolloutConfig
from ..data.history import cut_history
from ..data.types import Question
from ..envs.client.base import StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step, StepResult
from ..llms.access import Llm
from ..llms.base import Message, SamplingParams
from ..rewriters.base import RewritingStrategy
from ..rewriters.frozen import FrozenAnswer, ask_turn, cut_to_words
from ..rewriters.stop import keep
from ..rollouts.engines.base import Engine
from .answering import Answered, Asking, answers
from .journal import AnswerKey
from .records import EvalRecord, record_of_search, records_of_trees


@dataclass(slots=True)
class _Path:
    """One answer to one question, over all turns."""

    question: Question
    sample: int
    chat: list[Message]
    answer: FrozenAnswer | None = None
    """The answer of the current turn."""
    tokens: int | None = 0
    calls: int = 0
    searches: int = 0
    seconds: float = 0.0
    open: bool = True
    """False where the model did not answer or stopped, and below a failed search, as for a policy."""
    last_plan: SearchPlan | None = None
    last_result: StepResult | None = None
    """What the last search came to, which a stop keeps; `last_plan` is None before the first."""

    @property
    def keeps(self) -> bool:
        """Whether the answer of the current turn keeps the ranking of an earlier one."""
        return self.answer is not None and self.answer.rewrite.stop and self.last_plan is not None


def model_answers(
    parts: Iterable[Sequence[Question]],
    name: str,
    asking: Asking,
    system: SystemConfig,
    model: Engine | Llm,
    client: StepClient,
    rewriter: RewritingStrategy,
    rollout: RolloutConfig,
) -> Iterator[Answered]:
    """Yield the answers of a system to one batch after another: of a policy, or of a prompted model.
    Raises as `TreeSampler.grow`, `Llm.ask` and the client."""
    if not isinstance(model, Llm):
        for answered in answers(parts, asking, model, client, rewriter, rollout):
            records = records_of_trees(name, answered.trees, asking.metrics, asking.paths, answered.seconds)
            yield Answered(len(answered.trees), records)
        return
    for part in parts:
        batch = _Batch(part, name, asking, system, rewriter, rollout)
        for _ in range(asking.turns):
            batch.ask(model)
            batch.search(client)
        yield Answered(len(part), batch.records, batch.missing)


@dataclass(slots=True)
class _Batch:
    """One batch of questions and its answers so far."""

    part: Sequence[Question]
    name: str
    asking: Asking
    system: SystemConfig
    rewriter: RewritingStrategy
    rollout: RolloutConfig
    records: list[EvalRecord] = field(default_factory=list)
    missing: dict[AnswerKey, str] = field(default_factory=dict)
    turn: int = 0
    paths: list[_Path] = field(init=False)

    def __post_init__(self) -> None:
        self.paths = [
            _Path(question, sample, list(self.rewriter.first(cut_history(question, self.rollout.history_tokens))))
            for sample in range(self.asking.paths)
            for question in self.part
        ]

    @property
    def _open(self) -> list[_Path]:
        return [path for path in self.paths if path.open]

    def ask(self, llm: Llm) -> None:
        """Generate the next turn. Paths with the same sample number share a seed and are requested together."""
        self.turn += 1
        for sample in range(self.asking.paths):
            paths = [path for path in self._open if path.sample == sample]
            questions, chats = [path.question for path in paths], [path.chat for path in paths]
            reasons: dict[int, str] = {}
            started = time.perf_counter()
            draw = self._draw(sample)
            answered = ask_turn(llm, self.rewriter, questions, chats, self.turn, draw, reasons.__setitem__)
            spent = (time.perf_counter() - started) / max(1, len(paths))
            self.missing |= {(paths[i].question.id, self.turn, sample): reason for i, reason in reasons.items()}
            for path, answer in zip(paths, answered, strict=True):
                path.seconds += spent
                path.open = answer is not None
                if answer is not None and answer.rewrite.stop:
                    answer = replace(answer, rewrite=keep(answer.rewrite, path.last_plan))
                path.answer = answer

    def search(self, client: StepClient) -> None:
        """Search this turn's plans, record the results, and extend the chats for the next turn."""
        steps = [
            Step(question_id=path.question.id, plan=path.answer.rewrite.plan)
            for path in self._open
            if path.answer is not None and path.answer.rewrite.plan is not None and not path.keeps
        ]
        started = time.perf_counter()
        with_text = self.turn < self.asking.turns
        results = client.step(steps, with_text=with_text, metrics=self.asking.metrics) if steps else []
        seconds = time.perf_counter() - started
        paths, pending_results = self._open, iter(results)
        for path in paths:
            answer = path.answer
            assert answer is not None, "an open path has an answer"
            if path.keeps:
                result = path.last_result
            elif answer.rewrite.plan is not None:
                path.last_plan, path.last_result = answer.rewrite.plan, next(pending_results)
                path.searches += 1
                result = path.last_result
            else:
                result = None
            path.seconds += seconds / len(paths)
            path.tokens = None if path.tokens is None or answer.tokens is None else path.tokens + answer.tokens
            path.calls += answer.calls
            record = self._record(path, answer, result)
            self.records.append(record)
            if result is None and answer.rewrite.plan is not None:
                path.open = False
            elif answer.rewrite.stop:
                path.open = False
                self.records += [replace(record, turn=turn) for turn in range(self.turn + 1, self.asking.turns + 1)]
            elif self.turn < self.asking.turns:
                documents = (
                    [hit.document for hit in result.ranking[: self.rollout.documents]] if result is not None else []
                )
                question = cut_history(path.question, self.rollout.history_tokens)
                message = self.rewriter.follow_up(question, cut_to_words(documents, self.rollout), self.turn + 1)
                path.chat.append(Message(role="assistant", content=answer.text))
                path.chat.append(Message(role="user", content=message))

    def _draw(self, sample: int) -> SamplingParams:
        tokens = self.rollout.max_new_tokens
        if not self.system.sampled:
            return SamplingParams(max_tokens=tokens)
        # an endpoint may increment the seed for several passages, so the seeds of samples are `passages` apart
        seed = (self.asking.seed * 1_000_003 + sample * self.system.passages) % 2**31
        return SamplingParams(self.system.passages, self.rollout.temperature, self.rollout.top_p, tokens, seed)

    def _record(self, path: _Path, answer: FrozenAnswer, result: StepResult | None) -> EvalRecord:
        rewrite = answer.rewrite
        texts, plan, metrics = rewrite.rewrites, rewrite.plan, self.asking.metrics
        searches, format_ok = path.searches, rewrite.format_ok
        return replace(
            record_of_search(
                self.name, path.question, texts, plan, result, metrics, searches=searches, format_ok=format_ok
            ),
            turn=self.turn,
            think=rewrite.think,
            tokens=path.tokens,
            prompt_tokens=answer.prompt_tokens,
            calls=path.calls,
            seconds=path.seconds,
            sample=path.sample,
            cut=not answer.finished,
        )
