"""Settings of `querylect index questions`: the writer and the judge of a corpus's questions, and which are kept."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from .environment import MemberConfig
from .llm import AnswerForm, WordedLlmConfig
from .section import Section


class ExtendConfig(MemberConfig):
    """Add contents to existing questions with a retriever over the contents.

    `retriever`, `index` and their related settings name an index of the same corpus (`querylect index build`).
    """

    by: Literal["similar", "completed"] = "similar"
    """similar: add (question, content) pairs whose similarity reaches the threshold. completed: also add the pairs that
    matrix completion infers from these and all other judged pairs."""
    threshold: float | None = None
    """Minimum similarity, on the scale of the retriever's scores."""
    share: Annotated[float, Field(gt=0, le=1)] | None = None
    """Alternative to `threshold`: the most similar share of all (question, content) pairs."""
    depth: Annotated[int, Field(ge=1)] = 50
    """Most similar contents considered per question."""
    judge: bool = True
    """Judge each pair that reaches the threshold; false: accept it without a judgement."""
    rank: Annotated[int, Field(ge=1)] = 20
    """completed: maximum rank of the completed matrix."""
    shrinkage: Annotated[float, Field(ge=0)] = 0.5
    """completed: amount subtracted from every singular value at each iteration."""
    cut: float = 0.5
    """completed: minimum completed value that counts as answered."""

    @model_validator(mode="after")
    def _check_limit(self) -> "ExtendConfig":
        if (self.threshold is None) == (self.share is None):
            raise ValueError("questions.extend takes a threshold or a share, one of the two")
        if self.by == "completed" and not self.judge:
            raise ValueError("questions.extend.by is 'completed', which learns from judged pairs; set judge: true")
        return self


class QuestionsConfig(Section):
    """Questions that a language model generates for every content of a corpus (docs/qb-rag.md)."""

    writer: WordedLlmConfig = WordedLlmConfig()
    judge: WordedLlmConfig | None = None
    """The model that judges whether a content answers a question; None: the writer."""
    per_content: Annotated[int, Field(ge=1)] = 20
    """Questions requested per content; a model may write more or fewer."""
    about: str = "written by experts to inform and advise people"
    """Description of the contents in the prompt, after "a text …"."""
    words: Annotated[int, Field(ge=1)] = 1500
    """Words of a content shown to writer and judge, title included."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum tokens of the writer's answer, which has all questions of a content."""
    writer_temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature of the writer; 0 is greedy. The judge is always greedy."""
    form: AnswerForm = "json"
    """Answer format of the writer and a structured judge: JSON, or labelled lines, which small models follow better."""
    judge_form: Literal["structured", "yes_no"] = "structured"
    """structured: an explanation and a verdict. yes_no: the more probable first token of Yes and No."""
    judge_tokens: Annotated[int, Field(ge=1)] = 256
    """structured: maximum tokens of the judge's answer."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Write questions for this many contents, drawn with `seed`; None: all. The others cannot be retrieved."""
    dates: str | None = None
    """JSON-lines file with `_id` and `date` (YYYY-MM-DD): newer contents win ties. May be corpus.jsonl itself."""
    mean: Annotated[float, Field(gt=0)] | None = None
    """Down-sample to this mean number of questions per content (m̄); None: keep all."""
    sample: Literal["set", "content"] = "set"
    """set: sample uniformly from all questions. content: at most `mean` (a whole number) questions per content."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Random seed of the writer, of `limit` and of the down-sampling; a smaller sample is a subset of a larger one."""
    extend: ExtendConfig | None = None
    """Add contents to existing questions; None: each question keeps only the contents that it was written for."""

    @model_validator(mode="after")
    def _check_sample(self) -> "QuestionsConfig":
        if self.sample == "content" and (self.mean is None or self.mean != int(self.mean)):
            raise ValueError(f"questions.sample is 'content' and questions.mean is {self.mean}; give a whole number")
        return self
