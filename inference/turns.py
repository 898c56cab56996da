"""Runs one turn for a batch of questions: first stages, prompts, answers, as in rollouts/tree_sampler.py."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ..configs.llm import LlmConfig
from ..configs.schema import PolicyConfig
from ..data.types import Document, Question
from ..envs.plan import SearchPlan
from ..envs.schemas import HitBody
from ..rewriters.base import Rewrite
from ..rollouts.first_stage import StageModels, learn_first_stage
from ..rollouts.memory import give_back_freed_memory
from ..rollouts.tree_sampler import Branch, Conversation
from .endpoint import ChatSoFar, EndpointConversation
from .results import Continuation, RewriteResult, SearchResult, TurnOutcome
from .retriever_prompts import RetrieverRewriter


@dataclass(frozen=True, slots=True)
class RewriteRequest:
    """One question in one turn."""

    prompts: RetrieverRewriter
    question: Question
    """The question as the caller passed it."""
    id: str
    """Unique among the questions of this batch and of neighbouring ones."""
    earlier: TurnOutcome | None = None
    """The turn before, whose documents this one is shown; None for a first turn."""

    @property
    def turn(self) -> int:
        """Its number."""
        return 1 if self.earlier is None else self.earlier.rewrite.turn + 1

    @property
    def continuation(self) -> Continuation | ChatSoFar | None:
        """Where a later turn goes on; None if the turn before had no answer."""
        return self.earlier.rewrite.continuation if self.earlier is not None else None

    @property
    def documents(self) -> list[Document]:
        """The documents of the turn before."""
        hits = self.earlier.ranking if self.earlier is not None else None
        return [hit.document for hit in hits or ()]


def answer(requests: Sequence[RewriteRequest], base: PolicyConfig | LlmConfig, depth: int) -> list[RewriteResult]:
    """The greedy answer to each request, in input order.

    `base` is the model of first stages that name none; `depth` is the number of documents in the fallback plan of a
    failed answer.
    """
    results: dict[int, RewriteResult] = {}
    groups: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, request in enumerate(requests):
        groups[id(request.prompts.conversation), request.turn].append(index)
    for (_, turn), indices in groups.items():
        group = [requests[index] for index in indices]
        answered = _answer_turn(group[0].prompts.conversation, group, turn, base, depth)
        results |= zip(indices, answered, strict=True)
    give_back_freed_memory()
    return [results[index] for index in range(len(requests))]


@dataclass(slots=True)
class TurnLoop:
    """`turns` turns of some questions. For each of them: answer `requests`, search `plans`, `add` the rankings.

    As in training, nothing is searched after a failed answer, except in the last turn, where the question is; and a
    question whose answer stopped keeps the ranking that it has, if any, and is not asked again.
    """

    request: Callable[[Question, TurnOutcome | None], RewriteRequest]
    """The request for a question after its last turn, None for the first."""
    questions: Sequence[Question]
    turns: int
    k: int | None = None
    """Number of documents in the last turn; None leaves that of the plans."""
    search_last: bool = True
    """Whether the plans of the last turn are searched, too."""
    _turn: int = 0
    _outcomes: list[list[TurnOutcome]] = field(init=False)
    """The turns of each question so far."""
    _answers: list[tuple[list[TurnOutcome], RewriteResult, SearchPlan | None]] = field(default_factory=list)
    """The earlier turns, the answer and the search of each question that is asked in the running turn."""

    def __post_init__(self) -> None:
        self._outcomes = [[] for _ in self.questions]

    @property
    def over(self) -> bool:
        """Whether there is no further turn."""
        return self._turn == self.turns or not self._open

    @property
    def _open(self) -> list[int]:
        """The questions that did not stop."""
        return [index for index, turns in enumerate(self._outcomes) if not turns or not turns[-1].rewrite.stopped]

    def requests(self) -> list[RewriteRequest]:
        """The requests of the next turn."""
        return [
            self.request(self.questions[index], self._outcomes[index][-1] if self._outcomes[index] else None)
            for index in self._open
        ]

    def plans(self, results: Sequence[RewriteResult]) -> list[SearchPlan]:
        """What to search after these answers."""
        self._turn += 1
        earlier = [self._outcomes[index] for index in self._open]
        self._answers = [
            (outcomes, result, self._search_of(outcomes, result))
            for outcomes, result in zip(earlier, results, strict=True)
        ]
        return [plan for _, _, plan in self._answers if plan is not None]

    def _search_of(self, earlier: Sequence[TurnOutcome], result: RewriteResult) -> SearchPlan | None:
        """What to search after an answer; None if nothing. A ranking that is kept is searched again only for more
        documents than it has."""
        if result.unsearched:
            return None
        if not (self._turn == self.turns or result.stopped):
            return None if result.fallback else result.plan
        plan = result.plan if self.k is None else result.plan.model_copy(update={"k": self.k})
        last = _last_search(earlier) if result.stopped else None
        return plan if self.search_last and (last is None or last.rewrite.plan.k < plan.k) else None

    def add(self, rankings: Sequence[Sequence[HitBody]]) -> None:
        """Take the rankings of the plans; the turn is complete."""
        remaining = iter(rankings)
        for outcomes, result, plan in self._answers:
            last = _last_search(outcomes) if result.stopped else None
            if plan is not None:
                ranking: tuple[HitBody, ...] | None = tuple(next(remaining))
            else:
                ranking = last.ranking[: self.k] if last is not None and last.ranking is not None else None
            outcomes.append(TurnOutcome(result, ranking))

    def results(self) -> list[SearchResult]:
        """All turns of each question; fewer for one that stopped."""
        return [
            SearchResult(question, tuple(turns)) for question, turns in zip(self.questions, self._outcomes, strict=True)
        ]


def _last_search(outcomes: Sequence[TurnOutcome]) -> TurnOutcome | None:
    """The last of some turns that was searched."""
    return next((outcome for outcome in reversed(outcomes) if outcome.ranking is not None), None)


def _result(
    request: RewriteRequest,
    turn: int,
    depth: int,
    rewrite: Rewrite,
    text: str,
    continuation: Continuation | ChatSoFar | None,
) -> RewriteResult:
    """The result of an answer, which is the question itself where the answer cannot be used."""
    failure = None if rewrite.format_ok else rewrite.failure or "no plan"
    texts = rewrite.rewrites if rewrite.format_ok else ()
    plan = rewrite.plan or SearchPlan.of(request.question.text, depth)
    return RewriteResult(
        request.question,
        turn,
        plan,
        texts,
        rewrite.think,
        failure,
        text,
        continuation,
        stopped=rewrite.stop,
        unsearched=rewrite.unsearched,
    )


_Answer = tuple[Rewrite, str, Continuation | ChatSoFar | None]
"""A parsed answer, its text, and the state from which the next turn continues."""


def _answer_turn(
    conversation: Conversation | EndpointConversation,
    requests: Sequence[RewriteRequest],
    turn: int,
    base: PolicyConfig | LlmConfig,
    depth: int,
) -> list[RewriteResult]:
    """The answers to requests of one conversation and turn."""
    questions = [replace(request.question, id=request.id) for request in requests]
    lost = _first_stage(conversation, questions, base) if turn == 1 else {}
    lost |= {request.id: "no turn to go on from" for request in requests if turn > 1 and request.continuation is None}
    pairs = [
        (request, question) for request, question in zip(requests, questions, strict=True) if request.id not in lost
    ]
    answers = {name: _lost(reason) for name, reason in lost.items()}
    if isinstance(conversation, EndpointConversation):
        answers |= _ask_endpoint(conversation, pairs, turn)
    else:
        answers |= _ask_policy(conversation, pairs, turn)
    return [_result(request, turn, depth, *answers[request.id]) for request in requests]


def _lost(reason: str) -> _Answer:
    """The answer of a question that could not be asked."""
    return Rewrite(None, failure=reason), "", None


def _ask_endpoint(
    conversation: EndpointConversation, pairs: Sequence[tuple[RewriteRequest, Question]], turn: int
) -> dict[str, _Answer]:
    """The answers of a model behind an endpoint, by id."""
    chats: dict[str, ChatSoFar] = {}
    for request, question in pairs:
        after = request.continuation
        if isinstance(after, ChatSoFar):
            chats[request.id] = conversation.next_turn(question, after, request.documents, turn)
        else:
            chats[request.id] = conversation.begin(question)
    replies = conversation.answer([question for _, question in pairs], list(chats.values()), turn) if chats else []
    return {name: (reply.rewrite, reply.text, reply.after) for name, reply in zip(chats, replies, strict=True)}


def _ask_policy(
    conversation: Conversation, pairs: Sequence[tuple[RewriteRequest, Question]], turn: int
) -> dict[str, _Answer]:
    """`_ask_endpoint` of a policy that is loaded here."""
    answers: dict[str, _Answer] = {}
    branches: dict[str, Branch] = {}
    max_tokens = conversation.rollout.max_prompt_tokens
    for request, question in pairs:
        after = request.continuation
        if isinstance(after, Continuation):
            branch = conversation.next_turn(after.branch, after.node, request.documents, turn)
        else:
            branch = conversation.begin(question)
        if len(branch.prompt_ids) > max_tokens:
            reason = f"the prompt has {len(branch.prompt_ids)} tokens of {max_tokens}; shorten the question"
            answers[request.id] = _lost(reason)
        else:
            branches[request.id] = branch
    generated = conversation.generate(list(branches.values()), turn, 1, greedy=True) if branches else []
    for name, (branch, node) in zip(branches, generated, strict=True):
        answers[name] = (node.rewrite, node.text, Continuation(branch, node))
    return answers


def _first_stage(
    conversation: Conversation | EndpointConversation, questions: Sequence[Question], base: PolicyConfig | LlmConfig
) -> dict[str, str]:
    """Run the first stage and return the reasons of failed questions by id."""
    with StageModels(base) as models:
        history_words = conversation.rollout.history_tokens
        reasons = learn_first_stage(conversation.rewriter, questions, models, history_words=history_words)
    return {
        question.id: f"first stage: {reason}" for question, reason in zip(questions, reasons, strict=True) if reason
    }
