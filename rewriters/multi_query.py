"""Multi-query: the question in several wordings, each searched by itself (the HCQR paper, sections 4.3 and B.4).

The paper's Rewriting baseline, with the prompt family of LC-MQR (Kuo et al. 2025): exactly three versions of the
question, five documents for each, their union without duplicates, at most 15 documents. With `options`, the prompt
shows the answer options: the control of table 5. The paper names no order of the union; here it goes rank by rank
(`plans.union`). The prompt is worded by this project.
"""

from collections.abc import Sequence

from ..configs.schema import RewriterConfig
from ..data.types import Question
from ..envs.plan import SearchPlan
from .case import case_text
from .forms import LineForm
from .plans import union
from .retriever_info import RetrieverInfo
from .template import TemplateRewriter

_TASK = (
    "You are an assistant that prepares searches. Write exactly 3 different versions of the question below, with which "
    "relevant documents are found in a vector database. Each version looks at the question from another side, so that "
    "together they find what a search by distance would miss with one wording alone."
)


def multi_query(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> TemplateRewriter:
    """Build the rewriter. Its plans ask for `plans.BUDGET` documents, whatever `k` is: that is the method."""

    def prompt(question: Question, request: str) -> str:
        return f"{_TASK}\n\n{case_text(question, config.options)}\n\n{request}"

    def plan(question: Question, versions: Sequence[str]) -> SearchPlan:
        return union(versions)

    form = LineForm({f"Sub-query {number}": f"version {number} of the question" for number in (1, 2, 3)})
    return TemplateRewriter("multi_query", form, prompt, plan, options=config.options)
