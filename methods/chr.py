"""CHR as published: one call for a JSON object of two hypotheses (its paper, sections 3 and B).

rewriters/chr.py words the task and turns the hypotheses into a search plan; the same for a policy in training.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import ChrMethodConfig
from ..data.types import Question
from ..llms.structured import FormPrompt, WorkedExample
from ..rewriters.case import case_text
from ..rewriters.chr import contrast, role_of
from .method import Ask, Result, Search, sampling

Hypothesis = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Hypotheses(BaseModel):
    """The two hypotheses as the paper's JSON object."""

    model_config = ConfigDict(frozen=True)

    plus: Hypothesis = Field(alias="H_plus", description="The target hypothesis.")
    minus: Hypothesis = Field(alias="H_minus", description="The mimic hypothesis.")


_REQUEST = 'Return nothing but a JSON object with the keys "H_plus" and "H_minus": {"H_plus": "...", "H_minus": "..."}'
_EXAMPLE = WorkedExample(
    "Question: A boy has itching, scaly patches in the bends of his elbows since infancy. What is the diagnosis?\n"
    "A. Psoriasis\nB. Atopic dermatitis",
    Hypotheses(
        H_plus="Atopic dermatitis begins in infancy and itches in the bends of elbows and knees.",
        H_minus="Psoriasis is scaly too, but lies on the outer side of elbows and knees.",
    ),
)


async def chr_method(question: Question, ask: Ask, search: Search, settings: ChrMethodConfig) -> Result:
    """Ask for both hypotheses, search for one and against the other."""
    prompt = FormPrompt(role_of(settings), case_text(question), (_EXAMPLE,), _REQUEST)
    both = await ask.json(prompt, Hypotheses, sampling(settings))
    ranking = await search(contrast(both.plus, both.minus, settings.penalty, settings.k))
    return Result(ranking.documents, {"H_plus": both.plus, "H_minus": both.minus, "penalty": settings.penalty})
