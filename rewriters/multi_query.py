"""Multi-query: the question in several wordings, each searched by itself (the HCQR paper, sections 4.3 and B.4).

The paper's Rewriting baseline, with the prompt family of LC-MQR (Kuo et al. 2025): exactly three versions of the
question, five documents for each, their union without duplicates, at most 15 documents. With `options`, the prompt
shows the answer options: the control of table 5. The paper names no order of the union; here it goes rank by rank
(`plans.union`). The prompt is worded by this project.
"""

from collections.abc import Sequence

from ..configs.rewriter import RewriterConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from .case import case_text
from .parts import PartsRewriter
from .plans import union
from .retriever_info import RetrieverInfo

VERSION = "multi-query-1"

_EXAMPLE_QUESTION = Question("", "Which vitamin do people lack who get scurvy?")
_VERSIONS = (
    "What deficiency causes scurvy?",
    "Which missing vitamin leads to bleeding gums in scurvy?",
    "What vitamin prevents scurvy?",
)


def multi_query(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> PartsRewriter:
    """Build the rewriter. Its plans ask for `plans.BUDGET` documents, whatever `k` is: that is the method."""
    numbers = range(1, len(_VERSIONS) + 1)

    def task(question: Question) -> str:
        return (
            f"You are an assistant that prepares searches. Write exactly {len(_VERSIONS)} different versions of the "
            "question below, with which relevant documents are found in a vector database. Each version looks at the "
            "question from another side, so that together they find what a search by distance would miss with one "
            f"wording alone.\n\n{case_text(question, config.options)}"
        )

    def plan(question: Question, texts: Sequence[str]) -> SearchPlan:
        return union(texts)

    return PartsRewriter(
        name="multi_query",
        version=VERSION,
        labels=tuple(f"Sub-query {number}" for number in numbers),
        task=task,
        field_hints=tuple(f"version {number} of the question" for number in numbers),
        plan=plan,
        example=(_EXAMPLE_QUESTION, _VERSIONS),
        options=config.options,
    )
