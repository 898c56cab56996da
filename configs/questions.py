"""Settings of `querylect index questions`: the writer and the judge of a corpus's questions, and which are kept."""

from typing import Annotated, Literal

from pydantic import Field

from .llm import AnswerForm, LlmConfig
from .section import Section


class QuestionsConfig(Section):
    """Questions that a language model generates for every content of a corpus (docs/qb-rag.md)."""

    writer: LlmConfig = LlmConfig()
    judge: LlmConfig | None = None
    """The model that judges whether a content answers a question; None: the writer."""
    per_content: Annotated[int, Field(ge=1)] = 20
    """Questions requested per content; a model may write more or fewer."""
    about: str = "written by experts to inform and advise people"
    """Description of the contents in the prompt, after "a text …"."""
    words: Annotated[int, Field(ge=1)] = 1500
    """Words of a content shown to writer and judge, title included."""
    max_tokens: Annotated[int, Field(ge=1)] = 1024
    """Maximum tokens of the writer's answer, which has all questions of a content."""
    form: AnswerForm = "json"
    """Answer format of the writer and a structured judge: JSON, or labelled lines, which small models follow better."""
    judge_form: Literal["structured", "yes_no"] = "structured"
    """structured: an explanation and a verdict. yes_no: the more probable first token of Yes and No."""
    judge_tokens: Annotated[int, Field(ge=1)] = 256
    """structured: maximum tokens of the judge's answer."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Write questions for this many contents, drawn at random; None: all. The others cannot be retrieved."""
    mean: Annotated[float, Field(gt=0)] | None = None
    """Down-sample all questions to this mean number per content (m̄); None: keep all. A smaller sample is a subset of a
    larger one."""
