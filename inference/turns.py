"""The turns of a batch of questions, and their results: a model answers all questions, then their plans are searched
together.

As in training, nothing is searched after a failed answer, except in the last turn, where the question is; and a
question whose answer stopped keeps the ranking that it has, if any, and is not asked again. A failure does not raise:
text and plan of the result are then the question itself, and `failure` is the reason. Where the retriever refuses the
native query of the last turn, there is one turn more, which is shown the error; where it refuses that too, the question
is searched as text.
"""

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from ..configs.llm import LlmConfig
from ..data.history import records_of
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan
from ..envs.schemas import HitBody, PlanResult
from ..errors import ConfigError
from ..rollouts.llms import FirstStages
from ..rollouts.prompted import PromptedConversation
from ..rollouts.tree import Node
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE, REFUSED, Branch, Conversation, give_back_freed_memory


class Continuation(NamedTuple):
    """An answer in the tree of its question, from which the next turn goes on."""

    branch: Branch
    node: Node


@dataclass(frozen=True, slots=True)
class RewriteResult:
    """The answer of the policy to one question in one turn."""

    question: Question
    turn: int
    """1 for a first turn."""
    plan: SearchPlan
    """The search plan; the raw question if the answer failed, or if nothing is to be searched (`unsearched`)."""
    rewrites: tuple[str, ...] = ()
    """All query texts of the answer, also one that was refused; empty if it could not be read."""
    think: str = field(default="", repr=False)
    failure: str | None = None
    """Why the answer failed, in a few words, so that the question replaces it; None if it did not."""
    answer: str = field(default="", repr=False)
    """The raw text of the model, without its end-of-turn token."""
    continuation: Continuation | None = field(default=None, repr=False, compare=False)
    stopped: bool = False
    """Whether the policy stopped: the plan is that of the last turn that was searched, or else the raw question."""
    unsearched: bool = False
    """Whether the policy stopped before any search (`rewriter.stop: answer`): the question is to be answered without
    documents."""

    @property
    def text(self) -> str:
        """The first probe of the plan as one text (`joined`).

        For a plan with negative weights, which no text can express, the first rewrite.
        """
        if _subtracts(self.plan):
            return self.rewrites[0] if self.rewrites else self.question.text
        return joined(self.plan.probes[0])

    def record(self) -> dict[str, object]:
        """The result as plain data, for JSON."""
        return {
            "question": self.question.text,
            **({"history": records_of(self.question.history)} if self.question.history else {}),
            "text": self.text,
            "rewrites": list(self.rewrites),
            "think": self.think,
            "plan": self.plan.model_dump(mode="json"),
            "turn": self.turn,
            "failure": self.failure,
            "stopped": self.stopped,
            "unsearched": self.unsearched,
        }


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """One turn and its ranking."""

    rewrite: RewriteResult
    ranking: tuple[HitBody, ...] | None
    """Best first; of a turn that stopped, those that it keeps. None if nothing was searched, which is the case after
    a failed answer before the last turn and for one that is `unsearched`."""
    hits: int | None = None
    """Documents that match its native query (`PlanResult.hits`); None where words were searched."""
    error: str | None = None
    """Why the retriever refused its native query, in its own words: `rewrite.rewrites` has the query."""

    def record(self) -> dict[str, object]:
        """The rewrite and what the retriever said, as plain data."""
        return {**self.rewrite.record(), "hits": self.hits, "error": self.error}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """All turns of one question with one retriever."""

    question: Question
    turns: tuple[TurnOutcome, ...]

    @property
    def rewrite(self) -> RewriteResult:
        """The rewrite of the last turn."""
        return self.turns[-1].rewrite

    @property
    def ranking(self) -> tuple[HitBody, ...] | None:
        """The ranking of the last turn; if that turn failed, the ranking for the question; None if the policy stopped
        before any search (`rewrite.unsearched`)."""
        return self.turns[-1].ranking

    @property
    def failure(self) -> str | None:
        """Why the last turn failed, so that the ranking is that of the question; None if it did not."""
        return self.rewrite.failure


def run_turns(
    model: Conversation,
    questions: Sequence[Question],
    turns: int,
    search: Callable[[Sequence[SearchPlan]], Sequence[PlanResult]] | None,
    *,
    lock: AbstractContextManager[object],
    base: LlmConfig,
    depth: int,
    k: int | None = None,
    search_last: bool = True,
) -> list[SearchResult]:
    """All turns of each question: at most `turns` and one after a refused query, fewer for one that stopped.

    The model is asked under `lock`. `base` is the model of first stages that name none; `depth` is the number of
    documents of the plan of a failed answer, `k` that of the last turn, by default as the plans ask; its plans are
    searched only with `search_last`.
    """
    dialogues: list[tuple[Question, list[TurnOutcome]]] = [(question, []) for question in questions]
    for turn in range(1, turns + 2):
        pending = [
            (question, path)
            for question, path in dialogues
            if not (path and path[-1].rewrite.stopped) and (turn <= turns or path[-1].error is not None)
        ]
        if not pending:
            break
        with lock:
            answers = _answers(model, pending, turn, base)
        results = [
            _result(question, turn, answer, depth) for (question, _), answer in zip(pending, answers, strict=True)
        ]
        plans: list[SearchPlan | None] = []
        for result, (_, path) in zip(results, pending, strict=True):
            plan, reused = result.plan, _last_searched(path) if result.stopped else None
            if turn >= turns or result.stopped:
                plan = plan if k is None else plan.model_copy(update={"k": k})
                # a ranking that a stop keeps is searched again only for more documents
                is_searched = search_last and (reused is None or reused.rewrite.plan.k < plan.k)
            else:
                is_searched = result.failure is None
            plans.append(plan if is_searched and not result.unsearched else None)
        searched = [plan for plan in plans if plan is not None]
        found = iter(search(searched) if search is not None and searched else ())
        for result, (_, path), searching in zip(results, pending, plans, strict=True):
            outcome = TurnOutcome(result, None)
            if searching is not None:
                outcome = _outcome(result, next(found), k or depth)
            elif result.stopped and (reused := _last_searched(path)) is not None:
                outcome = TurnOutcome(result, (reused.ranking or ())[:k], reused.hits)
            path.append(outcome)
    refused = [path for _, path in dialogues if path[-1].error is not None]
    if search is not None and refused:
        for path, answer in zip(refused, search([path[-1].rewrite.plan for path in refused]), strict=True):
            path[-1] = replace(path[-1], ranking=tuple(answer.ranking))
    return [SearchResult(question, tuple(path)) for question, path in dialogues]


def _outcome(result: RewriteResult, found: PlanResult, depth: int) -> TurnOutcome:
    """A turn that was searched; its node tells the next turn what the retriever said, as in training."""
    if result.continuation is not None:
        node = result.continuation.node
        node.hits, node.error = found.hits, found.error
        if found.error is not None:
            node.rewrite = replace(node.rewrite, plan=None, failure=REFUSED)
    if found.error is None:
        return TurnOutcome(result, tuple(found.ranking), found.hits)
    raw = SearchPlan.of(result.question.text, depth)
    return TurnOutcome(replace(result, plan=raw, failure=REFUSED), None, error=found.error)


def _last_searched(path: Sequence[TurnOutcome]) -> TurnOutcome | None:
    return next((outcome for outcome in reversed(path) if outcome.ranking is not None), None)


def _answers(
    model: Conversation, dialogues: Sequence[tuple[Question, list[TurnOutcome]]], turn: int, base: LlmConfig
) -> list[Continuation | str]:
    """The answers of a turn, or why there is none: the first stage failed, the turn before has no answer, the prompt is
    too long, or the model did not reply."""
    starts: list[Branch | str] = []
    if turn == 1:
        with FirstStages(model.rewriter, base, model.rollout.history_tokens) as stages:
            outcomes = stages.ask([question for question, _ in dialogues])
        starts = [f"first stage: {staged}" if isinstance(staged, str) else model.begin(staged) for staged in outcomes]
    else:
        for last in (path[-1] for _, path in dialogues):
            documents, after = [hit.document for hit in last.ranking or ()], last.rewrite.continuation
            starts.append(model.next_turn(after.branch, after.node, documents) if after else "no turn to go on from")
    limit = model.rollout.max_prompt_tokens
    for index, start in enumerate(starts):
        if isinstance(start, Branch) and (length := len(start.prompt_ids)) > limit:
            starts[index] = f"the prompt has {length} tokens of {limit}; shorten the question"
    nodes: dict[Branch, Node] = {}
    for part in in_batches([start for start in starts if isinstance(start, Branch)], ANSWERED_AT_ONCE):
        nodes |= dict(model.generate(part, turn, 1, greedy=True))
        give_back_freed_memory()

    def answer(start: Branch) -> Continuation | str:
        if start in nodes:
            return Continuation(start, nodes[start])
        assert isinstance(model, PromptedConversation), "a policy answers"
        return model.missing.pop((start, turn, 0))

    return [start if isinstance(start, str) else answer(start) for start in starts]


def _result(question: Question, turn: int, answer: Continuation | str, depth: int) -> RewriteResult:
    """The result of an answer, which is the question itself if the answer cannot be used."""
    raw = SearchPlan.of(question.text, depth)
    if isinstance(answer, str):
        return RewriteResult(question, turn, raw, failure=answer)
    node, rewrite = answer.node, answer.node.rewrite
    return RewriteResult(
        question,
        turn,
        rewrite.plan or raw,
        rewrite.rewrites,
        rewrite.think,
        rewrite.failure or None,
        node.text,
        answer,
        stopped=rewrite.stop,
        unsearched=rewrite.unsearched,
    )


def plain_queries(plan: SearchPlan) -> list[str]:
    """A plan as texts for a retriever without weighted queries: one query per probe (`joined`); weights are dropped.

    Raises ConfigError for a plan with negative weights, which no text can express.
    """
    if _subtracts(plan):
        raise ConfigError(
            "the plan has a term of negative weight, which a retriever that takes texts cannot subtract. Search "
            "this rewriter's plans with querylect's own retrievers (`querylect serve`)."
        )
    return list(dict.fromkeys(map(joined, plan.probes)))


def joined(probe: Probe) -> str:
    """The terms of a probe joined by spaces, without terms whose words are all contained in another term.

    So a rewrite that repeats the question, or is repeated by it, does not duplicate words.
    """
    texts = [term.text for term in probe.terms if term.weight > 0 and term.text.strip()]
    words = [frozenset(re.findall(r"\w+", text.casefold())) for text in texts]
    return " ".join(
        text
        for i, text in enumerate(texts)
        if not any(words[i] < other or (words[i] == other and k < i) for k, other in enumerate(words))
    )


def _subtracts(plan: SearchPlan) -> bool:
    return any(term.weight < 0 for probe in plan.probes for term in probe.terms)
