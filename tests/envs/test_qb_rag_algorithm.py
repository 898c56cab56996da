"""Algorithm 1 of QB-RAG worked out by hand, its tie rules, and equality with a loop over the matrix on random data."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.envs.plan import Probe, Term
from querylect.envs.retrievers.base import Scored
from querylect.envs.retrievers.qb_rag import (
    AnswerabilityEntry,
    Content,
    QuestionRetriever,
    first_contents,
    in_tie_order,
    matrix,
)

PROBE = Probe(terms=(Term(text="?"),))


def answers(**pairs):
    """Answers by question: `answers(q1="a b")`."""
    return [
        AnswerabilityEntry(question=question, content=content, source="written")
        for question, contents in pairs.items()
        for content in contents.split()
    ]


def contents(names, rounds=None):
    return {name: Content(id=name, hash="", round=(rounds or {}).get(name, 0)) for name in names.split()}


def ranked(*questions):
    """Questions by index, best first, with scores 1, 1/2, 1/3, …"""
    return Scored(np.array(questions, dtype=np.int64), 1.0 / np.arange(1, len(questions) + 1))


def ranked_contents(order, ranking, k, names="abcd"):
    ends, rows = matrix(order, ["q1", "q2", "q3", "q4"], {name: index for index, name in enumerate(names)})
    got = first_contents(ranking, ends, rows, k)
    return "".join(names[index] for index in got.documents), got.scores.tolist()


ONE_EACH = {"q1": ["a"], "q2": ["a"], "q3": ["b"], "q4": ["c"]}


def test_contents_come_in_the_order_of_their_most_similar_question():
    """q3, q1, q2, q4: b, a, a again (not counted), c; d has no question and is never there, however large k is."""
    for k in (1, 2, 3, 4):
        assert ranked_contents(ONE_EACH, ranked(2, 0, 1, 3), k) == ("bac"[:k], [1.0, 1 / 2, 1 / 4][:k])


def test_newer_content_comes_first_then_more_questions():
    pairs = answers(q1="a b c d", q2="d", q3="d b", q4="b d")
    order = in_tie_order(pairs, contents("a b c d", {"a": 1, "c": 2}))
    assert order["q1"] == ["c", "a", "d", "b"]
    assert order["q3"] == ["d", "b"], "4 questions against 3"


def test_chance_decides_last_and_evenly_and_the_same_way_again():
    pairs, three = answers(**{f"q{number}": "a b c" for number in range(300)}), contents("a b c")
    order = in_tie_order(pairs, three)
    assert order == in_tie_order(pairs[::-1], three), "it does not depend on the order of the pairs"
    first = [row[0] for row in order.values()]
    assert all(70 < first.count(name) < 130 for name in "abc")


class Fixed:
    """Ranks questions by fixed scores and records the requested depths."""

    def __init__(self, scores):
        self.scores, self.depths = np.asarray(scores), []

    def rank(self, probes, limits):
        self.depths.append(list(limits))
        order = np.lexsort((np.arange(len(self.scores)), -self.scores))
        order = order[self.scores[order] > 0]
        return [Scored(order[:limit], self.scores[order[:limit]]) for limit in limits]


def algorithm_1(a, z, k, order):
    """The pseudocode, line by line, over the whole matrix; `order` gives the contents of a column in tie order."""
    chosen = []
    for j in sorted(range(a.shape[1]), key=lambda j: (-z[j], j)):
        if z[j] <= 0:
            break
        for i in order[j]:
            assert a[i, j]
            if i not in chosen:
                chosen.append(i)
            if len(chosen) == k:
                return chosen
    return chosen


@settings(max_examples=60)
@given(st.data())
def test_equal_to_the_pseudocode_on_random_matrices(data):
    size = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 150))
    draw = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    a = draw.random(size) < data.draw(st.sampled_from([0.02, 0.15, 0.6]))
    z = np.round(draw.normal(0.5, 1, size[1]), 1)
    names, columns = [f"c{i}" for i in range(size[0])], [f"q{j}" for j in range(size[1])]
    rounds = {name: int(draw.integers(3)) for name in names}
    pairs = answers(**{columns[j]: " ".join(names[i] for i in np.flatnonzero(a[:, j])) for j in range(size[1])})
    contents_by_name = contents(" ".join(names), rounds)
    order = in_tie_order(pairs, contents_by_name)
    number = a.sum(axis=1)
    for j, column in enumerate(columns):
        ranks = [(contents_by_name[name].round, number[names.index(name)]) for name in order.get(column, ())]
        assert ranks == sorted(ranks, reverse=True)
        assert set(order.get(column, ())) == {names[i] for i in np.flatnonzero(a[:, j])}
    by_place = [[names.index(name) for name in order.get(column, ())] for column in columns]
    ends, rows = matrix(order, columns, {name: index for index, name in enumerate(names)})
    base = Fixed(z)
    limits = [1, 2, 5, size[0]]
    got = QuestionRetriever(base, ends, rows).rank([PROBE] * len(limits), limits)
    for limit, ranking in zip(limits, got, strict=True):
        assert ranking.documents.tolist() == algorithm_1(a, z, limit, by_place)
        best = [max(z[j] for j in range(size[1]) if a[i, j]) for i in ranking.documents]
        assert ranking.scores.tolist() == best, "the score of a content is its most similar question's"


def test_more_questions_are_ranked_only_until_there_are_enough_contents():
    """100 questions of one content before the only one of another: 17, 68, then all are looked at."""
    ends, rows = np.arange(201), np.array([0] * 100 + [1] * 100)
    base = Fixed(np.arange(200, 0, -1.0))
    (ranking,) = QuestionRetriever(base, ends, rows).rank([PROBE], [1])
    assert (ranking.documents.tolist(), base.depths) == ([0], [[17]])
    base.depths.clear()
    (ranking,) = QuestionRetriever(base, ends, rows).rank([PROBE], [2])
    assert (ranking.documents.tolist(), ranking.scores.tolist()) == ([0, 1], [200, 100])
    assert base.depths == [[18], [72], [200]]
