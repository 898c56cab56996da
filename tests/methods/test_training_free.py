"""The training-free baselines: RM3 and the two others against plans worked out by hand, over a served BM25 index."""

import math

import pytest
from querylect.configs.environment import DatasetConfig, EnvironmentConfig
from querylect.configs.methods import FirstTitlesConfig, Rm3Config, WeightedWordsConfig
from querylect.configs.schema import ClientConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.eval.training_free import Tuned, answer
from querylect.methods.method import SearchResults
from querylect.methods.training_free import relevance_model, rm3, training_free
from querylect.rewriters.retriever_info import RetrieverInfo

pytestmark = pytest.mark.model

BM25 = RetrieverInfo("bm25", "bm25")
METRICS = ("ndcg@10", "recall@10", "mrr@10")
FILLER = [Document(f"f{number}", f"Filler{number}", f"padding{number} common") for number in range(21)]
CORPUS = [
    Document("lorry", "Truck", "truck hauling hauling cargo common"),
    Document("tip", "Dumper", "dumper truck tipping common"),
    Document("bare", "", "wheelbarrow for one gardener and nothing else in the whole wide world today common"),
    *FILLER,
]
"""24 documents: `common` stands in all of them, so in more than a tenth; `truck` in two, so in fewer."""
QUESTIONS = [Question("q", "A truck with cargo"), Question("w", "the wheelbarrow")]
QRELS = {"q": {"tip": 1}, "w": {"bare": 1}}


def terms(plan):
    """(text, weight) of the one probe of a plan."""
    (probe,) = plan.probes
    return [(term.text, pytest.approx(term.weight)) for term in probe.terms]


@pytest.fixture(scope="module")
def served(tmp_path_factory, run_app):
    """A client of the corpus above."""
    folder = tmp_path_factory.mktemp("served")
    save_beir(Dataset("small", CORPUS, {"test": Split(QUESTIONS, QRELS)}), folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    with (
        run_app(create_app(Environment.open(config))) as url,
        EnvironmentClient(ClientConfig(), urls=[url]) as client,
    ):
        yield client


def search_results(*documents, scores):
    return SearchResults(tuple(documents), tuple(scores))


def test_rm3_is_anserinis_by_hand():
    """Two documents of score 3 and 1, fbTerms 2, λ .6; the question has three words, one of them twice.

    d1 = runner ×2, road ×1, ape ×1 → the two most frequent, of equal ones the alphabetically first: run 2/3, ape 1/3.
    d2 = road ×3, shop ×1 → road 3/4, shop 1/4. Times scores: run 2, ape 1, road .75, shop .25 → run 2/3, ape 1/3.
    """
    first = Document("1", "", "Runs road running ape")
    second = Document("2", "", "road roads road shop")
    settings = Rm3Config(fb_docs=2, fb_terms=2, original_query_weight=0.6)
    third = Document("3", "", "cat cat cat")
    ranking = search_results(first, second, third, scores=(3.0, 1.0, 0.9))
    plan = rm3(settings, BM25, "run the shop run", ranking, 7)
    assert plan.k == 7
    assert terms(plan) == [("run the shop run", 0.6 / 3), ("runs", 0.4 * 2 / 3), ("ape", 0.4 / 3)]


def test_rm3_takes_no_frequent_long_short_or_foreign_term():
    document = Document("1", "Straße", "frequent frequent x ab 42 " + "z" * 21 + " naïve the " + "y" * 20)
    retriever = RetrieverInfo("bm25", "bm25", frequent_terms=("frequent",))
    weights = relevance_model(Rm3Config(original_query_weight=0.0), retriever, search_results(document, scores=(2.0,)))
    assert weights == {"42": pytest.approx(1 / 3), "ab": pytest.approx(1 / 3), "y" * 20: pytest.approx(1 / 3)}


def test_on_a_dense_retriever_the_question_is_one_text_and_documents_count_alike():
    documents = Document("1", "", "cats cats dogs"), Document("2", "", "dogs birds")
    settings, dense = Rm3Config(fb_terms=2, original_query_weight=0.5), RetrieverInfo("contriever", "dense")
    plan = rm3(settings, dense, "what purrs", search_results(*documents, scores=(-0.2, 0.1)), 10)
    # cats 2/3, dogs 1/3 + 1/2 = 5/6, birds 1/2: dogs and cats stay, 5/9 and 4/9 of their sum; no word is stemmed
    assert terms(plan) == [("what purrs", 0.5), ("dogs", 0.5 * 5 / 9), ("cats", 0.5 * 4 / 9)]


def test_first_titles_and_weighted_words_by_hand():
    ranked = search_results(*CORPUS[:3], scores=(3.0, 2.0, 1.0))
    plan = training_free(FirstTitlesConfig(n=3, weight=0.2), BM25).plan("a truck", ranked, 10)
    text = "wheelbarrow for one gardener and nothing else in the whole wide world"
    assert terms(plan) == [("a truck", 1.0), ("Truck", 0.2), ("Dumper", 0.2), (text, 0.2)]
    words = training_free(WeightedWordsConfig(n=2, weight=0.3), BM25)
    assert terms(words.plan("the Truck, a truck for cargo", None, 10)) == [
        ("the Truck, a truck for cargo", 1.0), ("truck cargo", 0.3)
    ]  # fmt: skip
    assert words.plan("the", None, 10) == SearchPlan.of("the")


@pytest.mark.parametrize(
    ("name", "weights", "expected"),
    [
        ("weighted_words", {"n": 1, "weight": 2.0}, [("A truck with cargo", 1.0), ("truck", 2.0)]),
        ("first_titles", {"n": 2, "weight": 0.3}, [("A truck with cargo", 1.0), ("Truck", 0.3), ("Dumper", 0.3)]),
    ],
)
def test_over_a_service_the_ranking_is_that_of_the_plan_by_hand(served, name, weights, expected):
    records = answer(name, served, Tuned(name, weights), QUESTIONS, METRICS)
    assert [record.question_id for record in records] == ["q", "w"]
    plan = SearchPlan.model_validate(records[0].plan)
    assert terms(plan) == expected
    (found,) = served.search([plan])
    assert records[0].ranking == tuple(hit.id for hit in found.ranking)
    assert (records[0].turn, records[0].tokens, records[0].system) == (0, 0, name)
    assert records[0].rewrites == tuple(text for text, _ in expected[1:])


def test_rm3_over_a_service_scores_what_lucene_would(served):
    """The score of the feedback query is Σ w(t)·BM25(t), from the scores of single words."""
    (record, _) = answer("rm3", served, Tuned("rm3", {"fb_docs": 1, "fb_terms": 2}), QUESTIONS, METRICS)
    # lorry is first: truck ×2, hauling ×2, cargo; of these haul and truck stay, half each
    weights = {"truck": 0.5 * 0.5 + 0.5 / 2, "cargo": 0.5 / 2, "hauling": 0.5 * 0.5}
    results = served.search([SearchPlan.of(word, k=24) for word in weights])
    expected = {document.id: 0.0 for document in CORPUS}
    for weight, result in zip(weights.values(), results, strict=True):
        for hit in result.ranking:
            expected[hit.id] += weight * hit.score
    got = dict(zip(record.ranking, record.scores, strict=True))
    assert set(got) == {name for name, score in expected.items() if score}
    assert all(math.isclose(score, expected[name], rel_tol=1e-5) for name, score in got.items())
    assert record.searches == 2
