"""How good an estimate Â of the oracle matrix is: against judged pairs that it has not seen, and for retrieval.

A, the matrix of what was written for what, knows one content of most questions. *Own* pairs are those of A; *cross*
pairs, judged besides, are what Â has to find. They are dealt into folds; completion learns from own pairs and the other
folds, and precision and recall are counted on all folds together. A itself has a recall of 0 here; what it is worth
shows in nDCG@10.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from ..configs.schema import EnvironmentConfig, ExtendConfig
from ..data.corpus import open_corpus
from ..data.sampling import draw
from ..envs.answerable import first_contents, in_tie_order, matrix
from ..envs.index import open_index, open_retriever
from ..envs.plan import Probe, Term
from ..envs.qb_rag import questions_settings
from ..envs.question_index import Answer, QuestionIndex
from ..errors import DataError
from ..rewards.measure import measure
from .extend import Similar, completed_matrix

Pair = tuple[str, str]
"""Ids of a question and of a content."""
METRIC = "ndcg@10"


@dataclass(frozen=True, slots=True)
class Estimate:
    """One estimate: how its cross pairs agree with the judge, and what retrieval gains by it."""

    name: str
    pairs: int
    """Entries of the matrix that retrieval uses."""
    right: int
    """Held-out pairs that it takes for answered and that are; then those that are not, and those that it overlooks."""
    wrong: int
    overlooked: int
    ndcg: float | None = None
    """Mean nDCG@10 of the questions of the split; None where it was not measured."""

    @property
    def precision(self) -> float | None:
        """None where it takes no held-out pair for answered."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        """None where no held-out pair is answered."""
        return self.right / (self.right + self.overlooked) if self.right + self.overlooked else None


def folds(pairs: Sequence[Pair], count: int, seed: int) -> list[list[Pair]]:
    """The pairs, shuffled and dealt out."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    return [[pairs[place] for place in order[number::count].tolist()] for number in range(count)]


def agreement(name: str, taken: set[Pair], held: Mapping[Pair, bool], pairs: int) -> Estimate:
    """Count an estimate of the held-out pairs against their verdicts."""
    right = sum(held[pair] for pair in taken & held.keys())
    return Estimate(name, pairs, right, len(taken & held.keys()) - right, sum(held.values()) - right)


def by_completion(
    judged: Mapping[Pair, bool],
    own: set[Pair],
    questions: Sequence[str],
    contents: Sequence[str],
    extend: ExtendConfig,
    count: int = 5,
    seed: int = 0,
) -> set[Pair]:
    """The cross pairs that completion takes for answered, each from the folds without it."""
    row = {name: number for number, name in enumerate(contents)}
    column = {name: number for number, name in enumerate(questions)}
    taken: set[Pair] = set()
    for fold in folds(sorted(judged.keys() - own), count, seed):
        if not fold:
            continue
        hidden = set(fold)
        seen = {pair: yes for pair, yes in judged.items() if pair not in hidden}
        completed = completed_matrix(seen, questions, contents, extend)
        rows = np.array([row[content] for _, content in fold])
        values = completed.at(rows, np.array([column[question] for question, _ in fold]))
        taken |= {pair for pair, value in zip(fold, values.tolist(), strict=True) if value >= extend.cut}
    return taken


class Retrieval:
    """nDCG@10 of a split for any matrix over the same questions."""

    def __init__(self, env: EnvironmentConfig, index: QuestionIndex, split: str, limit: int | None = None) -> None:
        """Rank all questions of the index for every question of the split, once. Raises as opening the index does."""
        assert env.question_index is not None, "the settings of qb-rag name its question index"
        base = open_index(env.question_index.index)
        self._contents = index.contents()
        self._names = list(self._contents)
        self._questions = [base.documents.id(place) for place in range(len(base.documents))]
        self._own, self._gain = env.question_index, env.gain
        splits = open_corpus(env.dataset).questions(_Any()).splits
        if split not in splits:
            raise DataError(f"the dataset has no split {split!r}; it has {', '.join(splits)}.")
        asked = draw(splits[split].questions, limit, env.question_index.seed)
        self._judged = [splits[split].qrels[question.id] for question in asked]
        retriever = open_retriever(base, questions_settings(env))
        probes = [Probe(terms=(Term(text=question.text),)) for question in asked]
        self._ranked = retriever.rank(probes, [len(self._questions)] * len(probes))

    def ndcg(self, answers: Sequence[Answer]) -> float:
        """Mean nDCG@10 with this matrix."""
        order = in_tie_order(answers, self._contents, self._own.seed)
        ends, rows = matrix(order, self._questions, {name: place for place, name in enumerate(self._names)})
        score = measure(METRIC, self._gain)
        every = self._own.answers == "all"
        found = (first_contents(ranked, ends, rows, 10, every).documents.tolist() for ranked in self._ranked)
        rankings = [[self._names[place] for place in places] for places in found]
        return fmean(score(ranking, judged) for ranking, judged in zip(rankings, self._judged, strict=True))


def compare(
    answers: Sequence[Answer],
    own: set[Pair],
    judged: Mapping[Pair, bool],
    similar: Similar,
    questions: Sequence[str],
    contents: Sequence[str],
    extend: ExtendConfig,
    shares: Sequence[float],
    retrieval: Retrieval | None = None,
) -> Iterator[Estimate]:
    """A, Â by each share of similar pairs (unjudged, then judged), Â by completion, and both together.

    `answers` with the pairs `own` are A; `similar` holds similarities by place in `questions`.
    """
    held = {pair: yes for pair, yes in judged.items() if pair not in own}
    first = [answer for answer in answers if (answer.question, answer.content) in own]

    def scored(estimate: Estimate, more: set[Pair]) -> Estimate:
        extra = [
            Answer(question=question, content=content, source="similar", judged=False)
            for question, content in sorted(more - own)
        ]
        ndcg = retrieval.ndcg([*first, *extra]) if retrieval is not None else None
        return replace(estimate, ndcg=ndcg, pairs=len(first) + len(extra))

    yield scored(agreement("A", set(), held, 0), set())
    for share in shares:
        threshold = similar.threshold(share, len(questions) * len(contents))
        above = {(questions[place], content) for place, content in similar.above(threshold)}
        yield scored(agreement(f"similar, {share:.2%} (≥ {threshold:.3g})", above, held, 0), above)
        kept = {pair for pair in above if judged.get(pair, False)}
        yield scored(agreement(f"similar, {share:.2%}, judged", kept, held, 0), kept)
    taken = by_completion(judged, own, questions, contents, extend)
    completed = completed_matrix(judged, questions, contents, extend)
    inferred = {(questions[column], contents[row]) for row, column in completed.at_least(extend.cut)}
    inferred = {pair for pair in inferred if pair not in judged}
    yield scored(agreement(f"completed (rank ≤ {extend.rank})", taken, held, 0), taken | inferred)
    everything = {pair for pair, yes in held.items() if yes}
    yield scored(agreement("all that was judged", everything, held, 0), everything)
    yield scored(agreement("all that was judged, completed", everything, held, 0), everything | inferred)


class _Any:
    def __contains__(self, _: object) -> bool:
        return True
