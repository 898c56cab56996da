"""Settings of rewriters: what the policy is asked, and how its answer becomes a search plan."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from .llm import AnswerForm, LlmConfig
from .section import Section

QueryRole = Literal["support", "distinction", "key_features"]
"""The three queries of HCQR, in their order."""


class MultiQueryConfig(Section):
    """`multi_query`: paraphrases of the question, each searched by itself (docs/methods.md)."""

    queries: Annotated[int, Field(ge=1, le=10)] = 3
    """Paraphrases in one answer."""
    options: bool = False
    """Show the answer options, where the question has some."""
    per_query: Annotated[int, Field(ge=1)] = 5
    """Documents that each query contributes."""
    budget: Annotated[int, Field(ge=1)] = 15
    """Most documents of the union."""


class HcqrConfig(Section):
    """`hcqr`: three queries that test a hypothesis about the answer (docs/methods.md)."""

    options: bool = True
    """Show the answer options, where the question has some, to the model that forms the hypothesis."""
    without: list[QueryRole] = []
    """Queries that are not searched, for ablations."""
    per_query: Annotated[int, Field(ge=1)] = 5
    """Documents that each query contributes."""
    budget: Annotated[int, Field(ge=1)] = 15
    """Most documents of the union."""
    hypothesis_tokens: Annotated[int, Field(ge=1)] = 1024
    """Longest answer of the model that forms the hypothesis, its thinking included."""

    @field_validator("without")
    @classmethod
    def _one_query_is_left(cls, without: list[QueryRole]) -> list[QueryRole]:
        if len(set(without)) == 3:
            raise ValueError("without names all three queries, and nothing would be searched; keep one")
        return without


class ChrConfig(Section):
    """`chr`: a target hypothesis minus a mimic (docs/methods.md)."""

    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """λ, the weight of the mimic; 0 searches with the target alone."""
    adaptive: bool = False
    """Lower the penalty where target and mimic are alike."""
    alike_from: Annotated[float, Field(ge=0, lt=1)] = 0.5
    """adaptive: similarity from which on the penalty falls, to 0 at a similarity of 1."""
    similarity: str = "letters"
    """adaptive: `letters` compares spellings; or a sentence encoder, by folder, package:NAME, Hub id or recipe."""
    field: Literal["medicine", "any"] = "medicine"
    """What the prompt speaks of: diagnoses, as in the paper, or answers of any field."""


class RewriterConfig(Section):
    """What the model is asked, and how its answer becomes a search plan."""

    name: str = "small"
    """`general`, `explore` or `direct` (Yuan et al.'s prompt levels), `small` (few-shot, for small models), `hyde` or
    `query2doc` (the whole answer is a passage to search with), `multi_query`, `hcqr` or `chr` (docs/methods.md)."""
    keep_question_weight: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    """Weight of the question itself in every probe; 0 searches with the rewrite alone. None is what the rewriter does
    by itself: 0, but 1 for hyde, and 5 (BM25) or 1 for query2doc."""
    rewrite_weight: Annotated[float, Field(allow_inf_nan=False)] = 1.0
    """Weight of the rewrite in its probe."""
    max_rewrites: Annotated[int, Field(ge=1)] = 4
    """Rewrites allowed in one answer; more is a format failure."""
    prompt: str = "hpo"
    """`small` only: the few-shot prompt, by its packaged name or as the path of a YAML file."""
    multi_query: MultiQueryConfig = MultiQueryConfig()
    hcqr: HcqrConfig = HcqrConfig()
    chr: ChrConfig = ChrConfig()
    llm: LlmConfig | None = None
    """`hcqr` only: the frozen model that forms the hypotheses; None is the policy's own base model."""
    form: AnswerForm = "json"
    """`hcqr` only: how it writes them, as the paper's JSON, or as labelled lines, which a small model keeps to."""

    @property
    def unread(self) -> set[str]:
        """Sections that belong to other rewriters: what this one answers does not depend on them."""
        own = {self.name, "llm", "form"} if self.name == "hcqr" else {self.name}
        return {"multi_query", "hcqr", "chr", "llm", "form"} - own
