"""A method in the user's own words (llms/wording.py): the stages of every method, and their placeholders."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..data.history import lines_of
from ..data.types import Question
from ..llms.base import Prompt
from ..llms.structured import AskForm, FormPrompt
from ..llms.wording import COMMON, Wording, read_wordings
from ..rewriters.levels import question_text
from .method import Method, Outcome, PromptStep, Step, Steps

_REWRITER: Mapping[str, Sequence[str]] = {"rewriter": ()}
STAGES: Mapping[str, Mapping[str, Sequence[str]]] = {
    **dict.fromkeys(("general", "explore", "direct", "small", "hyde", "query2doc", "multi_query"), _REWRITER),
    "hcqr": {"formulator": (), "rewriter": ("guess", "reasoning?", "evidence?", "features?")},
    "chr": {"hypotheses": ()},
    "csqe": {"pick": ("documents",), "passage": ()},
    "thinkqe": {"expand": ("documents",)},
    "qa_rag": {"answer": ()},
    "cot": {"reader": ()},
    "direct_gen": {"reader": ()},
    "std_rag": {"reader": ("passages", "further?")},
    "misknow": {"judge": ("passages", "draft"), "reader": ("passages", "further?")},
    "migres": {
        "filter": ("passages",),
        "extract": ("passages",),
        "judge": ("information",),
        "queries": ("missing", "information?", "previous?"),
        "reader": ("further", "passages?"),
    },
    "main_rag": {"predictor": ("document",), "judge": ("document", "answer")},
}
"""The stages of every method that asks a model, and their placeholders besides the common ones; "?" marks those that a
text may leave out."""


@dataclass(frozen=True)
class Reworded:
    """A method whose prompts are worded by the user."""

    method: Method
    wordings: Mapping[str, Wording]

    @property
    def name(self) -> str:
        """The name of the method."""
        return self.method.name

    @property
    def versions(self) -> Sequence[str]:
        """Those of the method, and of the texts that replace some of its prompts."""
        return (*self.method.versions, *(wording.version for wording in self.wordings.values()))

    def steps(self, question: Question) -> Steps:
        """The steps of the method, with other prompts."""
        steps = self.method.steps(question)
        answer: object = None
        while True:
            try:
                yielded = steps.send(answer)
            except StopIteration as stop:
                outcome: Outcome = stop.value
                return outcome
            if isinstance(yielded, Sequence):
                answer = yield [self._reworded(step, question) for step in yielded]
            else:
                answer = yield self._reworded(yielded, question)

    def _reworded(self, step: Step, question: Question) -> Step:
        if not isinstance(step, PromptStep | AskForm):
            return step
        prompt = in_own_words(step.prompt, question, self.wordings)
        if prompt is None:
            return step
        if isinstance(step, PromptStep):
            return replace(step, prompt=prompt, small=None)
        return replace(step, prompt=prompt)


def reworded(name: str, method: Method, path: str | None) -> Method:
    """The method with the texts of `path`; the method itself for None. Raises ConfigError as `read_wordings`."""
    if path is None:
        return method
    return Reworded(method, read_wordings(STAGES.get(name, {}), path, f"the setting `prompts` of the method {name!r}"))


def rewriter_stages(name: str) -> Mapping[str, Sequence[str]]:
    """The stages of a rewriter, which an evaluation asks without the rest of its method."""
    return STAGES["hcqr"] if name == "hcqr" else _REWRITER


def in_own_words(prompt: Prompt | FormPrompt, question: Question, wordings: Mapping[str, Wording]) -> Prompt | None:
    """The prompt in the user's words; None where there are none for its stage."""
    wording = wordings.get(prompt.stage)
    return wording.prompt({**question_fields(question), **prompt.fields}) if wording is not None else None


def question_fields(question: Question) -> dict[str, str]:
    """The values of the common placeholders."""
    lines = question_text(question).removeprefix(question.text).strip()
    return dict(zip(COMMON, (question.text, lines, question_text(question), lines_of(question.history)), strict=True))
