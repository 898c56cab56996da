"""How a question or a rewrite is asked of a retriever that has a query language.

A *way* is one for the rewrite of a policy: `native`, as it is written (without the operators where the retriever has no
language); `repaired`, its words without the operators, quoted and joined by OR, which is what such a retriever makes of
a text; `text`, in which an operator is a word.
"""

import re
from collections.abc import Callable, Iterable

from querylect.envs.plan import SearchPlan
from querylect.envs.retrievers.language import words_of
from querylect.methods.training_free import analyse

WAYS = ("native", "repaired", "text")
OPERATOR_WORDS = ("OR", "AND", "NOT", "NEAR")
OPERATOR = re.compile(rf'\b(?:{"|".join(OPERATOR_WORDS)})\b|["*&|!]')  # of FTS5 and of tsquery
TYPED, AND, OR = "the question as typed", "its words joined by AND", "its words joined by OR"
CONTENT, RAREST, ONE = "its content words joined by OR", "its {} rarest words joined by OR", "its rarest word"
DROPPING = "AND, dropping the {} word until something is found"
FREE = (TYPED, AND, OR, CONTENT, RAREST.format("n"), ONE, DROPPING.format("rarest"), DROPPING.format("most frequent"))
MOST = 5  # words of RAREST


def operands(query: str) -> list[str]:
    """The words of a native query without its operators."""
    return [word for word in words_of(query) if word not in OPERATOR_WORDS]


def asked(way: str, rewrite: str, has_language: bool, k: int) -> SearchPlan:
    """The plan of a rewrite for a retriever with or without a language."""
    if way == "native":
        return SearchPlan.of(rewrite, k, "native") if has_language else SearchPlan.of(OPERATOR.sub(" ", rewrite), k)
    if way == "repaired":
        return SearchPlan.of(" ".join(operands(rewrite)), k)
    return SearchPlan.of(" ".join(words_of(rewrite)) if has_language else rewrite, k)


def free_queries(question: str, frequency: Callable[[str], int]) -> dict[str, str]:
    """The FTS5 query of a question by row of FREE, RAREST for each n. `frequency` is the number of documents that a
    query finds; the rows below CONTENT leave out words that no document has."""
    words = words_of(question)
    content = dict.fromkeys(word for _, word in analyse(question, lexical=False))
    counts = {word: frequency(joined("AND", [word])) for word in map(str.lower, words)}
    rarest = sorted(filter(counts.get, counts), key=counts.__getitem__)
    rows = {TYPED: question, AND: joined("AND", words), OR: joined("OR", words), CONTENT: joined("OR", content)}
    rows[ONE] = joined("OR", rarest[:1])
    rows |= {RAREST.format(n): joined("OR", rarest[:n]) for n in range(1, MOST + 1)}
    for name, remaining in (("rarest", slice(1, None)), ("most frequent", slice(-1))):
        kept = rarest
        while kept and not frequency(joined("AND", kept)):
            kept = kept[remaining]
        rows[DROPPING.format(name)] = joined("AND", kept)
    return rows


def joined(operator: str, words: Iterable[str]) -> str:
    """The words quoted and joined by an operator."""
    return f" {operator} ".join(f'"{word}"' for word in words)
