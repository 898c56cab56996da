"""CHR: search for what the right answer says and against what its closest mimic says (seed 001, sections 3 and B).

A target hypothesis H+ and a mimic H−, both from one call; a document scores S(d) = Sim(d, H+) − λ·Sim(d, H−), which is
one probe with weights 1 and −λ (equation 2). λ = 0 leaves the mimic out: HyDE with one passage and no question.

On BM25, a document with S(d) ≤ 0 is no better than one that shares no word with either hypothesis, and is not found;
dense retrievers rank it.

The published method makes one call for a JSON object (`one_call`). A policy in training is asked for two labelled
lines: JSON needs quotes, commas and escapes that earn nothing, a text that is one character short of it says nothing,
and a policy has no second attempt. A small model learns two labels, the first of which is written for it.

Adaptive λ, which section 5 leaves to future work: λ(s) = λ · min(1, (1 − s) / (1 − s₀)), s in [0, 1] being the
similarity of H+ and H− and s₀ `chr.alike_from`. Up to s₀ the whole penalty stays; from there on it falls in a line to 0
at s = 1, where subtracting would take the target away with the mimic. What measures s is `chr.similarity`.

The role, the two instructions and the keys are the paper's, the words this project's own. `field` "any" says "answer"
where the paper says "diagnosis".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import ChrMethodConfig
from ..configs.rewriter import ChrConfig, RewriterConfig
from ..data.types import Question
from ..envs.plan import Probe, SearchPlan, Term
from ..llms.base import Draw
from ..llms.structured import Example, FormPrompt, Structured
from .card import RetrieverCard
from .levels import question_text
from .method import AskForm, Steps
from .parts import PartsRewriter
from .rewritten import failed, searched
from .similarity import Similarity, open_similarity

VERSION = "chr-1"
LABELS = ("H_plus", "H_minus")

Hypothesis = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Hypotheses(BaseModel):
    """The two hypotheses as the paper's JSON object."""

    model_config = ConfigDict(frozen=True)

    plus: Hypothesis = Field(alias="H_plus", description="The target hypothesis.")
    minus: Hypothesis = Field(alias="H_minus", description="The mimic hypothesis.")


_EXAMPLES = (
    Example(
        "Question: A boy has itching, scaly patches in the bends of his elbows since infancy. What is the diagnosis?\n"
        "A. Psoriasis\nB. Atopic dermatitis",
        Hypotheses(
            H_plus="Atopic dermatitis begins in infancy and itches in the bends of elbows and knees.",
            H_minus="Psoriasis is scaly too, but lies on the outer side of elbows and knees.",
        ),
    ),
)


@dataclass(frozen=True)
class Contrast:
    """From two hypotheses to a plan."""

    config: ChrConfig
    similarity: Similarity

    def penalty(self, plus: str, minus: str) -> float:
        """λ for this pair."""
        if not self.config.adaptive or not self.config.penalty:
            return self.config.penalty
        alike = min(1.0, max(0.0, self.similarity(plus, minus)))
        return self.config.penalty * min(1.0, (1 - alike) / (1 - self.config.alike_from))

    def plan(self, plus: str, minus: str, k: int) -> SearchPlan:
        """One probe, H+ minus λ·H−; without H− where λ is 0."""
        penalty = self.penalty(plus, minus)
        against = (Term(text=minus, weight=-penalty),) if penalty else ()
        return SearchPlan(probes=(Probe(terms=(Term(text=plus), *against)),), k=k)

    def notes(self, plus: str, minus: str) -> Mapping[str, Any]:
        """What a result says of the pair."""
        return {"H_plus": plus, "H_minus": minus, "penalty": self.penalty(plus, minus)}


def contrast(config: ChrConfig) -> Contrast:
    """Raises ModelError or ConfigError where `similarity` names no sentence encoder."""
    return Contrast(config, open_similarity(config.similarity if config.adaptive else "letters"))


def chr_rewriter(config: RewriterConfig, card: RetrieverCard, k: int) -> PartsRewriter:
    """Build the rewriter that answers in two lines."""
    pair = contrast(config.chr)

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        plus, minus = texts
        return pair.plan(plus, minus, k)

    return PartsRewriter(
        name="chr",
        version=VERSION,
        labels=LABELS,
        task=lambda question: _task(question, config.chr),
        gist=("the target hypothesis", "the mimic hypothesis"),
        plan=plan,
    )


@dataclass(frozen=True)
class Chr:
    """CHR as published: one call for a JSON object of two hypotheses."""

    settings: ChrMethodConfig
    pair: Contrast
    name: str = "chr"
    versions: tuple[str, ...] = (VERSION,)

    def steps(self, question: Question) -> Steps:
        """Ask for both hypotheses, search for one and against the other."""
        settings = self.settings
        draw = Draw(temperature=settings.temperature, max_tokens=settings.max_tokens, seed=settings.seed)
        answer: Structured[Hypotheses] = yield AskForm(one_call(question, settings), Hypotheses, draw)
        if answer.value is None:
            return failed(answer)
        plus, minus = answer.value.plus, answer.value.minus
        return (yield from searched(self.pair.plan(plus, minus, settings.k), self.pair.notes(plus, minus)))


def one_call(question: Question, config: ChrConfig) -> FormPrompt:
    """The paper's call for both hypotheses."""
    request = (
        'Return nothing but a JSON object with the keys "H_plus" and "H_minus": {"H_plus": "...", "H_minus": "..."}'
    )
    return FormPrompt(_role(config), _case(question), VERSION, _EXAMPLES, request)


def _task(question: Question, config: ChrConfig) -> str:
    return f"{_role(config)}\n\n{_case(question)}"


def _case(question: Question) -> str:
    return f"Question: {question_text(question)}"


def _role(config: ChrConfig) -> str:
    if config.field == "medicine":
        role = (
            "You are a medical specialist who helps with difficult clinical decisions, and you write precise "
            "diagnostic hypotheses that guide a search for evidence."
        )
        plus = (
            "the pathophysiology, the distinctive symptoms or the standard treatment of the CORRECT diagnosis, with "
            "the details that set it apart from other conditions"
        )
        minus = (
            "the main differential diagnosis or closest mimic, which is INCORRECT: why a clinician could take it for "
            "the right one because symptoms overlap, and the subtle features that rule it out"
        )
        asked = "Analyze the clinical scenario"
    else:
        role = (
            "You are a specialist in the subject of the question, and you write precise hypotheses that guide a search "
            "for evidence."
        )
        plus = "the facts, features and terms of the CORRECT answer, with the details that set it apart from others"
        minus = (
            "the closest alternative, which is INCORRECT: why one could take it for the right one because of what both "
            "have in common, and the subtle features that rule it out"
        )
        asked = "Analyze the question"
    return (
        f"{role}\n\n{asked} below, and write two conflicting hypotheses to search with:\n"
        f"1. H_plus, the target hypothesis: describe {plus}.\n2. H_minus, the mimic hypothesis: describe {minus}."
    )
