"""Settings of methods: ways from a question to a context (docs/methods.md)."""

from typing import Annotated

from pydantic import Field

from .rewriter import RewriterConfig
from .section import Section


class HydeConfig(Section):
    """`hyde`: the mean of the question and of sampled passages."""

    passages: Annotated[int, Field(ge=1)] = 8
    """Passages for each question."""
    temperature: Annotated[float, Field(ge=0)] = 0.7
    """Above 0, so that the passages differ; 0 with one passage is greedy."""


class CsqeConfig(Section):
    """`csqe`: sentences of the documents found first, and passages of the model's own."""

    documents: Annotated[int, Field(ge=1)] = 10
    """Documents of the first ranking from which sentences are picked."""
    picks: Annotated[int, Field(ge=1)] = 2
    """How often sentences are picked."""
    passages: Annotated[int, Field(ge=1)] = 2
    """Passages of the model's own; the question weighs as much as all of them."""
    temperature: Annotated[float, Field(ge=0)] = 1.0
    """Of both."""


class ThinkQeConfig(Section):
    """`thinkqe`: expansion round by round, each after a look at what the last one found."""

    rounds: Annotated[int, Field(ge=1)] = 3
    """Expansions, each after a search."""
    documents: Annotated[int, Field(ge=1)] = 10
    """Documents shown in a round; none of them was shown before."""
    temperature: Annotated[float, Field(ge=0)] = 0.6
    """Of the expansions."""
    expansion_words: Annotated[float, Field(gt=0)] = 3.0
    """Words of expansions for each word of the question, which is repeated until it is so (at least once)."""


class MethodsConfig(Section):
    """How methods ask and search; a method that has a section of its own is described there."""

    k: Annotated[int, Field(ge=1)] = 15
    """Documents of a context, for methods that search with one query."""
    max_tokens: Annotated[int, Field(ge=1)] = 512
    """Longest answer of the model, thinking included."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Of all answers but those whose section says otherwise."""
    seed: Annotated[int, Field(ge=0)] = 0
    """Of sampled answers."""
    document_words: Annotated[int, Field(ge=1)] = 128
    """Words kept of each document that a method shows to its model."""
    rewriter: RewriterConfig = RewriterConfig()
    """Of methods that are rewriters, such as `multi_query`, `hcqr`, `chr` and `hyde`. Its `name` and `llm` are not
    read: the method has a name, and one model answers everything."""
    hyde: HydeConfig = HydeConfig()
    csqe: CsqeConfig = CsqeConfig()
    thinkqe: ThinkQeConfig = ThinkQeConfig()
