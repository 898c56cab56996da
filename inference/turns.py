"""Runs one turn for a batch of questions: first stages, prompts, answers, as in rollouts/conversation.py."""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..configs.schema import PolicyConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..rollouts.conversation import Branch, Conversation
from ..rollouts.first_stage import ask_first_stage
from ..rollouts.memory import give_back_freed_memory
from .requests import Shown
from .results import Continuation, RewriteResult, SearchResult, TurnOutcome
from .retriever_prompts import RetrieverRewriter


@dataclass(frozen=True, slots=True)
class Order:
    """One question in one turn."""

    prompts: RetrieverRewriter
    question: Question
    """The question as the caller passed it."""
    id: str
    """Unique among the questions of this batch and of neighbouring ones."""
    documents: Sequence[Document] | None = None
    """Documents for the turn; None for a first turn."""
    after: RewriteResult | None = None
    """The result of the previous turn; None generates the first turn again."""


def answer(orders: Sequence[Order], base: PolicyConfig, depth: int) -> list[RewriteResult]:
    """The greedy answer to each order, in input order.

    `base` is the model of first stages; `depth` is the number of documents in the fallback plan of a failed answer.
    Raises ConfigError if the prompt is too long even without a question.
    """
    restarts = [index for index, order in enumerate(orders) if order.documents is not None and order.after is None]
    if restarts:
        firsts = answer([_first_turn(orders[index]) for index in restarts], base, depth)
        continued = list(orders)
        for index, first in zip(restarts, firsts, strict=True):
            continued[index] = _continued(orders[index], first)
        return answer(continued, base, depth)
    results: dict[int, RewriteResult] = {}
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, order in enumerate(orders):
        groups[id(order.prompts.dialogue), _turn_number(order)].append(index)
    for (_, turn), indices in groups.items():
        dialogue = orders[indices[0]].prompts.dialogue
        results |= zip(
            indices, _answer_turn(dialogue, [orders[index] for index in indices], turn, base, depth), strict=True
        )
    give_back_freed_memory()
    return [results[index] for index in range(len(orders))]


TurnSteps = Generator[Any, Any, list[SearchResult]]
Asker = Callable[[Sequence[Sequence[Shown]] | None, Sequence[RewriteResult] | None], list[Order]]
"""Builds the orders of a turn from each question's documents and previous result; both None for the first turn."""


def conversation(
    orders_of: Asker, questions: Sequence[Question], turns: int, k: int | None, *, searched: bool
) -> TurnSteps:
    """For every turn, yields orders and is sent their results, then yields plans and is sent their rankings.

    As in training, nothing is searched after a failed answer, except in the last turn, where the question is.
    `searched` is whether the plans of the last turn are yielded too; `k` overrides their number of documents.
    """
    orders = orders_of(None, None)
    histories: list[list[TurnOutcome]] = [[] for _ in orders]
    for turn in range(1, turns + 1):
        results: list[RewriteResult] = yield orders
        last = turn == turns
        search_flags = [searched if last else not result.fallback for result in results]
        plans = [result.plan for result, is_searched in zip(results, search_flags, strict=True) if is_searched]
        if last and k is not None:
            plans = [plan.model_copy(update={"k": k}) for plan in plans]
        rankings = iter((yield plans))
        for result, history, is_searched in zip(results, histories, search_flags, strict=True):
            history.append(TurnOutcome(result, tuple(next(rankings)) if is_searched else None))
        if not last:
            orders = orders_of([history[-1].ranking or () for history in histories], results)
    return [SearchResult(question, tuple(history)) for question, history in zip(questions, histories, strict=True)]


def _answer_turn(
    dialogue: Conversation, orders: Sequence[Order], turn: int, base: PolicyConfig, depth: int
) -> list[RewriteResult]:
    failed: dict[str, str] = {}
    branches: dict[str, Branch] = {}
    if turn == 1:
        questions = {order.id: Question(order.id, order.question.text, order.question.options) for order in orders}
        failed = _first_stage(dialogue, list(questions.values()), base)
        branches = {name: dialogue.begin(question) for name, question in questions.items() if name not in failed}
    else:
        for order in orders:
            if order.after is None or order.after.continuation is None:
                failed[order.id] = "no turn to go on from"
                continue
            continuation = order.after.continuation
            branches[order.id] = dialogue.next_turn(continuation.branch, continuation.node, order.documents or [], turn)
    max_tokens = dialogue.rollout.max_prompt_tokens
    for name, branch in list(branches.items()):
        if len(branch.prompt_ids) > max_tokens:
            if turn == 1:
                _refuse_long_prompt(dialogue, branch)
            failed[name] = f"the prompt has {len(branch.prompt_ids)} tokens of {max_tokens}; shorten the question"
            del branches[name]
    answers = (
        dialogue.generate(list(branches.values()), turn, 1, dialogue.sampling(turn, greedy=True)) if branches else []
    )
    nodes = dict(zip(branches, answers, strict=True))
    results: list[RewriteResult] = []
    for order in orders:
        if order.id in failed:
            fallback = SearchPlan.of(order.question.text, depth)
            results.append(RewriteResult(order.question, turn, fallback, failure=failed[order.id]))
            continue
        branch, node = nodes[order.id]
        rewrite = node.rewrite
        failure = None if rewrite.plan is not None else rewrite.failure or "no plan"
        texts = rewrite.rewrites if rewrite.plan is not None else ()
        plan = rewrite.plan or SearchPlan.of(order.question.text, depth)
        continuation = Continuation(branch, node)
        results.append(
            RewriteResult(order.question, turn, plan, texts, rewrite.think, failure, node.text, continuation)
        )
    return results


def _first_stage(dialogue: Conversation, questions: Sequence[Question], base: PolicyConfig) -> dict[str, str]:
    """Run the first stage and return the reasons of failed questions by id."""
    lost: dict[str, str] = {}
    try:
        ask_first_stage(
            dialogue.rewriter, questions, base, lost=lambda question, reason: lost.update({question.id: reason})
        )
    except ConfigError:
        if len(lost) < len(questions):
            raise
    return {name: f"first stage: {reason}" for name, reason in lost.items()}


def _refuse_long_prompt(dialogue: Conversation, branch: Branch) -> None:
    """Raise ConfigError if the prompt is too long even with an empty question."""
    question = branch.tree.question
    bare = dialogue.chat.first(dialogue.rewriter.first(Question(question.id, "")), dialogue.rewriter.opening)
    dialogue.check_length([bare])


def _turn_number(order: Order) -> int:
    if order.documents is None:
        return 1
    assert order.after is not None, "what has none was asked anew"
    return order.after.turn + 1


def _first_turn(order: Order) -> Order:
    return Order(order.prompts, order.question, order.id)


def _continued(order: Order, first: RewriteResult) -> Order:
    return Order(order.prompts, order.question, order.id, order.documents, first)
