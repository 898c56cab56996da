"""Ranking metrics: by hand, against pytrec_eval on random and real runs, and by name."""

from math import log2

import numpy as np
import pytest
import pytrec_eval
from hypothesis import given
from hypothesis import strategies as st
from querylect.errors import ConfigError
from querylect.rewards.metrics import measure, mrr, ndcg, recall

from ..raising import refused

KS = (1, 3, 5, 10, 100)
EXACT = 1e-12


def assert_as_trec_eval(rankings, qrels, level=1):
    """Every metric at every k equals pytrec_eval's; the rankings are given to it as strictly falling scores."""
    depths = ",".join(map(str, KS))
    measures = {f"{name}.{depths}" for name in ("ndcg_cut", "recall", "map_cut", "P", "success")}
    measures |= {"ndcg", "recip_rank", "map", "Rprec"}
    run = {
        question: {document: float(len(ranking) - position) for position, document in enumerate(ranking)}
        for question, ranking in rankings.items()
    }
    expected = pytrec_eval.RelevanceEvaluator(qrels, measures, relevance_level=level).evaluate(run)
    assert expected.keys() == rankings.keys()

    def value(name):
        return measure(name, relevance_level=level)(ranking, judged)

    for question, ranking in rankings.items():
        judged, theirs = qrels[question], expected[question]
        assert ndcg(ranking, judged, k=None) == pytest.approx(theirs["ndcg"], abs=EXACT)
        for name, of_library in {"mrr": "recip_rank", "map": "map", "r-precision": "Rprec"}.items():
            assert value(name) == pytest.approx(theirs[of_library], abs=EXACT), name
        names = {"ndcg": "ndcg_cut", "recall": "recall", "map": "map_cut", "p": "P", "success": "success"}
        for k in KS:
            for name, of_library in names.items():
                assert value(f"{name}@{k}") == pytest.approx(theirs[f"{of_library}_{k}"], abs=EXACT), (name, k)
            reciprocal = theirs["recip_rank"] if theirs["recip_rank"] * k >= 1 - EXACT else 0.0
            assert value(f"mrr@{k}") == pytest.approx(reciprocal, abs=EXACT)


def test_equal_to_trec_eval_on_random_graded_runs():
    random = np.random.default_rng(7)
    names = [f"d{n}" for n in range(150)]
    rankings, qrels = {}, {}
    for number in range(150):
        question = f"q{number}"
        judged = random.choice(names, size=random.integers(1, 40), replace=False)
        qrels[question] = {str(document): int(random.integers(0, 5)) for document in judged}
        ranked = random.choice(names, size=random.integers(1, len(names) + 1), replace=False)
        rankings[question] = [str(document) for document in ranked]
    for level in (1, 2, 4):
        assert_as_trec_eval(rankings, qrels, level)


@given(
    st.lists(st.integers(0, 30), min_size=1, unique=True),
    # trec_eval itself may not return where all grades are negative
    st.dictionaries(st.integers(0, 30), st.integers(-2, 4), min_size=1).filter(
        lambda judged: max(judged.values()) >= 0
    ),
    st.integers(1, 4),
)
def test_equal_to_trec_eval_on_any_run(ranking, judged, level):
    qrels = {"q": {str(document): grade for document, grade in judged.items()}}
    assert_as_trec_eval({"q": [str(document) for document in ranking]}, qrels, level)


@pytest.mark.parametrize("name", ["ndcg@5", "recall@5", "mrr", "map", "map@5", "p@5", "success@5", "r-precision"])
def test_negative_judgements_alone_are_worth_nothing(name):
    judged = {"a": -1, "b": -2}
    assert [measure(name, relevance_level=level)(["c", "a", "b"], judged) for level in (1, 2, 4)] == [0, 0, 0]
    assert measure("judged@2")(["c", "a", "b"], judged) == 0.5


@pytest.mark.parametrize("collection", ["cranfield", "scifact", "hpo_lay"])
def test_equal_to_trec_eval_on_real_runs(realdata, collection):
    import bm25s
    import Stemmer
    from querylect.data.beir import load_beir

    dataset = load_beir(realdata / collection)
    questions, qrels = dataset.splits["test"].questions, dataset.splits["test"].qrels
    stemmer = Stemmer.Stemmer("english")
    index = bm25s.BM25(method="lucene", k1=1.2, b=0.75)
    contents = [document.contents for document in dataset.corpus]
    index.index(bm25s.tokenize(contents, stopwords="en", stemmer=stemmer, show_progress=False), show_progress=False)
    tokens = bm25s.tokenize(
        [question.text for question in questions], stopwords="en", stemmer=stemmer, show_progress=False
    )
    indices, _ = index.retrieve(tokens, k=100, show_progress=False)
    rankings = {
        question.id: [dataset.corpus[position].id for position in row]
        for question, row in zip(questions, indices, strict=True)
    }
    assert_as_trec_eval(rankings, {question: dict(judged) for question, judged in qrels.items()})


def test_ndcg_by_hand():
    ranking, judged = ["b", "x", "a"], {"a": 3, "b": 1, "c": 2}
    by_hand = (1 / log2(2) + 3 / log2(4)) / (3 / log2(2) + 2 / log2(3) + 1 / log2(4))
    assert ndcg(ranking, judged) == measure("ndcg@10")(ranking, judged) == pytest.approx(by_hand, abs=1e-15)
    equal = {"a": 1, "b": 1, "c": 1}
    assert ndcg(["a"], equal, k=10) == pytest.approx(1 / (1 + 1 / log2(3) + 1 / log2(4))), "of all that are relevant"
    assert (ndcg(["a"], equal, k=1), ndcg(["x", "a"], equal, k=1)) == (1.0, 0.0), "but only k of them"


def test_binary_metrics_by_hand_with_grade_1_and_with_grade_2_as_relevant():
    """TREC Deep Learning: grade 1 is "related" and no hit."""
    ranking, judged = ["a", "x", "b", "c"], {"a": 1, "b": 2, "c": 3, "d": 2, "x": 0}
    at_1 = {"mrr": 1, "p@2": 1 / 2, "recall@3": 2 / 4, "success@1": 1, "r-precision": 3 / 4}
    at_2 = {"mrr": 1 / 3, "p@2": 0, "recall@3": 1 / 3, "success@1": 0, "r-precision": 1 / 3}
    at_1 |= {"map": (1 + 2 / 3 + 3 / 4) / 4, "map@3": (1 + 2 / 3) / 4}
    at_2 |= {"map": (1 / 3 + 2 / 4) / 3, "map@3": (1 / 3) / 3}
    for level, values in {1: at_1, 2: at_2}.items():
        for name, value in values.items():
            assert measure(name, relevance_level=level)(ranking, judged) == pytest.approx(value), (name, level)
    assert measure("ndcg@10", relevance_level=2)(ranking, judged) == ndcg(ranking, judged)


def test_judged_counts_grade_0_and_no_document_beyond_k_or_the_ranking():
    judged = {"a": 2, "x": 0}
    assert measure("judged@2")(["x", "y", "a"], judged) == 1 / 2
    assert measure("judged@10")(["x", "y", "a"], judged) == 2 / 3
    assert measure("judged@10")([], judged) == 0.0


def test_edges():
    for name in ("ndcg@10", "recall@10", "mrr@10", "mrr", "map", "map@5", "success@3"):
        score = measure(name)
        assert score(["a", "b"], {"a": 2, "z": 0}) == 1.0
        assert score([], {"a": 1}) == score(["a"], {}) == score(["a"], {"a": 0, "b": -1}) == 0.0
        with pytest.raises(ValueError, match="document 'b'"):
            score(["a", "b", "c", "b"], {"a": 1})


def test_depth_is_counted_from_one_and_includes_k():
    ranking, judged = ["x", "y", "a", "b"], {"a": 1, "b": 1}
    assert [mrr(ranking, judged, k) for k in (1, 2, 3, None)] == [0.0, 0.0, 1 / 3, 1 / 3]
    assert [recall(ranking, judged, k) for k in (2, 3, 4, None)] == [0.0, 0.5, 1.0, 1.0]
    assert ndcg(ranking, judged, 2) == 0.0
    assert ndcg(ranking, judged, 3) == pytest.approx((1 / log2(4)) / (1 + 1 / log2(3)))
    for metric in (ndcg, recall, mrr):
        with pytest.raises(ValueError, match="k is 0"):
            metric(["a"], {"a": 1}, 0)


@given(
    st.lists(st.integers(0, 12), unique=True),
    st.dictionaries(st.integers(0, 12), st.integers(-1, 4)),
    st.sampled_from(["ndcg@1", "ndcg@5", "recall@3", "mrr", "mrr@2", "map", "judged@4", "p@3", "setp@4", "f3@9"]),
)
def test_between_zero_and_one_and_one_for_the_ideal(ranking, judged, name):
    score = measure(name)
    grades = {str(document): grade for document, grade in judged.items()}
    assert 0.0 <= score([str(document) for document in ranking], grades) <= 1.0
    ideal = sorted(grades, key=lambda document: -grades[document])
    if any(grade > 0 for grade in grades.values()) and name not in ("recall@3", "judged@4", "p@3", "setp@4", "f3@9"):
        assert score(ideal, grades) == 1.0


def test_metrics_of_a_set_equal_trec_eval_and_a_computation_by_hand():
    """pytrec_eval judges whole rankings, so each is cut first; its set_F takes β²."""
    random = np.random.default_rng(3)
    for _ in range(60):
        judged = {
            f"d{i}": int(random.integers(-1, 4)) for i in random.choice(40, random.integers(1, 30), replace=False)
        }
        ranking = [f"d{i}" for i in random.permutation(40)[: random.integers(0, 41)]]
        level, k = int(random.integers(1, 3)), int(random.integers(1, 50))
        relevant, found = {name for name, grade in judged.items() if grade >= level}, set(ranking[:k])
        precision = len(found & relevant) / len(found) if found else 0.0
        recalled = len(found & relevant) / len(relevant) if relevant else 0.0
        assert measure(f"setp@{k}", level)(ranking, judged) == pytest.approx(precision, abs=EXACT)
        for beta in (1, 3, 9):
            weighed = beta**2 * precision + recalled
            expected = (1 + beta**2) * precision * recalled / weighed if weighed else 0.0
            assert measure(f"f{beta}@{k}", level)(ranking, judged) == pytest.approx(expected, abs=EXACT)
        if found and any(grade > 0 for grade in judged.values()):
            run = {"q": {name: float(-rank) for rank, name in enumerate(ranking[:k])}}
            grades = {"q": {name: max(0, grade) for name, grade in judged.items()}}
            evaluator = pytrec_eval.RelevanceEvaluator(grades, {"set_P", "set_F.1"}, relevance_level=level)
            theirs = evaluator.evaluate(run)["q"]
            assert theirs["set_P"] == pytest.approx(precision, abs=EXACT)
            f1 = next(value for name, value in theirs.items() if name.startswith("set_F"))
            assert measure(f"f1@{k}", level)(ranking, judged) == pytest.approx(f1, abs=EXACT)


def test_an_unknown_name_gets_the_known_ones():
    for name in (
        "ndcg",
        "ndcg@0",
        "ndcg@-1",
        "NDCG@10",
        "ndcg@10 ",
        "map@",
        "judged",
        "",
        "recall@1.5",
        "f0@5",
        "f10@5",
        "f1",
    ):
        with refused(ConfigError, repr(name), "ndcg@k", "recall@k", "judged@k", "r-precision"):
            measure(name)
