"""The general level: five ways of rewriting are explained, and the retriever is not named.

The reward alone has to teach what suits the retriever.
"""

from ..configs.schema import RewriterConfig
from .levels import LevelRewriter
from .parse import MAX_REWRITES, REWRITE_CLOSE, REWRITE_OPEN
from .plans import AnswerReader
from .retriever_info import RetrieverInfo

TASK = (
    "You turn a question into a query that a retriever can work with, so that the documents that answer the question "
    "come out on top. A query need not be a question, nor short: keywords, a statement or a whole paragraph will do. "
    "Choose the one of these strategies that suits the question best, and apply it:"
)

UNDERSTAND = (
    "Take the question apart. Name the things it is about, and spell out what each of them means. "
    "'Can I deduct a home office?' becomes 'home office: part of a dwelling used for work; deduction: amount taken off "
    "taxable income; eligibility: conditions for self-employed and employed people'."
)
ENRICH = (
    "Enrich its words. Add what is known about a name ('Marie Curie' → 'physicist Marie Curie, radioactivity'), the "
    "broader or narrower terms of a thing ('trout' → 'freshwater fish, trout, rainbow trout'), or the wording that "
    "documents prefer ('fix a leaky tap' → 'tap washer replacement guide')."
)
DECOMPOSE = (
    "Split it. Where several facts are needed, ask for each in a query of its own. 'Is the Rhine longer than the "
    f"Loire?' becomes '{REWRITE_OPEN}length of the river Rhine{REWRITE_CLOSE}{REWRITE_OPEN}length of the river "
    f"Loire{REWRITE_CLOSE}'."
)
REPHRASE = (
    "Say it in another way. Paraphrase it, state the need behind it, or ask for something near to it that leads to the "
    "same documents: 'Why am I always tired?' may become 'common causes of persistent fatigue in adults', 'moving "
    "to Norway' may become 'Norwegian residence permit rules'."
)
IMAGINE = (
    "Write the document that you hope to find. Compose a passage as it might stand in the collection, such as "
    "lines of a leaflet, a news item or the entry of an encyclopedia, and search with it."
)

AGAIN = (
    "Write a better rewrite with what you have learned. You may keep to your strategy or change to another one of the "
    "list."
)


def general(config: RewriterConfig, retriever: RetrieverInfo, k: int) -> LevelRewriter:
    """Build the rewriter of this level; `retriever` is not shown."""
    strategies = [UNDERSTAND, ENRICH, DECOMPOSE, REPHRASE, IMAGINE]
    strategy_list = "\n".join(f"{number}. {strategy}" for number, strategy in enumerate(strategies, start=1))
    count = (
        f"Give one {REWRITE_OPEN} part; only where you split the question, give one such part for each query, "
        f"{MAX_REWRITES} at most."
    )
    return LevelRewriter(
        name="general",
        reader=AnswerReader(config, k),
        instructions=f"{TASK}\n{strategy_list}",
        again=AGAIN,
        reason="which strategy you choose, why this one, and how you apply it",
        count=count,
    )
