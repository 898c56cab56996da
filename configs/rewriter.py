"""Settings of rewriters: the policy's prompt, and how its answer becomes a search plan."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from .llm import LlmConfig
from .section import PositiveWeight, Section, Weight

QueryRole = Literal["support", "distinction", "key_features"]
"""The three queries of HCQR, in order."""


class HcqrConfig(Section):
    """`hcqr`: three queries that test a hypothesis about the answer (docs/methods.md)."""

    options: bool = True
    """Show the question's answer options, if it has any, to the model that forms the hypothesis."""
    without: list[QueryRole] = []
    """Queries to leave out of the search, for ablations."""

    @field_validator("without")
    @classmethod
    def _check_without(cls, without: list[QueryRole]) -> list[QueryRole]:
        if len(set(without)) == 3:
            raise ValueError("without names all three queries, and nothing would be searched; keep one")
        return without


class ChrConfig(Section):
    """`chr`: a target hypothesis minus a mimic (docs/methods.md)."""

    penalty: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 1.0
    """λ, the weight of the mimic; 0: search with the target alone."""
    field: Literal["medicine", "any"] = "medicine"
    """Wording of the prompt: diagnoses, as in the paper (medicine), or answers of any field (any)."""


class RewriterConfig(Section):
    """The policy's prompt, and how its answer becomes a search plan."""

    name: str = "few_shot"
    """`general`, `explore` or `direct` (prompt levels of Yuan et al.), `few_shot` (examples, for small models), `hyde`
    or `query2doc` (the whole answer is a passage to search with), `multi_query`, `hcqr`, `chr` (docs/methods.md) or
    `misknow` (two turns, docs/methods_context.md)."""
    keep_question_weight: PositiveWeight | None = None
    """Weight of the question in every probe; 0: search with the rewrite alone. None: the rewriter's default, which is 1
    for hyde, 5 (BM25) or 1 (other retrievers) for query2doc, and 0 for the others."""
    rewrite_weight: Weight = 1.0
    """Weight of a rewrite in its probe."""
    prompt: str = "hpo"
    """`few_shot` only: the few-shot prompt, a packaged name or the path of a YAML file."""
    options: bool = False
    """`multi_query` only: show the question's answer options, if it has any."""
    stop: bool | Literal["answer"] = False
    """Let the policy answer `<stop/>` instead of a rewrite: it keeps the ranking of the turns before and has no further
    turn (docs/stop.md). Without such a ranking, as in turn 1, true searches the question as it stands, and answer
    searches nothing: the reader of `reward.kind: answer` then answers without documents."""
    hcqr: HcqrConfig = HcqrConfig()
    chr: ChrConfig = ChrConfig()
    llm: LlmConfig | None = None
    """`hcqr` only: the frozen model that writes the hypotheses; None: the policy's base model."""
