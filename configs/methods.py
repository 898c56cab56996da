"""Settings of methods, ways from a question to a context: each method has a section of its own (docs/methods.md)."""

from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from .rewriter import ChrConfig, HcqrConfig, MultiQueryConfig
from .section import Section

_ONLY = [""]
"""The sources of a method that searches the only knowledge base there is."""


class AskingConfig(Section):
    """How a method asks that is a rewriter, or expands the query."""

    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest answer of the model, thinking included."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of its answers."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of sampled answers."""


class OneQueryConfig(AskingConfig):
    """A method that makes one query."""

    k: Annotated[int, Field(ge=1)] = 15
    """Documents of the context."""


class MultiQueryMethodConfig(AskingConfig, MultiQueryConfig):
    """`multi_query`."""


class HcqrMethodConfig(AskingConfig, HcqrConfig):
    """`hcqr`: max_tokens is for the queries, hypothesis_tokens for the hypothesis."""


class ChrMethodConfig(OneQueryConfig, ChrConfig):
    """`chr`."""


class PassageConfig(OneQueryConfig):
    """`query2doc`: the question and a written passage."""

    keep_question_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Weight of the question in the query; None is what the rewriter does by itself (docs/rewriters.md)."""


class HydeConfig(PassageConfig):
    """`hyde`: the mean of the question and of sampled passages."""

    passages: Annotated[int, Field(ge=1)] = 8
    """Passages for each question."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """Above 0, so that the passages differ; 0 with one passage is greedy."""


class TaggedConfig(PassageConfig):
    """`general`, `explore`, `direct`, `small`: rewrites in tags."""

    rewrite_weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Weight of the rewrite in its probe."""
    max_rewrites: Annotated[int, Field(ge=1)] = 4
    """Rewrites allowed in one answer; more is a format failure."""
    prompt: str = "hpo"
    """`small` only: the few-shot prompt, by its packaged name or as the path of a YAML file."""


class CsqeConfig(OneQueryConfig):
    """`csqe`: sentences of the documents found first, and passages of the model's own."""

    documents: Annotated[int, Field(ge=1)] = 10
    """Documents of the first ranking from which sentences are picked."""
    picks: Annotated[int, Field(ge=1)] = 2
    """How often sentences are picked."""
    passages: Annotated[int, Field(ge=1)] = 2
    """Passages of the model's own; the question weighs as much as all of them."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Of both."""
    document_words: Annotated[int, Field(ge=1)] = 128
    """Words that the model is shown of each document."""


class ThinkQeConfig(OneQueryConfig):
    """`thinkqe`: expansion round by round, each after a look at what the last one found."""

    rounds: Annotated[int, Field(ge=1)] = 3
    """Expansions, each after a search."""
    documents: Annotated[int, Field(ge=1)] = 10
    """Documents shown in a round; none of them was shown before."""
    temperature: Annotated[float, Field(ge=0)] = 0.6
    """Of the expansions."""
    expansion_words: Annotated[float, Field(gt=0)] = 3.0
    """Words of expansions for each word of the question, which is repeated until it is so (at least once)."""
    document_words: Annotated[int, Field(ge=1)] = 128
    """Words that the model is shown of each document."""


class AnswersConfig(Section):
    """A method that can write the final answer itself."""

    answers: bool = True
    """False leaves the answer to whoever reads the context."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Longest answer, a draft of it included."""


class DirectGenConfig(AnswersConfig):
    """`direct_gen`: no retrieval."""


class CotConfig(Section):
    """`cot`: no retrieval, step by step."""

    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest answer, its thoughts included."""


class ReadingConfig(AnswersConfig):
    """A method that shows passages to its model."""

    document_words: Annotated[int, Field(ge=1)] = 200
    """Words that the model is shown of each passage."""


class SourcesConfig(ReadingConfig):
    """A method that searches the same knowledge bases every time."""

    sources: list[str] = _ONLY
    """The knowledge bases, each searched for its share of `k`; "" is the only one, or the first."""
    k: Annotated[int, Field(ge=1)] = 4
    """Passages of one search, all queries and sources together."""

    @model_validator(mode="after")
    def _a_share_for_each(self) -> "SourcesConfig":
        _shared("k", self.k, "sources", self.sources)
        return self


class StdRagConfig(SourcesConfig):
    """`std_rag`: the question as it stands."""


class MigresConfig(SourcesConfig):
    """`migres`: search for what is missing, each step a prompt of its own."""

    rounds: Annotated[int, Field(ge=1)] = 3
    """Searches at most, the first one included."""
    queries: Annotated[int, Field(ge=1)] = 4
    """Queries of one round at most."""
    form_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest reply of each step."""


class MisknowConfig(ReadingConfig):
    """`misknow`: one judgement of what is missing, and a search for that."""

    first: list[str] = _ONLY
    """The knowledge bases of the first search, each searched for its share of `first_k`."""
    second: list[str] = _ONLY
    """The knowledge bases of further searches, likewise."""
    first_k: Annotated[int, Field(ge=1)] = 2
    """Passages of the first search."""
    second_k: Annotated[int, Field(ge=1)] = 2
    """Passages of a further search, all queries together."""
    rounds: Annotated[int, Field(ge=1)] = 1
    """Further searches at most, each after a draft and a judgement; 1 is the paper's."""
    queries: Annotated[int, Field(ge=1)] = 4
    """Queries of one judgement at most."""
    reasoning: bool = True
    """Whether the final prompt shows the thoughts of the judgement."""
    reasoning_words: Annotated[int, Field(ge=1)] = 200
    """Words of those thoughts that are shown."""
    judge_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longest judgement, thinking included."""

    @model_validator(mode="after")
    def _a_share_for_each(self) -> "MisknowConfig":
        _shared("first_k", self.first_k, "first", self.first)
        _shared("second_k", self.second_k, "second", self.second)
        return self


class QaRagConfig(Section):
    """`qa_rag`: search with a written answer."""

    k: Annotated[int, Field(ge=1)] = 10
    """Documents that are kept; with `rerank` each of the two searches gives as many."""
    rerank: bool = False
    """Search with the question as well, and let a cross-encoder keep the best of both."""
    source: str = ""
    """The knowledge base; "" is the only one, or the first."""
    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Longest written answer."""


class RerankMethodConfig(Section):
    """`rerank`: a cross-encoder keeps the best of many candidates."""

    candidates: Annotated[int, Field(ge=1)] = 150
    """Documents that are found with the question."""
    k: Annotated[int, Field(ge=1)] = 15
    """Documents that are kept."""
    source: str = ""
    """The knowledge base; "" is the only one, or the first."""

    @model_validator(mode="after")
    def _keeps_some_of_them(self) -> "RerankMethodConfig":
        if self.k > self.candidates:
            raise ValueError(f"k={self.k} of {self.candidates} candidates are to be kept; k is 1 up to their number")
        return self


class MainRagConfig(Section):
    """`main_rag`: each document is answered from and judged alone."""

    k: Annotated[int, Field(ge=1)] = 15
    """Documents that are found with the question, and judged."""
    deviations: Annotated[float, Field(ge=0)] = 0.0
    """Standard deviations by which a score may lie under the mean; 0 is the HCQR paper's rule."""
    first_logprobs: Annotated[int, Field(ge=2)] = 20
    """Likeliest first tokens of the judge that are looked at."""
    source: str = ""
    """The knowledge base; "" is the only one, or the first."""
    document_words: Annotated[int, Field(ge=1)] = 400
    """Words that both agents are shown of a document."""
    max_tokens: Annotated[int, Field(ge=1)] = 32
    """Longest predicted answer."""


class TrainingFreeConfig(Section):
    """What the training-free baselines share."""

    k: Annotated[int, Field(ge=1)] = 15
    """Documents of the context. An evaluation takes its own depth."""
    source: str = ""
    """The knowledge base; "" is the only one, or the first."""


class FirstTitlesConfig(TrainingFreeConfig):
    """`first_titles`: the question, and the titles of the documents that it finds first."""

    n: Annotated[int, Field(ge=1, le=32)] = 1
    """Titles that are added."""
    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.2
    """Weight of each title; the question's is 1."""


class Rm3Config(TrainingFreeConfig):
    """`rm3`: the question, and the most likely terms of the documents that it finds first."""

    fb_docs: Annotated[int, Field(ge=1, le=1000)] = 10
    """Feedback documents."""
    fb_terms: Annotated[int, Field(ge=1, le=60)] = 10
    """Expansion terms."""
    original_query_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the question; the expansion terms share the rest."""


class WeightedWordsConfig(TrainingFreeConfig):
    """`weighted_words`: the question, and its own first content words once more."""

    n: Annotated[int, Field(ge=1)] = 3
    """Content words, from the first on."""
    weight: Annotated[float, Field(allow_inf_nan=False)] = 0.3
    """Their weight; the question's is 1."""


TrainingFreeName = Literal["first_titles", "rm3", "weighted_words"]
TRAINING_FREE: Mapping[TrainingFreeName, type[TrainingFreeConfig]] = {
    "first_titles": FirstTitlesConfig,
    "rm3": Rm3Config,
    "weighted_words": WeightedWordsConfig,
}
"""The training-free baselines, which stand in every evaluation: rewriters without a model."""


def _shared(k: str, count: int, setting: str, sources: Sequence[str]) -> None:
    if not sources or len(set(sources)) < len(sources):
        raise ValueError(f"{setting} is {list(sources)}; name at least one knowledge base, and each once")
    if count < len(sources):
        raise ValueError(f"{k} is {count}, and {setting} names {len(sources)}; ask for one passage each, or more")
