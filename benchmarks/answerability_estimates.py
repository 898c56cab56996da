"""Evaluates an estimate Â of the oracle matrix: on held-out judged pairs, and by the retrieval it leads to.

A, the matrix of the written questions, has one content for most questions. *Own* pairs are those of A; *cross* pairs
are all other judged pairs, and Â has to find them. Cross pairs are split into folds: completion learns from the own
pairs and the other folds, and precision and recall are counted over all folds together. The recall of A itself is 0
here by definition; nDCG@10 shows what it is worth.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
from querylect.configs.questions import ExtendConfig
from querylect.configs.schema import EnvironmentConfig
from querylect.data.corpus import open_corpus
from querylect.data.sampling import draw
from querylect.envs.index.open import open_index
from querylect.envs.plan import Probe, Term
from querylect.envs.retrievers.answerable import first_contents, in_tie_order, matrix
from querylect.envs.retrievers.open import open_retriever
from querylect.envs.retrievers.qb_rag import questions_settings
from querylect.envs.retrievers.question_index import AnswerabilityEntry, QuestionIndex
from querylect.errors import DataError
from querylect.questions.extend import Similar, completed_matrix
from querylect.rewards.metrics import measure

Pair = tuple[str, str]
"""(question id, content id)."""
METRIC = "ndcg@10"


@dataclass(frozen=True, slots=True)
class AnswerabilityEstimate:
    """One estimate: its agreement with the judge on cross pairs, and its effect on retrieval."""

    name: str
    pairs: int
    """Number of entries of the matrix that retrieval uses."""
    right: int
    """True positives among the held-out pairs; `wrong` are false positives, `overlooked` false negatives."""
    wrong: int
    overlooked: int
    ndcg: float | None = None
    """Mean nDCG@10 of the questions of the split; None if it was not measured."""

    @property
    def precision(self) -> float | None:
        """None if it predicts no held-out pair."""
        return self.right / (self.right + self.wrong) if self.right + self.wrong else None

    @property
    def recall(self) -> float | None:
        """None if no held-out pair is answered."""
        return self.right / (self.right + self.overlooked) if self.right + self.overlooked else None


def folds(pairs: Sequence[Pair], count: int, seed: int) -> list[list[Pair]]:
    """The pairs, shuffled and split into `count` folds."""
    order = np.random.default_rng(seed).permutation(len(pairs))
    return [[pairs[i] for i in order[number::count].tolist()] for number in range(count)]


def agreement(name: str, predicted: set[Pair], held_out: Mapping[Pair, bool], pairs: int) -> AnswerabilityEstimate:
    """Compare the predicted pairs with the verdicts on the held-out pairs."""
    right = sum(held_out[pair] for pair in predicted & held_out.keys())
    return AnswerabilityEstimate(
        name, pairs, right, len(predicted & held_out.keys()) - right, sum(held_out.values()) - right
    )


def by_completion(
    judged: Mapping[Pair, bool],
    own_pairs: set[Pair],
    questions: Sequence[str],
    contents: Sequence[str],
    extend: ExtendConfig,
    count: int = 5,
    seed: int = 0,
) -> set[Pair]:
    """The cross pairs that completion predicts as answered, each from the folds that do not hold it."""
    row = {name: number for number, name in enumerate(contents)}
    column = {name: number for number, name in enumerate(questions)}
    predicted: set[Pair] = set()
    for fold in folds(sorted(judged.keys() - own_pairs), count, seed):
        if not fold:
            continue
        hidden = set(fold)
        visible = {pair: answered for pair, answered in judged.items() if pair not in hidden}
        completed = completed_matrix(visible, questions, contents, extend)
        rows = np.array([row[content] for _, content in fold])
        values = completed.at(rows, np.array([column[question] for question, _ in fold]))
        predicted |= {pair for pair, value in zip(fold, values.tolist(), strict=True) if value >= extend.cut}
    return predicted


class Retrieval:
    """Measures nDCG@10 on a split, for any matrix over the same questions."""

    def __init__(self, env: EnvironmentConfig, index: QuestionIndex, split: str, limit: int | None = None) -> None:
        """Rank all questions of the index for every question of the split, once. Raises as opening the index does."""
        assert env.question_index is not None, "the settings of qb-rag name its question index"
        base = open_index(env.question_index.index)
        self._contents = index.contents()
        self._names = list(self._contents)
        self._questions = [base.documents.id(position) for position in range(len(base.documents))]
        self._config, self._gain = env.question_index, env.gain
        splits = open_corpus(env.dataset).questions(_Any()).splits
        if split not in splits:
            raise DataError(f"the dataset has no split {split!r}; it has {', '.join(splits)}.")
        questions = draw(splits[split].questions, limit, env.question_index.seed)
        self._judged = [splits[split].qrels[question.id] for question in questions]
        retriever = open_retriever(base, questions_settings(env))
        probes = [Probe(terms=(Term(text=question.text),)) for question in questions]
        self._ranked = retriever.rank(probes, [len(self._questions)] * len(probes))

    def ndcg(self, answers: Sequence[AnswerabilityEntry]) -> float:
        """Mean nDCG@10 with this matrix."""
        order = in_tie_order(answers, self._contents, self._config.seed)
        ends, rows = matrix(order, self._questions, {name: position for position, name in enumerate(self._names)})
        score = measure(METRIC, self._gain)
        every = self._config.answers == "all"
        results = (first_contents(ranked, ends, rows, 10, every).documents.tolist() for ranked in self._ranked)
        rankings = [[self._names[position] for position in positions] for positions in results]
        return fmean(score(ranking, judged) for ranking, judged in zip(rankings, self._judged, strict=True))


def compare(
    answers: Sequence[AnswerabilityEntry],
    own_pairs: set[Pair],
    judged: Mapping[Pair, bool],
    similar: Similar,
    questions: Sequence[str],
    contents: Sequence[str],
    extend: ExtendConfig,
    shares: Sequence[float],
    retrieval: Retrieval | None = None,
) -> Iterator[AnswerabilityEstimate]:
    """Yields A, Â from each share of similar pairs (unjudged, then judged), Â from completion, and all judged pairs.

    A is the `answers` whose pairs are in `own_pairs`; `similar` refers to questions by position in `questions`.
    """
    held_out = {pair: answered for pair, answered in judged.items() if pair not in own_pairs}
    own_answers = [answer for answer in answers if (answer.question, answer.content) in own_pairs]

    def scored(estimate: AnswerabilityEstimate, added: set[Pair]) -> AnswerabilityEstimate:
        extra = [
            AnswerabilityEntry(question=question, content=content, source="similar", judged=False)
            for question, content in sorted(added - own_pairs)
        ]
        ndcg = retrieval.ndcg([*own_answers, *extra]) if retrieval is not None else None
        return replace(estimate, ndcg=ndcg, pairs=len(own_answers) + len(extra))

    yield scored(agreement("A", set(), held_out, 0), set())
    for share in shares:
        threshold = similar.threshold(share, len(questions) * len(contents))
        above = {(questions[i], content) for i, content in similar.above(threshold)}
        yield scored(agreement(f"similar, {share:.2%} (≥ {threshold:.3g})", above, held_out, 0), above)
        confirmed = {pair for pair in above if judged.get(pair, False)}
        yield scored(agreement(f"similar, {share:.2%}, judged", confirmed, held_out, 0), confirmed)
    predicted = by_completion(judged, own_pairs, questions, contents, extend)
    completed = completed_matrix(judged, questions, contents, extend)
    inferred = {(questions[column], contents[row]) for row, column in completed.at_least(extend.cut)}
    inferred = {pair for pair in inferred if pair not in judged}
    yield scored(agreement(f"completed (rank ≤ {extend.rank})", predicted, held_out, 0), predicted | inferred)
    all_answered = {pair for pair, answered in held_out.items() if answered}
    yield scored(agreement("all that was judged", all_answered, held_out, 0), all_answered)
    yield scored(agreement("all that was judged, completed", all_answered, held_out, 0), all_answered | inferred)


class _Any:
    def __contains__(self, _: object) -> bool:
        return True
