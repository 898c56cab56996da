"""CHR as published: one call for a JSON object of two hypotheses (its paper, sections 3 and B).

rewriters/chr.py turns the hypotheses into a search plan.
"""

from dataclasses import dataclass
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import ChrMethodConfig
from ..configs.rewriter import ChrConfig
from ..data.types import Question
from ..llms.structured import AskForm, FormPrompt, Structured, WorkedExample
from ..rewriters.case import case_text
from ..rewriters.chr import contrast, role_of
from .method import Steps, draw_of
from .rewritten import failed, searched

VERSION = "chr-1"
Hypothesis = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Hypotheses(BaseModel):
    """The two hypotheses as the paper's JSON object."""

    model_config = ConfigDict(frozen=True)

    plus: Hypothesis = Field(alias="H_plus", description="The target hypothesis.")
    minus: Hypothesis = Field(alias="H_minus", description="The mimic hypothesis.")


_EXAMPLES = (
    WorkedExample(
        "Question: A boy has itching, scaly patches in the bends of his elbows since infancy. What is the diagnosis?\n"
        "A. Psoriasis\nB. Atopic dermatitis",
        Hypotheses(
            H_plus="Atopic dermatitis begins in infancy and itches in the bends of elbows and knees.",
            H_minus="Psoriasis is scaly too, but lies on the outer side of elbows and knees.",
        ),
    ),
)


@dataclass(frozen=True)
class Chr:
    """CHR as published: one call for a JSON object of two hypotheses."""

    settings: ChrMethodConfig
    name = "chr"
    versions = (VERSION,)

    def steps(self, question: Question) -> Steps:
        """Ask for both hypotheses, search for one and against the other."""
        settings = self.settings
        answer: Structured[Hypotheses] = yield AskForm(one_call(question, settings), Hypotheses, draw_of(settings))
        if answer.value is None:
            return failed(answer)
        plus, minus = answer.value.plus, answer.value.minus
        notes = {"H_plus": plus, "H_minus": minus, "penalty": settings.penalty}
        return (yield from searched(contrast(plus, minus, settings.penalty, settings.k), notes))


def one_call(question: Question, config: ChrConfig) -> FormPrompt:
    """The paper's call for both hypotheses."""
    request = (
        'Return nothing but a JSON object with the keys "H_plus" and "H_minus": {"H_plus": "...", "H_minus": "..."}'
    )
    return FormPrompt(role_of(config), case_text(question), VERSION, _EXAMPLES, request)
