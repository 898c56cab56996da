"""Settings of `querylect index questions`: who writes the questions of a corpus, who judges them, which are kept."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .environment import MemberConfig
from .llm import AnswerForm, LlmConfig
from .section import Section


class ExtendConfig(MemberConfig):
    """More contents for the questions there are, found by a retriever over the contents themselves.

    `retriever`, `index` and what belongs to them name an index of the same corpus (`querylect index build`).
    """

    by: Literal["similar", "completed"] = "similar"
    """similar: pairs of a question and a content whose similarity reaches the threshold. completed: what matrix
    completion infers from these and all other judged pairs, besides."""
    threshold: float | None = None
    """The least similarity, in the retriever's own scores."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Instead of a threshold: this share of all pairs of a question and a content, the most similar ones."""
    depth: Annotated[int, Field(ge=1)] = 50
    """Contents of each question that are looked at, the most similar first."""
    judge: bool = True
    """Let the judge decide on each pair that reaches the threshold; false takes it as answered."""
    rank: Annotated[int, Field(ge=1)] = 20
    """completed: the highest rank of the completed matrix."""
    shrinkage: Annotated[float, Field(ge=0)] = 0.5
    """completed: what is taken off every singular value, in each step."""
    cut: float = 0.5
    """completed: the least completed value that counts as answered."""

    @model_validator(mode="after")
    def _one_limit(self) -> "ExtendConfig":
        if (self.threshold is None) == (self.share is None):
            raise ValueError("questions.extend takes a threshold or a share, one of the two")
        if self.by == "completed" and not self.judge:
            raise ValueError("questions.extend.by is 'completed', which learns from judged pairs; set judge: true")
        return self


class QuestionsConfig(Section):
    """The questions that a language model writes for every content of a corpus (docs/qb-rag.md)."""

    writer: LlmConfig = LlmConfig()
    judge: LlmConfig | None = None
    """What decides whether a content answers a question; None is the writer."""
    per_content: Annotated[int, Field(ge=1)] = 20
    """Questions asked for; a model may write more or fewer."""
    about: str = "written by experts to inform and advise people"
    """What the contents are, for the prompt: "a text …"."""
    words: Annotated[int, Field(ge=1)] = 1500
    """Words of a content that writer and judge are shown, title included."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longest answer of the writer: all questions of a content."""
    writer_temperature: Annotated[float, Field(ge=0)] = 0.0
    """0 is greedy, as the judge always is."""
    form: AnswerForm = "json"
    """How the writer, and a structured judge, answer: as JSON, or as labelled lines, which a small model keeps to."""
    judge_form: Literal["structured", "yes_no"] = "structured"
    """structured: an explanation and a verdict. yes_no: the likelier of the first tokens Yes and No."""
    judge_tokens: Annotated[int, Field(ge=1)] = 256
    """structured: longest answer of the judge."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many contents of the corpus, drawn with `seed`; None asks for all. The others cannot be found."""
    dates: str | None = None
    """A JSON-lines file with `_id` and `date` (YYYY-MM-DD): newer contents win ties. It may be corpus.jsonl itself."""
    mean: Annotated[float, Field(gt=0)] | None = None
    """Down-sample to so many written questions per content on average (m̄); None keeps all."""
    sample: Literal["set", "content"] = "set"
    """set: drawn from all questions alike. content: at most `mean` of each content, a whole number."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of the writer's draws, of `limit` and of the down-sampling; the smaller sample is part of the larger."""
    extend: ExtendConfig | None = None
    """More contents for the questions there are; None leaves each with those that it was written for."""

    @model_validator(mode="after")
    def _whole_questions(self) -> "QuestionsConfig":
        if self.sample == "content" and (self.mean is None or self.mean != int(self.mean)):
            raise ValueError(f"questions.sample is 'content' and questions.mean is {self.mean}; give a whole number")
        return self
