"""A question grown into a tree of turns.

Invariant: concatenating `prompt_ids` and `completion_ids` of a node gives exactly what the model saw and said; the
`prompt_ids` of a child start with that concatenation of its parent. Ids are joined, never re-tokenised.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod

from ..data.types import Question
from ..envs.schemas import HitBody
from ..rewriters.base import Rewrite


@dataclass(slots=True)
class Node:
    """One sampled turn: what the model was shown, what it said, what came back and what that is worth."""

    turn: int
    """1 for a first turn."""
    prompt_ids: list[int]
    completion_ids: list[int]
    logprobs: list[float]
    """Log-probability of each completion id at sampling time; empty where the engine did not record them."""
    finished: bool
    """False where the completion was cut at max_new_tokens."""
    text: str
    rewrite: Rewrite
    ranking: list[HitBody] = field(default_factory=list)
    """Best first; with texts where a next turn is shown them."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Metrics of the ranking by name; 0 where nothing was searched, but for those of a reader's answer."""
    reward: float | None = None
    """(1 − w_f)·metric + w_f·format; None = a failed search (no answer before the deadline)."""
    children: list["Node"] = field(default_factory=list)
    reused: bool = False
    """Whether the ranking is that of an earlier turn, because this one stopped and searched nothing itself."""
    cost: float = 0.0
    """The price of its search, which is not part of `reward`."""
    truncated: int | None = None
    """Texts of its plan that the retriever read only in part; None where nothing was searched, or this is unknown."""
    hits: int | None = None
    """Documents that match its native query, as counted (PlanResult.hits); None where its plan is words."""
    error: str | None = None
    """Why the retriever refused its native query."""
    number: int = 0
    """Among the answers to its prompt."""
    tokens: int | None = 0
    """Sampled tokens; None where an endpoint does not report them. `prompt_tokens` counts those read."""
    prompt_tokens: int | None = 0
    calls: int = 1
    """Texts that were sampled: of several passages each, and of an answer that was sent back both."""

    @property
    def searched(self) -> bool:
        """Whether it has a plan of its own."""
        return self.rewrite.plan is not None and not self.reused

    @property
    def grows(self) -> bool:
        """Whether there may be turns below it: neither the policy stopped nor its search failed."""
        return self.reward is not None and not self.rewrite.stop

    def walk(self) -> Iterator["Node"]:
        """This node and everything under it, depth first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(slots=True)
class Tree:
    """All turns sampled for one question."""

    question: Question
    roots: list[Node]
    branching: tuple[int, ...] = ()
    """Samples per node, by turn, as it was grown; () where it is not known."""

    @property
    def turns(self) -> int:
        """Turns of a path that does not end early."""
        return len(self.branching) or max((node.turn for node in self.walk()), default=1)

    def walk(self) -> Iterator[Node]:
        for root in self.roots:
            yield from root.walk()

    @property
    def searches(self) -> int:
        """Searches of all turns."""
        return sum(node.searched for node in self.walk())

    @property
    def tokens(self) -> int:
        """Sampled tokens of all turns."""
        return sum(len(node.completion_ids) for node in self.walk())

    def paths(self) -> Iterator[list[Node]]:
        """Every leaf as its path from the first turn to the last, in order.

        A turn that does not grow has the paths of all leaves that would have grown below it: one path as often.
        """

        def below(node: Node, path: list[Node]) -> Iterator[list[Node]]:
            path = [*path, node]
            if not node.children:
                yield from [path] * prod(self.branching[node.turn :])
            for child in node.children:
                yield from below(child, path)

        for root in self.roots:
            yield from below(root, [])
