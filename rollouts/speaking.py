"""One turn of many conversations with a policy: prompts from a rewriter, answers from an engine, what a turn is shown.

Growing trees for training and evaluation, and rewriting questions for a user, are both made of these steps, so a policy
is asked in the same ids wherever it is used. Nothing here searches or scores.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..configs.schema import RolloutConfig
from ..data.types import Document, Question
from ..errors import ConfigError
from ..rewriters.base import Message, Rewriter
from ..rewriters.plans import with_earlier
from .chat import Chat
from .engine import Engine, Sample, Sampling
from .tree import Node, Tree


@dataclass(slots=True)
class Clock:
    """Seconds spent since it was last read, by activity."""

    seconds: dict[str, float] = field(default_factory=dict)

    def add(self, activity: str, since: float) -> None:
        """Count the time from `since` (perf_counter) until now."""
        self.seconds[activity] = self.seconds.get(activity, 0.0) + time.perf_counter() - since

    def read(self) -> dict[str, float]:
        """Return and reset the counts."""
        seconds, self.seconds = self.seconds, {}
        return seconds


@dataclass(slots=True)
class Place:
    """A place in a tree where the next turn attaches."""

    tree: Tree
    messages: list[Message]
    prompt_ids: list[int]
    parent: Node | None
    stream: int = 0
    """Where the random numbers of its samples come from."""
    earlier: tuple[str, ...] = ()
    """The rewrites of the turns before it, first turn first."""


class Speaker:
    """Speaks to one policy in the words of one rewriter."""

    def __init__(self, engine: Engine, rewriter: Rewriter, rollout: RolloutConfig) -> None:
        self.engine, self.rewriter, self.rollout = engine, rewriter, rollout
        self.chat = Chat(engine.tokenizer, getattr(engine, "stop_ids", {engine.tokenizer.eos_token_id}))
        self.clock = Clock()

    def begin(self, question: Question, stream: int = 0) -> Place:
        """The first turn of a question, in a new tree."""
        messages = self.rewriter.first(self.chat.plain_question(question))
        return Place(Tree(question, []), messages, self.chat.first(messages, self.rewriter.opening), None, stream)

    def say(self, places: Sequence[Place], turn: int, width: int, sampling: Sampling) -> list[tuple[Place, Node]]:
        """`width` answers at every place, in one batch; each becomes a node of its tree, beside its place.

        Raises ConfigError as `check_length`.
        """
        prompts = [place.prompt_ids for place in places]
        self.check_length(prompts)
        started = time.perf_counter()
        samples = self.engine.generate(prompts, width, sampling)
        self.clock.add("generate", started)
        said = [
            (place, self._node(place, sample, turn))
            for place, several in zip(places, samples, strict=True)
            for sample in several
        ]
        for place, node in said:
            (place.parent.children if place.parent else place.tree.roots).append(node)
        return said

    def follow(self, place: Place, node: Node, documents: Sequence[Document], turn: int) -> Place:
        """The place of turn `turn` under `node`, which shows `documents` of the node's ranking, cut to their budgets.

        None of them where nothing was searched or found.
        """
        message = self.rewriter.follow_up(
            self.chat.plain_question(place.tree.question), self.shown(documents[: self.rollout.documents]), turn
        )
        ids = self.chat.continuation(place.messages, message, node.completion_ids, self.rewriter.opening)
        messages: list[Message] = [
            *place.messages,
            {"role": "assistant", "content": self.rewriter.opening + node.text},
            {"role": "user", "content": message},
        ]
        prompt_ids = [*node.prompt_ids, *node.completion_ids, *ids]
        return Place(place.tree, messages, prompt_ids, node, earlier=(*place.earlier, *node.rewrite.rewrites))

    def sampling(self, turn: int, greedy: bool) -> Sampling:
        """How an answer of that turn is sampled."""
        return Sampling(
            temperature=0.0 if greedy else self.rollout.temperature_of(turn),
            top_p=1.0 if greedy else self.rollout.top_p_of(turn),
            max_new_tokens=self.rollout.new_tokens(turn),
        )

    def _node(self, place: Place, sample: Sample, turn: int) -> Node:
        text = self.chat.text(sample.ids)
        rewrite = self.rewriter.parse(place.tree.question, text, turn)
        rewrite = with_earlier(rewrite, place.earlier, self.rollout.keep_rewrites_weight)
        return Node(turn, place.prompt_ids, sample.ids, sample.logprobs, sample.finished, text, rewrite)

    def shown(self, documents: Sequence[Document]) -> list[Document]:
        """The documents as a turn sees them, each and all together within their token budgets; the last may be cut."""
        left = self.rollout.observation_tokens
        if left is None:
            return [self.shorten(document) for document in documents]
        kept = []
        for document in documents:
            short = self.shorten(document, left)
            if not (short.title or short.text) and self.chat.plain(document.title + document.text).strip():
                break  # there is no room for any of it
            kept.append(short)
            left -= self.chat.count(short.title) + self.chat.count(short.text)
        return kept

    def shorten(self, document: Document, most: int | None = None) -> Document:
        """Title and text cut so that both together keep to the token budget of one document, and to `most` tokens."""
        budget = self.rollout.document_tokens if most is None else min(most, self.rollout.document_tokens)
        title = self.chat.cut(document.title, budget)
        left = budget - self.chat.count(title)
        return Document(document.id, title, self.chat.cut(document.text, left) if left > 0 else "")

    def check_length(self, prompts: Sequence[Sequence[int]]) -> None:
        """Raise ConfigError where a prompt is longer than `rollout.max_prompt_tokens`."""
        longest = max(map(len, prompts), default=0)
        if longest > self.rollout.max_prompt_tokens:
            raise ConfigError(
                f"a prompt has {longest} tokens and rollout.max_prompt_tokens is {self.rollout.max_prompt_tokens}. "
                "Raise it, show fewer documents (rollout.documents), or fewer tokens of each (rollout.document_tokens) "
                "or of all (rollout.observation_tokens)."
            )
