"""Settings of methods, one section per method (docs/methods.md)."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field

from .llm import ShownConfig
from .section import MAX_WEIGHT, PositiveWeight, Section, Weight

Count = Annotated[int, Field(ge=1)]
Sources = Annotated[list[str], Field(min_length=1)]
ONLY = [""]
"""Sources of a method that searches the only knowledge base."""


QueryRole = Literal["support", "distinction", "key_features"]
"""The three queries of HCQR, in order."""


class HcqrConfig(Section):
    """HCQR: three queries that test a hypothesis about the answer (docs/methods.md)."""

    options: bool = True
    """Show the question's answer options, if it has any, to the model that forms the hypothesis."""
    without: Annotated[list[QueryRole], Field(max_length=2)] = []
    """Queries to leave out of the search, for ablations."""


class ChrConfig(Section):
    """CHR: a target hypothesis minus a mimic (docs/methods.md)."""

    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """λ, the weight of the mimic; 0: search with the target alone."""
    field: Literal["medicine", "any"] = "medicine"
    """Wording of the prompt: diagnoses, as in the paper (medicine), or answers of any field (any)."""


class PromptConfig(Section):
    """A method with prompts of its own."""

    prompt: str | None = None
    """Template file of the prompts, with the macros of methods/NAME.j2; None: that file."""


class AskingConfig(Section):
    """Sampling settings of methods that rewrite or expand the query."""

    max_tokens: Count = 512
    """Maximum tokens of an answer, thinking included."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature; 0 is greedy."""


class ContextConfig(Section):
    """A method with one ranking."""

    k: Count = 15
    """Documents of the context."""


class OneQueryConfig(AskingConfig, ContextConfig):
    """A method with one query."""


class MultiQueryMethodConfig(AskingConfig):
    """`multi_query`: paraphrases of the question, each searched separately."""

    options: bool = False
    """Show the question's answer options, if it has any."""


class HcqrMethodConfig(AskingConfig, HcqrConfig):
    """`hcqr`: `max_tokens` limits the queries."""


class ChrMethodConfig(OneQueryConfig, ChrConfig):
    """`chr`: a target hypothesis minus a mimic."""


class PassageConfig(OneQueryConfig):
    """`query2doc`: the question and a generated passage."""

    keep_question_weight: PositiveWeight | None = None
    """Weight of the question in the query; None: the rewriter's default (docs/rewriters.md)."""


class HydeConfig(PassageConfig):
    """`hyde`: the mean of the question and sampled passages."""

    passages: Count = 8
    """Passages sampled per question."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """Sampling temperature; above 0, so that the passages differ. 0 with one passage is greedy."""


class CsqeConfig(OneQueryConfig, PromptConfig):
    """`csqe`: expand with sentences of the first ranking's documents, and with generated passages."""

    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Sampling temperature of picks and passages."""


class ThinkQeConfig(OneQueryConfig, PromptConfig):
    """`thinkqe`: expand in rounds, each conditioned on the documents that the previous query retrieved."""

    temperature: Annotated[float, Field(ge=0)] = 0.6
    """Sampling temperature of the expansions."""


class CotConfig(AskingConfig, PromptConfig):
    """`cot`: no retrieval, step-by-step reasoning."""


class ReadingConfig(PromptConfig, ShownConfig):
    """A method that can write the final answer, from passages or without."""

    answers: bool = True
    """Write the final answer; false: return only the context, for a shared reader."""
    max_tokens: Count = 256
    """Maximum tokens of an answer or a draft."""


class DirectGenConfig(ReadingConfig):
    """`direct_gen`: no retrieval."""


class SourcesConfig(ReadingConfig):
    """A method that searches the same knowledge bases in every search."""

    sources: Sources = ONLY
    """The knowledge bases, each searched for its share of `k`; "": the only one, or the first."""
    k: Count = 4
    """Passages per search, over all queries and sources."""


class StdRagConfig(SourcesConfig):
    """`std_rag`: search with the question, then answer."""


class MigresConfig(SourcesConfig):
    """`migres`: iterative search for missing information, with one prompt per step."""


class MisknowConfig(ReadingConfig):
    """`misknow`: judge which knowledge is missing, and search for it."""

    first: Sources = ONLY
    """Knowledge bases of the first search, each searched for its share of `first_k`."""
    second: Sources = ONLY
    """Knowledge bases of the second search, each searched for its share of `second_k`."""
    first_k: Count = 2
    """Passages of the first search."""
    second_k: Count = 2
    """Passages of the second search, over all queries."""
    reasoning: bool = True
    """Show the judgement's reasoning in the final prompt."""
    judge_tokens: Count = 1024
    """Maximum tokens of a judgement, thinking included."""


class QaRagConfig(PromptConfig):
    """`qa_rag`: search with a generated answer."""

    k: Count = 10
    """Documents of the context."""
    max_tokens: Count = 256
    """Maximum tokens of the generated answer."""


class RerankMethodConfig(ContextConfig):
    """`rerank`: a cross-encoder selects from many candidates."""

    candidates: Count = 150
    """Documents retrieved with the question."""


class MainRagConfig(PromptConfig, ContextConfig):
    """`main_rag`: answer from each document separately, and judge each."""

    max_tokens: Count = 32
    """Maximum tokens of a predicted answer."""


class FirstTitlesConfig(Section):
    """`first_titles`: the question and the titles of its top documents."""

    n: Annotated[int, Field(ge=1, le=32)] = 1
    """Number of titles."""
    weight: Annotated[float, Field(gt=0, le=MAX_WEIGHT, allow_inf_nan=False)] = 0.2
    """Weight of each title; the question's is 1."""


class Rm3Config(Section):
    """`rm3`: the question and the most likely terms of its top documents."""

    fb_docs: Annotated[int, Field(ge=1, le=1000)] = 10
    """Number of feedback documents."""
    fb_terms: Annotated[int, Field(ge=1, le=60)] = 10
    """Number of expansion terms."""
    original_query_weight: Annotated[float, Field(ge=0, le=1)] = 0.5
    """Weight of the question; the expansion terms share the rest."""


class WeightedWordsConfig(Section):
    """`weighted_words`: the question, with its first content words repeated."""

    n: Count = 3
    """Number of content words."""
    weight: Weight = 0.3
    """Weight of the content words; the question's is 1."""


TrainingFreeName = Literal["first_titles", "rm3", "weighted_words"]
TRAINING_FREE: Mapping[TrainingFreeName, type[Section]] = {
    "first_titles": FirstTitlesConfig,
    "rm3": Rm3Config,
    "weighted_words": WeightedWordsConfig,
}
"""The training-free baselines of every evaluation: rewriters without a model, with their weights."""
