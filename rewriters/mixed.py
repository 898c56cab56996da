"""One rewriter for the questions of several environments: each question goes to the rewriter of its environment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import BaseModel

from ..data.mixed_ids import split_id
from ..data.types import Document, Question
from ..errors import ConfigError
from ..llms.base import Message
from .base import FirstStage, Rewrite, RewritingStrategy, Staged


@dataclass(frozen=True)
class MixedRewriter:
    """The rewriters by the name of their environment. Questions have mixed ids (data/mixed_ids.py).

    Raises ConfigError if their openings differ: an opening cannot depend on the question.
    """

    members: Mapping[str, RewritingStrategy]
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
        return next(iter(self.members.values())).opening

    def first(self, question: Question) -> list[Message]:
        return self._member_of(question).first(question)

    def follow_up(self, question: Question, documents: Sequence[Document], turn: int) -> str:
        return self._member_of(question).follow_up(question, documents, turn)

    def parse(self, question: Question, text: str, turn: int) -> Rewrite:
        return self._member_of(question).parse(question, text, turn)

    def read(self, question: Question, text: str, turn: int) -> Rewrite:
        return self._member_of(question).read(question, text, turn)

    def stage(self, question: Question) -> FirstStage | None:
        """The first stage of a question, if the rewriter of its environment has one."""
        member = self._member_of(question)
        return member.stage(question) if isinstance(member, Staged) else None

    def learn(self, question: Question, answer: BaseModel) -> None:
        member = self._member_of(question)
        assert isinstance(member, Staged), "only a rewriter with a first stage gets its answer"
        member.learn(question, answer)

    def learn_example(self, question: Question) -> None:
        """All members with a first stage store an example of its answer."""
        for member in self.members.values():
            if isinstance(member, Staged):
                member.learn_example(question)

    def _member_of(self, question: Question) -> RewritingStrategy:
        return self.members[split_id(question.id)[0]]
