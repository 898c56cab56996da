"""HCQR: form a hypothesis about the answer, then search for what would confirm or overturn it (its paper, section 3);
and that paper's baseline of several wordings.

Stage one: the formulator reads the question (and the answer options, unless `hcqr.options` is off: the control "HCQR –
options" of table 5) and gives a hypothesis of four parts: best guess, discriminating features, confirming evidence,
brief reasoning. Stage two: the rewriter turns question and hypothesis into three queries: one that supports the guess,
one that distinguishes it from the others, one for the key features of the question. As in the paper's figure 11, the
second prompt has the hypothesis and not the options. Each query gives its five best documents; the union has at most
15.

The paper merges the retrieved sets without duplicates, cuts them only to the budget (B.3), and names no order: three
times five never exceed 15, so every order gives the same set there. Here the union goes rank by rank
(`template.union`). An ablated query (`hcqr.without`, table 6) is written but not searched, so that the ablation does
not change the other two.

The policy is trained as the rewriter, the stage that writes the plan; the hypotheses come from a frozen model, once per
question (`rollouts.llms.FirstStages`). The formulator thinks in a <think> part and then gives JSON with the keys of the
paper; the next stage gets only the text of its guess, not the letter. The prompts are worded by this project.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from string import Template
from typing import Annotated, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.methods import QueryRole
from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.base import SamplingParams
from ..llms.structured import FormPrompt, worked
from .base import FirstStage, StagedQuestion
from .case import case_text
from .forms import LineForm
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter, tasks, union

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
        prompt, draw = formulator_prompt(question, form), SamplingParams(max_tokens=HYPOTHESIS_TOKENS)
        return FirstStage(prompt, form, draw, self.config.llm, _PLACEHOLDER)


def hcqr(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> HcqrRewriter:
    """Build the rewriter. Its plans ask for `template.BUDGET` documents, whatever `k` is: that is the method."""

    def plan(question: Question, queries: Sequence[str]) -> SearchPlan:
        return union([query for role, query in zip(ROLES, queries, strict=True) if role not in config.hcqr.without])

    return HcqrRewriter(
        name="hcqr",
        form=LineForm(tasks()["hcqr"]["form"]),
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
    return Template(tasks()["hcqr"]["queries"]).substitute(
        case=case_text(question, options=False),
        guess=hypothesis.guess,
        reasoning=hypothesis.reasoning,
        evidence="; ".join(hypothesis.confirming_evidence),
        features="; ".join(hypothesis.discriminating_features),
    )


def formulator_prompt(question: Question, form: type[Hypothesis]) -> FormPrompt:
    """What the first stage is asked; a ChosenHypothesis is of one of the question's options."""
    texts, choice = tasks()["hcqr"], form is ChosenHypothesis
    hints = dict(texts["hints"])
    if choice:
        hints["best_guess"] = "/".join(chr(ord("A") + index) for index in range(len(question.options)))
    guessed = ("best_guess", "best_guess_text") if choice else ("best_guess",)
    request = Template(texts["request"]).substitute(
        hints, guess=",\n  ".join(f'"{key}": "{hints[key]}"' for key in guessed)
    )
    examples = worked([texts["choice" if choice else "open"]], form)
    return FormPrompt(texts["formulator"], case_text(question, options=choice), examples, request, hints)


def multi_query(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Multi-query: the question in several wordings, each searched by itself (the HCQR paper, sections 4.3 and B.4).

    The paper's Rewriting baseline, with the prompt family of LC-MQR (Kuo et al. 2025): exactly three versions of the
    question, five documents for each, their union rank by rank, at most 15 documents, whatever `k` is. With `options`,
    the prompt shows the answer options: the control of table 5.
    """

    def prompt(question: Question, request: str) -> str:
        return f"{tasks()['multi_query']['task']}\n\n{case_text(question, config.options)}\n\n{request}"

    form = LineForm({f"Sub-query {number}": f"version {number} of the question" for number in (1, 2, 3)})
    return TemplateRewriter(
        "multi_query", form, prompt, lambda question, versions: union(versions), options=config.options
    )
