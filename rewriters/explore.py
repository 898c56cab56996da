"""The explore level: the retriever is named and introduced, and the model works out how to query it."""

from ..configs.schema import RewriterConfig
from .levels import LevelRewriter, introduce
from .plans import AnswerReader
from .retriever_info import RetrieverInfo

TASK = (
    "You turn a question into the query with which this retriever ranks the documents that answer it highest. No "
    "strategy is given: from what you know about it, work out what kind of text it matches best (think of wording, "
    "length and form), and write the query in that way."
)

AGAIN = (
    "Judge by these results what the retriever responded to, revise your strategy where they speak against it, and "
    "write a better rewrite."
)


def explore(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> LevelRewriter:
    """Build the rewriter of this level for the `retriever`."""
    return LevelRewriter(
        name="explore",
        reader=AnswerReader(config, k),
        instructions=f"{introduce(retriever)}\n\n{TASK}",
        again=AGAIN,
        reason="what you know of this retriever, what it therefore ranks high, and what to write for it",
    )
