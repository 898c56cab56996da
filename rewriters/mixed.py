"""One rewriter for the questions of several environments: each question goes to the rewriter of its environment."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..data.mixed_ids import split_id
from ..data.types import Question
from ..errors import ConfigError
from .base import DelegatingRewriter, RewritingStrategy


@dataclass(frozen=True)
class MixedRewriter(DelegatingRewriter):
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

    def member(self, question: Question) -> RewritingStrategy:
        return self.members[split_id(question.id)[0]]
