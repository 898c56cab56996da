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
question (rollouts/first_stage.py). The formulator thinks in a <think> part and then gives JSON with the paper's keys;
the next stage gets only the text of its guess, not the letter. The prompts are worded by this project.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, get_args

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from ..configs.rewriter import QueryRole, RewriterConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from ..errors import ConfigError
from ..llms.base import SamplingParams
from ..llms.structured import AskForm, FormPrompt, WorkedExample
from .base import FirstStage
from .case import case_text
from .parts import PartsRewriter
from .plans import union
from .retriever_info import RetrieverInfo

FORMULATOR, REWRITER = "hcqr-formulator-1", "hcqr-rewriter-1"
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


class HcqrRewriter(PartsRewriter):
    """The second stage, prompted with the stored hypotheses."""

    versions = (FORMULATOR, REWRITER)

    def __init__(self, config: RewriterConfig) -> None:
        self.config = config
        self._hypotheses: dict[str, Hypothesis] = {_EXAMPLE_QUESTION.id: _CHOICE_HYPOTHESIS}
        super().__init__(
            name="hcqr",
            version=REWRITER,
            labels=("Query 1", "Query 2", "Query 3"),
            task=self._task,
            field_hints=("the supporting query", "the distinguishing query", "the query for key features"),
            plan=self._plan,
            example=(_EXAMPLE_QUESTION, _EXAMPLE_QUERIES),
            options=False,
        )

    def stage(self, question: Question) -> FirstStage:
        settings = self.config.hcqr
        choice = bool(settings.options and question.options)
        form = ChosenHypothesis if choice else Hypothesis
        ask = AskForm(_formulator_prompt(question, choice), form, SamplingParams(max_tokens=HYPOTHESIS_TOKENS))
        return FirstStage(ask, self.config.llm, self.config.form)

    def learn(self, question: Question, answer: BaseModel) -> None:
        """Store a hypothesis. Raises TypeError for another form."""
        if not isinstance(answer, Hypothesis):
            raise TypeError(f"hcqr learns a Hypothesis, not {type(answer).__name__}")
        self._hypotheses[question.id] = answer

    def learn_example(self, question: Question) -> None:
        """Store a hypothesis whose values are its field names."""
        self._hypotheses[question.id] = Hypothesis(
            discriminating_features=("{discriminating_features}",),
            reasoning="{reasoning}",
            confirming_evidence=("{confirming_evidence}",),
            best_guess="{best_guess}",
        )

    def notes(self, question: Question) -> Mapping[str, Any]:
        return {"hypothesis": self._hypothesis_of(question).model_dump(mode="json")}

    def fields(self, question: Question) -> Mapping[str, str]:
        """The parts of the hypothesis, as the prompt shows them."""
        hypothesis = self._hypothesis_of(question)
        return {
            "guess": hypothesis.guess,
            "reasoning": hypothesis.reasoning,
            "evidence": "; ".join(hypothesis.confirming_evidence),
            "features": "; ".join(hypothesis.discriminating_features),
        }

    def _plan(self, question: Question, queries: Sequence[str]) -> SearchPlan:
        settings = self.config.hcqr
        selected = [query for role, query in zip(ROLES, queries, strict=True) if role not in settings.without]
        return union(selected)

    def _hypothesis_of(self, question: Question) -> Hypothesis:
        if question.id not in self._hypotheses:
            raise ConfigError(
                f"rewriter.name is 'hcqr', and no hypothesis was formed for the question {question.id!r}. "
                "Call rollouts.first_stage.ask_first_stage before its first turn, as training and evaluation do."
            )
        return self._hypotheses[question.id]

    def _task(self, question: Question) -> str:
        fields = self.fields(question)
        return (
            "You are an expert for search queries, and you write precise queries with a clear aim. Write 3 highly "
            "targeted queries that find evidence for the question below.\n\n"
            f"{case_text(question, options=False)}\n"
            f"Best guess at the answer: {fields['guess']}\n"
            f"Reasoning: {fields['reasoning']}\n"
            f"Evidence needed: {fields['evidence']}\n"
            f"Key features: {fields['features']}\n\n"
            f"Query 1 finds evidence that supports {fields['guess']}; it follows the main line of reasoning.\n"
            "Query 2 finds criteria that tell the best candidate answers apart.\n"
            "Query 3 finds specific key features or facts of the question."
        )


def hcqr(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> HcqrRewriter:
    """Build the rewriter. Its plans ask for `plans.BUDGET` documents, whatever `k` is: that is the method."""
    return HcqrRewriter(config)


_EXAMPLE_QUESTION = Question(
    "\x00", "A child has a barking cough and noisy breathing at night. What is the most likely cause?"
)
_EXAMPLE_QUERIES = (
    "croup barking cough at night in children",
    "croup or asthma, noise on breathing in or out",
    "barking cough and stridor",
)
_EXAMPLE_CASE = f"Question: {_EXAMPLE_QUESTION.text}"
_OPEN_HYPOTHESIS = Hypothesis(
    discriminating_features=("barking cough", "noise on breathing in"),
    reasoning="A barking cough at night speaks for croup.",
    confirming_evidence=("croup is caused by parainfluenza virus",),
    best_guess="Croup",
)
_CHOICE_HYPOTHESIS = ChosenHypothesis(
    **{**_OPEN_HYPOTHESIS.model_dump(), "best_guess": "A", "best_guess_text": "Croup"}
)
_OPEN_EXAMPLES = (WorkedExample(_EXAMPLE_CASE, _OPEN_HYPOTHESIS),)
_CHOICE_EXAMPLES = (WorkedExample(f"{_EXAMPLE_CASE}\nA. Croup\nB. Asthma", _CHOICE_HYPOTHESIS),)


def _formulator_prompt(question: Question, choice: bool) -> FormPrompt:
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
    examples = _CHOICE_EXAMPLES if choice else _OPEN_EXAMPLES
    return FormPrompt(
        "You are an expert analyst who sits an exam.",
        case_text(question, options=choice),
        FORMULATOR,
        examples,
        request,
        field_hints=hints,
    )
