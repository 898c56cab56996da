"""One batch of questions, each in one turn: first stages, prompts, answers, in the steps of rollouts/speaking.py."""

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

from ..configs.schema import PolicyConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..rewriters.stages import ask_first_stage
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.speaking import Place, Speaker
from .asked import Shown
from .results import FoundTurn, RewriteResult, Said, SearchResult
from .voices import Voice


@dataclass(frozen=True, slots=True)
class Order:
    """One question in one turn."""

    voice: Voice
    question: Question
    """As it was asked."""
    id: str
    """What tells it from other questions of the batch, and of batches before and after it."""
    documents: Sequence[Document] | None = None
    """What the turn is shown; None for a first turn."""
    after: RewriteResult | None = None
    """The result of the turn before; None asks the first turn anew."""


def answer(orders: Sequence[Order], base: PolicyConfig, depth: int) -> list[RewriteResult]:
    """The greedy answer to each order, in their order.

    `base` is the model that a first stage asks, `depth` how many documents a failed answer's question asks for. Raises
    ConfigError where no question would fit into the prompt.
    """
    anew = [place for place, order in enumerate(orders) if order.documents is not None and order.after is None]
    if anew:
        firsts = answer([_first(orders[place]) for place in anew], base, depth)
        gone_on = list(orders)
        for place, first in zip(anew, firsts, strict=True):
            gone_on[place] = _after(orders[place], first)
        return answer(gone_on, base, depth)
    results: dict[int, RewriteResult] = {}
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for place, order in enumerate(orders):
        groups[id(order.voice.speaker), _turn(order)].append(place)
    for (_, turn), places in groups.items():
        speaker = orders[places[0]].voice.speaker
        results |= zip(
            places, _answer_turn(speaker, [orders[place] for place in places], turn, base, depth), strict=True
        )
    give_back_freed_memory()
    return [results[place] for place in range(len(orders))]


Conversation = Generator[Any, Any, list[SearchResult]]
Asker = Callable[[Sequence[Sequence[Shown]] | None, Sequence[RewriteResult] | None], list[Order]]
"""The orders of a turn: from what each question is shown and its result of the turn before, None for the first turn."""


def conversation(
    orders_of: Asker, asked: Sequence[Question], turns: int, k: int | None, *, searched: bool
) -> Conversation:
    """Yields orders and is sent results, then yields plans and is sent rankings; so it goes on for every turn.

    After a failed answer nothing is searched, as in training, but in the last turn, where it is the question.
    `searched`: whether the plans of the last turn are yielded, too; `k` is how many documents they ask for.
    """
    orders = orders_of(None, None)
    found: list[list[FoundTurn]] = [[] for _ in orders]
    for turn in range(1, turns + 1):
        results: list[RewriteResult] = yield orders
        last = turn == turns
        used = [searched if last else not result.fallback for result in results]
        plans = [result.plan for result, one in zip(results, used, strict=True) if one]
        if last and k is not None:
            plans = [plan.model_copy(update={"k": k}) for plan in plans]
        rankings = iter((yield plans))
        for result, mine, one in zip(results, found, used, strict=True):
            mine.append(FoundTurn(result, tuple(next(rankings)) if one else None))
        if not last:
            orders = orders_of([mine[-1].ranking or () for mine in found], results)
    return [SearchResult(one, tuple(mine)) for one, mine in zip(asked, found, strict=True)]


def _answer_turn(
    speaker: Speaker, orders: Sequence[Order], turn: int, base: PolicyConfig, depth: int
) -> list[RewriteResult]:
    failed: dict[str, str] = {}
    places: dict[str, Place] = {}
    if turn == 1:
        asked = {order.id: Question(order.id, order.question.text, order.question.options) for order in orders}
        failed = _first_stage(speaker, list(asked.values()), base)
        places = {name: speaker.begin(question) for name, question in asked.items() if name not in failed}
    else:
        for order in orders:
            if order.after is None or order.after.said is None:
                failed[order.id] = "no turn to go on from"
                continue
            said = order.after.said
            places[order.id] = speaker.follow(said.place, said.node, order.documents or [], turn)
    most = speaker.rollout.max_prompt_tokens
    for name, place in list(places.items()):
        if len(place.prompt_ids) > most:
            if turn == 1:
                _refuse_any_question(speaker, place)
            failed[name] = f"the prompt has {len(place.prompt_ids)} tokens of {most}; shorten the question"
            del places[name]
    said_now = speaker.say(list(places.values()), turn, 1, speaker.sampling(turn, greedy=True)) if places else []
    nodes = dict(zip(places, said_now, strict=True))
    results: list[RewriteResult] = []
    for order in orders:
        if order.id in failed:
            fallback = SearchPlan.of(order.question.text, depth)
            results.append(RewriteResult(order.question, turn, fallback, failure=failed[order.id]))
            continue
        place, node = nodes[order.id]
        rewrite = node.rewrite
        failure = None if rewrite.plan is not None else rewrite.failure or "no plan"
        texts = rewrite.rewrites if rewrite.plan is not None else ()
        plan = rewrite.plan or SearchPlan.of(order.question.text, depth)
        said = Said(place, node)
        results.append(RewriteResult(order.question, turn, plan, texts, rewrite.think, failure, node.text, said))
    return results


def _first_stage(speaker: Speaker, questions: Sequence[Question], base: PolicyConfig) -> dict[str, str]:
    """Why questions fall out before they are asked, by their ids."""
    lost: dict[str, str] = {}
    try:
        ask_first_stage(
            speaker.rewriter, questions, base, lost=lambda question, reason: lost.update({question.id: reason})
        )
    except ConfigError:
        if len(lost) < len(questions):
            raise
    return {name: f"first stage: {reason}" for name, reason in lost.items()}


def _refuse_any_question(speaker: Speaker, place: Place) -> None:
    """ConfigError where the prompt is too long without the question too: then no question can be asked."""
    question = place.tree.question
    bare = speaker.chat.first(speaker.rewriter.first(Question(question.id, "")), speaker.rewriter.opening)
    speaker.check_length([bare])


def _turn(order: Order) -> int:
    if order.documents is None:
        return 1
    assert order.after is not None, "what has none was asked anew"
    return order.after.turn + 1


def _first(order: Order) -> Order:
    return Order(order.voice, order.question, order.id)


def _after(order: Order, first: RewriteResult) -> Order:
    return Order(order.voice, order.question, order.id, order.documents, first)
