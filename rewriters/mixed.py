"""One rewriter for the questions of several environments: each is asked in the words for its own retriever."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from ..data.mixed_ids import split_id
from ..data.types import Document, Question
from ..errors import ConfigError
from .base import FirstStage, Message, Rewrite, Rewriter, Staged


@dataclass(frozen=True)
class MixedRewriter:
    """The rewriters by the name of their environment. Questions have mixed ids (data/mixed_ids.py).

    Raises ConfigError where their answers begin differently: what begins an answer cannot depend on the question.
    """

    members: Mapping[str, Rewriter]
    name: str = "mixed"

    def __post_init__(self) -> None:
        openings = {name: member.opening for name, member in self.members.items()}
        if len(set(openings.values())) > 1:
            raise ConfigError(
                f"the prompts of the mixed environments have different openings ({openings}). "
                "Give them the same one, or none."
            )

    @property
    def opening(self) -> str:
        """That of all members."""
        return next(iter(self.members.values())).opening

    def first(self, question: Question) -> list[Message]:
        """The chat that the first turn answers."""
        return self._of(question).first(question)

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        """The user message that opens turn `turn`."""
        return self._of(question).follow_up(question, documents, turn)

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        """Read the text sampled in turn `turn`."""
        return self._of(question).parse(question, text, turn)

    def stage(self, question: Question) -> FirstStage | None:
        """The first stage of a question, where its environment's rewriter has one."""
        member = self._of(question)
        return member.stage(question) if isinstance(member, Staged) else None

    def learn(self, question: Question, answer: BaseModel) -> None:
        """Take the value of a first stage."""
        member = self._of(question)
        assert isinstance(member, Staged), "only a rewriter with a first stage is told of its answer"
        member.learn(question, answer)

    def learn_example(self, question: Question) -> None:
        """All members that have a first stage take an example of its answer."""
        for member in self.members.values():
            if isinstance(member, Staged):
                member.learn_example(question)

    def alike(self, retrievers: Mapping[str, object]) -> list[str]:
        """Environments whose prompts are those of another one that has another of the `retrievers`, by name."""
        seen: dict[str, object] = {}
        asked = Question("", "?")
        self.learn_example(asked)
        prompts = {name: repr(member.first(asked)) for name, member in self.members.items()}
        return [
            name for name, prompt in prompts.items() if seen.setdefault(prompt, retrievers[name]) != retrievers[name]
        ]

    def _of(self, question: Question) -> Rewriter:
        return self.members[split_id(question.id)[0]]
