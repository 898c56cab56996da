"""The turns of a batch of questions: a model answers all of them, then their plans are searched together.

As in training, nothing is searched after a failed answer, except in the last turn, where the question is; and a
question whose answer stopped keeps the ranking that it has, if any, and is not asked again.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import NamedTuple

from ..configs.llm import LlmConfig
from ..data.sampling import in_batches
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..envs.schemas import HitBody, PlanResult
from ..rollouts.conversation import Branch, Conversation, PromptedConversation
from ..rollouts.llms import FirstStages
from ..rollouts.tree import Node
from ..rollouts.tree_sampler import ANSWERED_AT_ONCE, give_back_freed_memory
from .results import RewriteResult, SearchResult, TurnOutcome


class Continuation(NamedTuple):
    """An answer in the tree of its question, from which the next turn goes on."""

    branch: Branch
    node: Node


@dataclass(slots=True)
class _Dialogue:
    """The turns of one question so far."""

    question: Question
    turns: list[TurnOutcome] = field(default_factory=list)

    @property
    def searched(self) -> TurnOutcome | None:
        """The last turn that was searched."""
        return next((outcome for outcome in reversed(self.turns) if outcome.ranking is not None), None)


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
    """All turns of each question, at most `turns`, fewer for one that stopped.

    The model is asked under `lock`. `base` is the model of first stages that name none; `depth` is the number of
    documents of the plan of a failed answer, `k` that of the last turn, by default as the plans ask; its plans are
    searched only with `search_last`.
    """
    dialogues = [_Dialogue(question) for question in questions]
    for turn in range(1, turns + 1):
        pending = [dialogue for dialogue in dialogues if not dialogue.turns or not dialogue.turns[-1].rewrite.stopped]
        if not pending:
            break
        with lock:
            answers = _answers(model, pending, turn, base)
        results = [
            _result(dialogue.question, turn, answer, depth) for dialogue, answer in zip(pending, answers, strict=True)
        ]
        reused = [
            dialogue.searched if result.stopped else None for dialogue, result in zip(pending, results, strict=True)
        ]
        plans = [
            _plan(result, last, turn == turns, k, search_last) for result, last in zip(results, reused, strict=True)
        ]
        searched = [plan for plan in plans if plan is not None]
        searches = iter(search(searched) if search is not None and searched else ())
        for dialogue, result, last, plan in zip(pending, results, reused, plans, strict=True):
            ranking: tuple[HitBody, ...] | None = None
            if plan is not None:
                ranking = tuple(next(searches).ranking)
            elif last is not None and last.ranking is not None:
                ranking = last.ranking[:k]
            dialogue.turns.append(TurnOutcome(result, ranking))
    return [SearchResult(dialogue.question, tuple(dialogue.turns)) for dialogue in dialogues]


def _answers(
    model: Conversation, dialogues: Sequence[_Dialogue], turn: int, base: LlmConfig
) -> list[Continuation | str]:
    """The answers of a turn, or why there is none: the first stage failed, the turn before has no answer, the prompt is
    too long, or the model did not reply."""
    starts: list[Branch | str] = []
    if turn == 1:
        with FirstStages(model.rewriter, base, model.rollout.history_tokens) as stages:
            outcomes = stages.ask([dialogue.question for dialogue in dialogues])
        starts = [f"first stage: {staged}" if isinstance(staged, str) else model.begin(staged) for staged in outcomes]
    else:
        for last in (dialogue.turns[-1] for dialogue in dialogues):
            documents, after = [hit.document for hit in last.ranking or ()], last.rewrite.continuation
            starts.append(model.next_turn(after.branch, after.node, documents) if after else "no turn to go on from")
    limit = model.rollout.max_prompt_tokens
    for index, start in enumerate(starts):
        if isinstance(start, Branch) and (length := len(start.prompt_ids)) > limit:
            starts[index] = f"the prompt has {length} tokens of {limit}; shorten the question"
    nodes: dict[int, Node] = {}
    for part in in_batches([start for start in starts if isinstance(start, Branch)], ANSWERED_AT_ONCE):
        nodes |= {id(branch): node for branch, node in model.generate(part, turn, 1, greedy=True)}
        give_back_freed_memory()

    def answer(start: Branch) -> Continuation | str:
        if id(start) in nodes:
            return Continuation(start, nodes[id(start)])
        assert isinstance(model, PromptedConversation), "a policy answers"
        return model.missing[start.tree.question.id, turn, 0]

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
        rewrite.rewrites if rewrite.format_ok else (),
        rewrite.think,
        None if rewrite.format_ok else rewrite.failure or "no plan",
        node.text,
        answer,
        stopped=rewrite.stop,
        unsearched=rewrite.unsearched,
    )


def _plan(
    result: RewriteResult, reused: TurnOutcome | None, is_last: bool, k: int | None, search_last: bool
) -> SearchPlan | None:
    """What to search after an answer; None for nothing. A reused ranking is searched again only for more documents."""
    if result.unsearched:
        return None
    if not is_last and not result.stopped:
        return None if result.fallback else result.plan
    plan = result.plan if k is None else result.plan.model_copy(update={"k": k})
    return plan if search_last and (reused is None or reused.rewrite.plan.k < plan.k) else None
