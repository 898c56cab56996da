"""HCQR: form a hypothesis about the answer, then search for what would confirm or overturn it (its paper, section 3).

Stage one: the formulator reads the question (and the answer options, unless `hcqr.options` is off: the control "HCQR –
options" of table 5) and gives a hypothesis of four parts: best guess, discriminating features, confirming evidence,
brief reasoning. Stage two: the rewriter turns question and hypothesis into three queries: one that supports the guess,
one that distinguishes it from the others, one for the key features of the question. As in the paper's figure 11, the
second prompt has the hypothesis and not the options. Each query gives its five best documents; the union has at most
15.

The paper merges the retrieved sets without duplicates, cuts them only to the budget (B.3), and names no order: three
times five never exceed 15, so every order gives the same set there. Here the union goes rank by rank (`plans.union`).
An ablated query (`hcqr.without`, table 6) is written but not searched, so that the ablation does not change the other
two.

The policy is trained as the rewriter, the stage that writes the plan; the hypotheses come from a frozen model, once per
question (rollouts/llms.py). The formulator thinks in a <think> part and then gives JSON with the keys of the
paper; the next stage gets only the text of its guess, not the letter. The prompts are worded by this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import QueryRole
from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.base import SamplingParams
from ..llms.structured import FormPrompt, WorkedExample
from .base import FirstStage, StagedQuestion
from .case import case_text
from .forms import LineForm
from .plans import union
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter

HYPOTHESIS_TOKENS = 2048
"""Maximum tokens of a hypothesis, thinking included."""
ROLES: tuple[QueryRole, ...] = get_args(QueryRole)

NonEmpty = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]


class Hypothesis(BaseModel):
    """The formulator's answer without options."""

    model_config = ConfigDict(frozen=True)

    discriminating_features: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    reasoning: NonEmpty
    confirming_evidence: Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    best_guess: NonEmpty

    @property
    def guess(self) -> str:
        return self.best_guess


class ChosenHypothesis(Hypothesis):
    """The formulator's answer where it saw options: a letter, and the text of the option."""

    best_guess_text: NonEmpty

    @property
    def guess(self) -> str:
        return self.best_guess_text


_PLACEHOLDER = Hypothesis(
    discriminating_features=("{discriminating_features}",),
    reasoning="{reasoning}",
    confirming_evidence=("{confirming_evidence}",),
    best_guess="{best_guess}",
)


@dataclass(frozen=True, kw_only=True)
class HcqrRewriter(TemplateRewriter):
    """The second stage; `first` takes a StagedQuestion with the hypothesis."""

    config: RewriterConfig

    def first_stage(self, question: Question) -> FirstStage:
        choice = bool(self.config.hcqr.options and question.options)
        form = ChosenHypothesis if choice else Hypothesis
        prompt, draw = formulator_prompt(question, choice), SamplingParams(max_tokens=HYPOTHESIS_TOKENS)
        return FirstStage(prompt, form, draw, self.config.llm, _PLACEHOLDER)


def hcqr(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> HcqrRewriter:
    """Build the rewriter. Its plans ask for `plans.BUDGET` documents, whatever `k` is: that is the method."""

    def plan(question: Question, queries: Sequence[str]) -> SearchPlan:
        return union([query for role, query in zip(ROLES, queries, strict=True) if role not in config.hcqr.without])

    return HcqrRewriter(
        name="hcqr",
        form=LineForm(
            {
                "Query 1": "the supporting query",
                "Query 2": "the distinguishing query",
                "Query 3": "the query for key features",
            }
        ),
        prompt=lambda question, request: f"{queries_prompt(question)}\n\n{request}",
        plan=plan,
        options=False,
        config=config,
    )


def queries_prompt(question: Question) -> str:
    """What the second stage is asked. Raises ConfigError for a question without a hypothesis."""
    hypothesis = question.first_stage if isinstance(question, StagedQuestion) else None
    if not isinstance(hypothesis, Hypothesis):
        raise ConfigError(f"rewriter.name is 'hcqr', and no hypothesis was formed for the question {question.id!r}.")
    return (
        "You are an expert for search queries, and you write precise queries with a clear aim. Write 3 highly "
        "targeted queries that find evidence for the question below.\n\n"
        f"{case_text(question, options=False)}\n"
        f"Best guess at the answer: {hypothesis.guess}\n"
        f"Reasoning: {hypothesis.reasoning}\n"
        f"Evidence needed: {'; '.join(hypothesis.confirming_evidence)}\n"
        f"Key features: {'; '.join(hypothesis.discriminating_features)}\n\n"
        f"Query 1 finds evidence that supports {hypothesis.guess}; it follows the main line of reasoning.\n"
        "Query 2 finds criteria that tell the best candidate answers apart.\n"
        "Query 3 finds specific key features or facts of the question."
    )


_EXAMPLE = "Question: A child has a barking cough and noisy breathing at night. What is the most likely cause?"
_OPEN_HYPOTHESIS = Hypothesis(
    discriminating_features=("barking cough", "noise on breathing in"),
    reasoning="A barking cough at night speaks for croup.",
    confirming_evidence=("croup is caused by parainfluenza virus",),
    best_guess="Croup",
)
_CHOICE_HYPOTHESIS = ChosenHypothesis(
    **{**_OPEN_HYPOTHESIS.model_dump(), "best_guess": "A", "best_guess_text": "Croup"}
)


def formulator_prompt(question: Question, choice: bool) -> FormPrompt:
    """What the first stage is asked; `choice` shows the answer options."""
    letters = "/".join(chr(ord("A") + i) for i in range(len(question.options)))
    hints = {
        "discriminating_features": "2 or 3 features that tell the options apart",
        "reasoning": "briefly why this is the best answer",
        "confirming_evidence": "1 to 3 specific facts that would confirm it",
        "best_guess": letters if choice else "your best guess at the answer",
        "best_guess_text": "the text of that option, word for word",
    }
    guess = f'"best_guess": "{hints["best_guess"]}"'
    if choice:
        guess += f',\n  "best_guess_text": "{hints["best_guess_text"]}"'
    request = (
        "Analyze the question with care, between <think> and </think>: go through every option step by step with what "
        "the question says and what you know, and rule options out before you decide. After </think> give your "
        "assessment as one JSON object and nothing else:\n"
        f'{{\n  "discriminating_features": ["{hints["discriminating_features"]}"],\n'
        f'  "reasoning": "{hints["reasoning"]}",\n'
        f'  "confirming_evidence": ["{hints["confirming_evidence"]}"],\n'
        f"  {guess}\n}}"
    )
    example = (
        WorkedExample(f"{_EXAMPLE}\nA. Croup\nB. Asthma", _CHOICE_HYPOTHESIS)
        if choice
        else WorkedExample(_EXAMPLE, _OPEN_HYPOTHESIS)
    )
    task, case = "You are an expert analyst who sits an exam.", case_text(question, options=choice)
    return FormPrompt(task, case, (example,), request, hints)
