"""Answer questions: search them as they stand, or ask a policy batch by batch. Nothing selects among answers.

Batches group questions of similar length, because an engine pads to the longest.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..configs.evaluation import HISTORY, RAW, REFERENCE
from ..configs.schema import RewardConfig, RolloutConfig
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.client.base import StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import HitBody, Step, StepResult
from ..rewriters.base import RewritingStrategy
from ..rollouts.engines.base import Completion, Engine, Sampling
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.random_streams import stream
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import TreeSampler
from .journal import AnswerKey
from .records import METRICS, EvalRecord, record_of_search


@dataclass(frozen=True, slots=True)
class Asking:
    """How a system is run on every question."""

    turns: int
    """0 where no model writes."""
    metrics: Sequence[str]
    """Metrics that the environment computes; the first one is the reward."""
    samples: int | None = None
    """None decodes greedily."""
    seed: int = 0
    """Seed of the samples. A question's samples do not depend on its batch."""

    @property
    def paths(self) -> int:
        """Answers per question."""
        return self.samples or 1


@dataclass(frozen=True, slots=True)
class Answered:
    """What a system answered to one batch of questions."""

    questions: int
    records: list[EvalRecord]
    missing: dict[AnswerKey, str] = field(default_factory=dict)
    """The reason for each answer that the model did not give."""


@dataclass(frozen=True, slots=True)
class AnsweredBatch:
    """What a policy answered to one batch of questions."""

    trees: list[Tree]
    seconds: list[float]
    """Seconds of generation and search per turn and path: the batch's time, divided equally."""


def batches(questions: Sequence[Question], size: int) -> list[Sequence[Question]]:
    """Batches of at most `size` questions of similar length, longest first to run out of memory early if at all."""
    ordered = sorted(questions, key=lambda question: len(question.in_context), reverse=True)
    return list(in_batches(ordered, size))


def answers(
    parts: Iterable[Sequence[Question]],
    asking: Asking,
    engine: Engine,
    client: StepClient,
    rewriter: RewritingStrategy,
    rollout: RolloutConfig,
) -> Iterator[AnsweredBatch]:
    """Yield the answers to one batch after another. Raises as `TreeSampler.grow`."""
    reward_metric, *extra_metrics = asking.metrics
    branching = [asking.paths, *[1] * (asking.turns - 1)]
    for part in parts:
        timed = _Timed(engine, client, asking.turns)
        tree_sampler = TreeSampler(timed, rewriter, timed, rollout, RewardConfig(metric=reward_metric), extra_metrics)
        streams = () if asking.samples is None else [stream("eval", asking.seed, question.id) for question in part]
        trees = tree_sampler.grow(part, branching, asking.samples is None, streams)
        yield AnsweredBatch(trees, [seconds / (len(part) * asking.paths) for seconds in timed.seconds])
        give_back_freed_memory()


TEXTS: Mapping[str, Callable[[Question], str]] = {
    RAW: lambda question: question.text,
    HISTORY: lambda question: question.in_context,
    REFERENCE: lambda question: question.reference_rewrite or question.text,
}
"""The query of each of UNWRITTEN; a question without a reference rewrite needs none."""


def unwritten_systems(questions: Iterable[Question]) -> list[str]:
    """Those of UNWRITTEN whose query differs from the others' for at least one of these questions."""
    conversational = [question for question in questions if question.history]
    rewritten = any(question.reference_rewrite for question in conversational)
    return [RAW, *([HISTORY] if conversational else []), *([REFERENCE] if rewritten else [])]


def run_raw(
    client: StepClient,
    questions: Sequence[Question],
    metrics: Sequence[str] = METRICS,
    depth: int = 10,
    system: str = RAW,
) -> list[EvalRecord]:
    """Search the raw questions, or the TEXTS of another system, `depth` documents each."""
    plans = [SearchPlan.of(TEXTS[system](question), k=depth) for question in questions]
    steps = [Step(question_id=question.id, plan=plan) for question, plan in zip(questions, plans, strict=True)]
    started = time.perf_counter()
    results = client.step(steps, metrics=metrics)
    seconds = (time.perf_counter() - started) / max(1, len(questions))
    return [
        record_of_search(system, question, plan.texts, plan, result, metrics, seconds=seconds)
        for question, plan, result in zip(questions, plans, results, strict=True)
    ]


class _Timed:
    """The engine and the client of one batch: measures the time of every turn.

    Document texts are only requested where a later turn shows them.
    """

    def __init__(self, engine: Engine, client: StepClient, turns: int) -> None:
        self.tokenizer, self.stop_ids = engine.tokenizer, engine.stop_ids
        self.seconds: list[float] = []
        """Seconds of generation and search by turn."""
        self._engine, self._client, self._turns = engine, client, turns

    def generate(self, prompts: Sequence[Sequence[int]], n: int, sampling: Sampling) -> list[list[Completion]]:
        """Like the engine's `generate`. Each call starts a new turn."""
        started = time.perf_counter()
        samples = self._engine.generate(prompts, n, sampling)
        self.seconds.append(time.perf_counter() - started)
        return samples

    def step(
        self, steps: Sequence[Step], *, with_text: bool = False, metrics: Sequence[str] = ()
    ) -> list[StepResult | None]:
        """Like the client's `step`; the documents of the last turn have empty texts."""
        last = len(self.seconds) == self._turns
        started = time.perf_counter()
        results = self._client.step(steps, with_text=with_text and not last, metrics=metrics)
        self.seconds[-1] += time.perf_counter() - started
        return [_without_texts(result) for result in results] if last else list(results)


def _without_texts(result: StepResult | None) -> StepResult | None:
    if result is None:
        return None
    hits = [HitBody(id=hit.id, score=hit.score, title="", text="") for hit in result.ranking]
    return result.model_copy(update={"ranking": hits})
