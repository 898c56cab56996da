"""Answer questions: search them as they stand, or ask a model batch by batch. Nothing selects among answers.

Batches group questions of similar length, because an engine pads to the longest.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..configs.evaluation import HISTORY, RAW, REFERENCE, SystemConfig
from ..configs.schema import RewardConfig, RolloutConfig
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.client.base import StepClient
from ..envs.plan import SearchPlan
from ..envs.schemas import Step
from ..llms.access import Llm
from ..rewriters.base import RewritingStrategy
from ..rollouts.engines.base import Engine, stream
from ..rollouts.prompted import PromptedConversation
from ..rollouts.tree import Tree
from ..rollouts.tree_sampler import Conversation, PolicyConversation, TreeSampler, give_back_freed_memory
from .records import METRICS, EvalRecord, record_of_failure, record_of_search, records_of_trees


@dataclass(frozen=True, slots=True)
class DecodeOptions:
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

    @property
    def turn_numbers(self) -> range:
        """The turns that every answer has a record of."""
        return range(1, self.turns + 1) if self.turns else range(1)


def batches(questions: Sequence[Question], size: int) -> list[Sequence[Question]]:
    """Batches of at most `size` questions of similar length, longest first to run out of memory early if at all."""
    ordered = sorted(questions, key=lambda question: len(question.in_context), reverse=True)
    return list(in_batches(ordered, size))


def model_answers(
    parts: Iterable[Sequence[Question]],
    name: str,
    options: DecodeOptions,
    system: SystemConfig,
    model: Engine | Llm,
    client: StepClient,
    rewriter: RewritingStrategy,
    rollout: RolloutConfig,
) -> Iterator[list[EvalRecord]]:
    """Yield the answers of a system to one batch after another: of a policy, or of a prompted model.

    An answer that the model did not give has a record of the reason; the earlier turns stay. Raises as
    `TreeSampler.grow`, `Llm.ask` and the client.
    """
    conversation: PolicyConversation | PromptedConversation
    if isinstance(model, Llm):
        conversation = PromptedConversation(model, rewriter, rollout, seed=options.seed)
    else:
        conversation = PolicyConversation(model, rewriter, rollout)
    for part in parts:
        trees, seconds = answer(conversation, part, options, client)
        records = records_of_trees(name, trees, options.metrics, seconds)
        if isinstance(conversation, PromptedConversation):
            for (branch, turn, sample), reason in conversation.missing.items():
                question = branch.tree.question
                records.append(record_of_failure(name, question, turn, sample, reason, options.metrics))
            conversation.missing.clear()
        yield records


def answer(
    conversation: Conversation, questions: Sequence[Question], options: DecodeOptions, client: StepClient
) -> tuple[list[Tree], list[float]]:
    """A tree for each question, and the seconds of generation and search of one path by turn: the batch's, divided
    equally. Raises as `TreeSampler.grow`."""
    metric, *extra_metrics = options.metrics
    tree_sampler = TreeSampler(conversation, client, RewardConfig(metric=metric), extra_metrics)
    branching = [options.paths, *[1] * (options.turns - 1)]
    streams = () if options.samples is None else [stream("eval", options.seed, question.id) for question in questions]
    trees = tree_sampler.grow(questions, branching, options.samples is None, streams)
    give_back_freed_memory()
    return trees, [seconds / (len(questions) * options.paths) for seconds in tree_sampler.turn_seconds]


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
