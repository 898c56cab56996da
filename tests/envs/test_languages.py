"""Retrievers with a query language: FTS5 against SQLite alone, native queries, what is refused, and hostile ones."""

import json
import sqlite3
from collections import Counter
from random import Random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.environment import DatasetConfig, EnvironmentConfig, HybridConfig, MemberConfig, RerankConfig
from querylect.configs.schema import ClientConfig, RewriterConfig
from querylect.data.beir import documents_of, load_beir, save_beir
from querylect.data.documents import write_corpus
from querylect.data.knowledge_bases import write_chunks
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index, build_shard, merge_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.index import verify_index
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.fts5 import DATABASE
from querylect.envs.retrievers.language import MAX_ERROR, refusal
from querylect.envs.schemas import Step
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, IndexFolderError, RequestError
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..encoders import save_cross_encoder
from ..jsonl import write_jsonl
from ..raising import refused
from .wings import PROBES, documents, plan, save

CORPUS = [
    *documents(40),
    Document("accent", "Naïve", "a nai\u0308ve cafe\u0301, twice naive"),
    Document("broken", "NUL\0", "a pair of wings\0and a propeller"),
]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fts5")
    dataset = save(folder / "data", CORPUS)
    config = EnvironmentConfig(retriever="fts5", dataset=dataset, index=str(folder / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="module")
def environment(config):
    return Environment.open(config)


@pytest.fixture(scope="module")
def plain():
    """A table with contents, in the order of the corpus."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize='porter unicode61')")
    for row, document in enumerate(CORPUS):
        database.execute("INSERT INTO t(rowid, body) VALUES (?, ?)", (row, document.contents.replace("\0", " ")))
    return database


def native(text, k=50, **changes):
    return SearchPlan(probes=(Probe(terms=(Term(text=text),)),), k=k, mode="native", **changes)


def bm25(plain, query):
    return {
        CORPUS[row].id: -score for row, score in plain.execute("SELECT rowid, bm25(t) FROM t WHERE t MATCH ?", [query])
    }


def scores_by_hand(plain, terms):
    """Σ wᵢ·BM25 of every word alone."""
    totals = Counter()
    for text, weight in terms:
        for word in text.split():
            for name, score in bm25(plain, f'"{word}"').items():
                totals[name] += weight * score
    return {name: score for name, score in totals.items() if score > 1e-12}


def check(ranking, scores):
    """The ranking has these scores, best first."""
    assert {hit.id for hit in ranking} == set(scores)
    np.testing.assert_allclose([hit.score for hit in ranking], sorted(scores.values(), reverse=True), rtol=1e-9)
    for hit in ranking:
        assert hit.score == pytest.approx(scores[hit.id])


TEXTS = [*PROBES, [("heat heat of wing", 0.5), ("wing wing", 0.5)], [("heat", 0.1), ("wing", 0.2), ("drag heat", 0.3)]]


def test_texts_rank_by_the_weighted_sum_of_their_words(environment, plain):
    """Alone, together, and cut."""
    plans = [plan(terms, k=50) for terms in TEXTS]
    together = environment.rank(plans)
    for terms, ranking in zip(TEXTS, together, strict=True):
        check(ranking, scores_by_hand(plain, terms))
        assert environment.rank([plan(terms, k=50)]) == [ranking]
        assert environment.rank([plan(terms, k=7)]) == [ranking[:7]]
    assert sum(map(len, together)) > 100


def test_equal_scores_are_in_one_order_whatever_the_weights(environment):
    """That of a hash, not of the corpus; a second text that matches nothing changes none of it."""
    (one,) = environment.rank([plan([("heat", 1.0)], k=50)])
    (several,) = environment.rank([plan([("heat", 1.0), ("nowhere", -0.5)], k=50)])
    assert [hit.id for hit in one] == [hit.id for hit in several]
    (score, ties), *_ = Counter(hit.score for hit in one).most_common(1)
    tied = [hit.id for hit in one if hit.score == score]
    assert ties > 2
    (listed,) = environment.rank([native("heat")])
    assert listed == one
    assert tied != sorted(tied)


@given(text=st.text())
def test_any_text_is_searched_and_any_native_query_answered(environment, text):
    words, asked = environment.rank([plan([(text, 1.0)]), native(text)])
    assert (words.error, words.hits) == (None, None)
    assert (asked.error is None) or not asked


def test_a_long_text_is_read_to_its_limit_and_counted(environment, monkeypatch):
    monkeypatch.setattr("querylect.envs.retrievers.fts5.MAX_TEXT_WORDS", 2)
    short, long = environment.rank([plan([("heat wing", 1.0)], k=50), plan([("heat wing nowhere drag", 1.0)], k=50)])
    assert (short.truncated, long.truncated) == (0, 1)
    assert short == long


def test_accents_halves_of_pairs_and_nul_are_text(environment):
    queries = ["naive", "nai\u0308ve", "NAÏVE", "café", "propeller", "wings \0 x", "\ud800", "\0", " "]
    found = [{hit.id for hit in ranking} for ranking in environment.rank([plan([(text, 1.0)], 50) for text in queries])]
    assert found[:5] == [{"accent"}] * 4 + [{"broken"}]
    assert "broken" in found[5]
    assert found[6:] == [set()] * 3
    (result,) = environment.search([native("propeller")])
    assert result.ranking[0].text == CORPUS[-1].text


@pytest.mark.parametrize(
    "query",
    [
        "heat wing",
        "heat AND wing NOT slab",
        "lift OR (drag layer)",
        '"heat air"',
        "hea*",
        "NEAR(wing air, 3)",
        "^wing",
        "wing + air",
        "text: heat",
        "{text}: (heat NOT wing)",
        '"" OR drag',
        "heat OR heat OR wing",
        "or",
    ],
)
def test_a_native_query_is_what_sqlite_finds(environment, plain, query):
    (result,) = environment.rank([native(query)])
    expected = bm25(plain, query.replace("text", "body"))
    check(result, expected)
    assert (result.hits, result.error, result.truncated) == (len(expected), None, 0)
    assert environment.rank([native(query, k=2), native("heat")])[0] == result[:2]
    assert environment.rank([native(query, k=2)])[0].hits == result.hits


def test_hits_are_counted_to_a_bound_and_with_what_a_question_leaves_out(environment, monkeypatch):
    (result,) = environment.rank([native("heat", k=3, without=("d1",))])
    assert result.hits > 20
    assert len(result) == 3
    monkeypatch.setattr("querylect.envs.retrievers.fts5.HITS_BOUND", 5)
    assert environment.rank([native("heat OR wing", k=3)])[0].hits == 5


REFUSED = {
    "boat, ship": 'fts5: syntax error near ","',
    "boat-ship": "no such column: ship",
    "what helps?": 'fts5: syntax error near "?"',
    "(heat": 'fts5: syntax error near ""',
    '"heat': "unterminated string",
    "heat NOT": 'fts5: syntax error near ""',
    "NEAR(heat wing, x)": 'expected integer, got "x"',
    "rank: heat": "no such column: rank",
    '"a\nb": heat': "no such column: a b",
    "*reads": "* begins",
    "*id": "* begins",
    "he*": "he* begins",
    '"wing he"*': "he* begins",
    "he \n *": "he* begins",
    "": "empty",
    " \t": "empty",
    "heat\0": "NUL",
    "heat \ud800": "surrogate",
    "heat " * 12: "repeats",
    "wing " * 400: "400 words",
    " OR ".join(f"word{i}*" for i in range(9)): "9 words with *",
    "x" * 2001: "2001 characters",
    "(" * 17 + "heat" + ")" * 17: "17 parentheses",
}


@pytest.mark.parametrize("query", REFUSED)
def test_a_refused_query_is_an_answer_in_the_engines_words(environment, query):
    (result,) = environment.rank([native(query)])
    assert (list(result), result.hits) == ([], 0)
    assert REFUSED[query] in result.error
    (step,) = environment.step([Step(question_id="q", plan=native(query))])
    assert (step.reward, step.hits, step.error) == (0.0, 0, result.error)


def test_operators_are_no_words_of_the_bounds(environment):
    words = [f"word{i}" for i in range(64)]
    fine, near, long = environment.rank(
        [native(query) for query in (" OR ".join(words), " OR ".join(["NEAR (a)"] * 8), " OR ".join([*words, "heat"]))]
    )
    assert (fine.error, fine.hits, near.error) == (None, 0, None)
    assert "65 words" in long.error


@pytest.mark.parametrize("word", ["HEAT", '"AND"', "NEAR", "AND\u200b", '"x""OR"'])
def test_what_is_no_operator_is_a_word_of_the_bounds(environment, word):
    """A repeated word takes FTS5 time by the square of the repetitions."""
    assert "repeats" in environment.rank([native(" OR ".join([word] * 12))])[0].error


def test_an_error_is_cut(environment):
    (result,) = environment.rank([native(f"{'x' * 1500}: heat")])
    assert result.error.startswith("no such column: xxx")
    assert len(result.error) == MAX_ERROR


def test_one_refused_text_refuses_its_plan_and_no_other(environment):
    probes = tuple(Probe(terms=(Term(text=text),)) for text in ("heat", "heat,"))
    broken, whole, words = environment.rank(
        [SearchPlan(probes=probes, mode="native"), native("heat"), plan([("heat,", 1.0)])]
    )
    assert (list(broken), broken.hits) == ([], 0)
    assert whole
    assert (words.error, words.hits) == (None, None)
    both = SearchPlan(probes=(probes[0], Probe(terms=(Term(text="drag"),))), mode="native", k=50)
    (merged,) = environment.rank([both])
    single = environment.rank([native("heat"), native("drag")])
    assert merged.hits == max(ranking.hits for ranking in single)
    assert {hit.id for hit in merged} == {hit.id for ranking in single for hit in ranking}


@pytest.mark.parametrize("terms", [(Term(text="heat", weight=0.5),), (Term(text="heat"), Term(text="wing"))])
def test_a_native_plan_with_weights_is_a_wrong_request(environment, terms):
    with refused(RequestError, "native", "weights"):
        environment.rank([SearchPlan(probes=(Probe(terms=terms),), mode="native")])


def test_a_native_query_of_a_retriever_without_a_language_is_a_wrong_request(small_environment):
    with refused(RequestError, "native", "bm25"):
        Environment.open(small_environment).rank([native("heat")])
    with refused(ConfigError, "env.order", "bm25"):
        Environment.open(small_environment.model_copy(update={"order": "date"}))


def dated(folder):
    dates = {"a": "2001-05-06", "b": None, "c": "2020", "d": "2019-12-31T10:00:00", "e": 2021, "f": "2020-01-01"}
    rows = [
        {"_id": name, "title": "", "text": "heat", **({"metadata": {"date": date}} if date else {})}
        for name, date in dates.items()
    ]
    folder.mkdir()
    write_jsonl(folder / "corpus.jsonl", *rows, {"_id": "g", "text": "heat", "metadata": ["2030"]})
    write_jsonl(folder / "queries.jsonl", {"_id": "q", "text": "heat"})
    (folder / "qrels").mkdir()
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\ta\t1\n")
    return DatasetConfig(path=str(folder))


def test_by_date_the_newest_come_first_and_survive_a_copy_of_the_dataset(tmp_path):
    config = EnvironmentConfig(retriever="fts5", dataset=dated(tmp_path / "data"), index=str(tmp_path / "index"))
    build_index(config)
    by_date = Environment.open(config.model_copy(update={"order": "date"}))
    (listed,) = by_date.rank([native("heat OR nowhere")])
    ids = [hit.id for hit in listed]
    assert ids[:4] == ["f", "c", "d", "a"]
    assert sorted(ids[4:]) == ["b", "e", "g"]
    assert [hit.score for hit in listed] == sorted((hit.score for hit in listed), reverse=True)
    for terms in ([("heat", 1.0)], [("heat", 2.0), ("nowhere", 0.5), ("heat", -1.0)]):
        assert [hit.id for hit in by_date.rank([plan(terms, 3)])[0]] == ids[:3]
    assert by_date.rank([plan([("heat", -1.0)])]) == [[]]
    assert [hit.id for hit in Environment.open(config).rank([native("heat")])[0]] == ids, "ties are in this order, too"
    assert by_date.info().settings_hash != Environment.open(config).info().settings_hash
    assert "by date" in by_date.info().retriever["query_language"]
    save_beir(load_beir(config.dataset.path), tmp_path / "copy")
    write_corpus(tmp_path / "copy", tmp_path / "corpus")
    write_chunks(tmp_path / "copy", tmp_path / "chunks")
    copied, passages, chunks = (list(documents_of(tmp_path / name)) for name in ("copy", "corpus", "chunks"))
    dates = [document.date for document in load_beir(config.dataset.path).corpus]
    assert [document.date for document in copied] == [document.date for document in passages] == dates
    assert [document.date for document in chunks] == dates[:1], "of equal chunks the first is kept"


def test_shards_and_parts_make_the_same_index(config, tmp_path, monkeypatch):
    monkeypatch.setattr("querylect.envs.build.BLOCK_BYTES", 100)
    cut = config.model_copy(update={"index": str(tmp_path / "cut")})
    assert sum(build_shard(cut, shard, 2) for shard in (2, 1)) > 4
    assert merge_index(cut).index_hash == verify_index(config.index).index_hash


@pytest.mark.parametrize("damage", ["missing", "empty", "noise", "half", "changed"])
def test_a_damaged_database_is_no_index(config, tmp_path, damage):
    copy = config.model_copy(update={"index": str(tmp_path / "index")})
    build_index(copy)
    file = tmp_path / "index" / DATABASE
    content = file.read_bytes()
    changed = content[:-1] + bytes([content[-1] ^ 1])
    file.write_bytes(
        {"empty": b"", "noise": b"x" * len(content), "half": content[: len(content) // 2]}.get(damage, changed)
    )
    if damage == "missing":
        file.unlink()
    with refused(IndexFolderError, DATABASE):
        verify_index(copy.index)
    if damage != "changed":
        with refused(IndexFolderError, copy.index):
            Environment.open(copy)


@pytest.mark.model
def test_a_second_stage_and_a_hybrid_take_words_alone(config, tmp_path):
    cross = save_cross_encoder(tmp_path / "cross")
    reranking = config.model_copy(update={"rerank": RerankConfig(model=cross, depth=3)})
    members = [MemberConfig(index=config.index, retriever="fts5"), MemberConfig(retriever="bm25")]
    hybrid = EnvironmentConfig(
        dataset=config.dataset,
        retriever="hybrid",
        index=str(tmp_path / "hybrid"),
        hybrid=HybridConfig(members=members, depth=5),
    )
    build_index(hybrid)
    (first,) = Environment.open(config).rank([plan([("heat", 1.0), ("wing", -0.2)], 5)])
    for made in (reranking, hybrid):
        environment = Environment.open(made)
        (ranking,) = environment.rank([plan([("heat", 1.0), ("wing", -0.2)], 3)])
        assert len(ranking) == 3
        if made is reranking:
            assert {hit.id for hit in ranking} == {hit.id for hit in first[:3]}
        with refused(RequestError, "native"):
            environment.rank([native("heat", 3)])
        with refused(ConfigError, "env.order"):
            Environment.open(made.model_copy(update={"order": "date"}))
        info = RetrieverInfo.from_service(environment.info().retriever)
        assert info.query_language == ""
        with refused(ConfigError, "rewriter.query", info.name):
            make_rewriter(RewriterConfig(name="few_shot", query="native"), info)


PIECES = [
    *("heat", "wing", "hea*", "he*", '"heat air"', '"heat', "OR", "AND", "NOT", "NEAR(", "NEAR(heat wing, 3)", ")"),
    *("(", "text:", "{text}:", "- text:", "{", "}", "^", "+", "*", "*reads", "*id", "rank", "rank:", "bm25(10.0)"),
    *(":", ",", "-", "NEAR(NEAR(heat, 1), 2)", "'; DROP TABLE d; --", "\\", "%", "\U0001f6a2", "вода", "漢字"),
    *("e\u0301", "\u200b", "\x01", "\n", "99999999999999999999", "?", "''", '""', "ALL", "or", "<|im_end|>", "x" * 700),
    *("heat " * 70, "(" * 20, "a OR " * 9, "\0", "d MATCH 'x'", "SELECT * FROM d", "near/3", "[heat]", "~heat"),
    *("heat~2", "/he.*/", "\ufffd", "\ufeff", "\u202e"),
]  # fmt: skip


def hostile(seed):
    draw = Random(seed)
    joint = draw.choice(["", " ", " ", " OR "])
    return joint.join(draw.choice(PIECES) for _ in range(draw.randint(1, draw.choice([3, 8, 40]))))


@pytest.mark.server
@pytest.mark.parametrize("order", ["score", "date"])
def test_hostile_queries_are_answered_and_others_beside_them(config, run_app, order):
    """Three hundred, each in a request with a good one: hits, or an error of bounded length."""
    queries = [hostile(seed) for seed in range(300)]
    app = create_app(Environment.open(config.model_copy(update={"order": order})))
    with run_app(app) as url, EnvironmentClient(ClientConfig(urls=[url], deadline=60)) as client:
        (expected,) = client.search([native("heat")])
        for query in queries:
            bad, good = client.search([native(query), native("heat")], with_text=False)
            assert [hit.id for hit in good.ranking] == [hit.id for hit in expected.ranking]
            assert (bad.error is None) or (not bad.ranking and bad.hits == 0 and 0 < len(bad.error) <= MAX_ERROR)
            assert bad.error is not None or len(bad.ranking) == bad.hits or bad.hits > 50
        assert client.last_failure is None
    outcomes = Counter(refusal(query) is None for query in queries)
    assert min(outcomes.values()) > 50, "both the bounds and the engine are tried"


@pytest.mark.server
def test_the_service_takes_a_half_of_a_pair_for_no_request(config, run_app):
    import httpx

    body = json.dumps({"plans": [{"mode": "native", "probes": [{"terms": [{"text": "heat \ud800"}]}]}]})
    with run_app(create_app(Environment.open(config))) as url:
        answer = httpx.post(f"{url}/v1/search", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422


@pytest.mark.parametrize(("with_text", "texts"), [(True, 6), (False, 0), (0, 0), (2, 2), (100, 6)])
def test_so_many_hits_carry_their_texts(environment, with_text, texts):
    (result,) = environment.search([native("heat", 6)], with_text=with_text)
    assert [hit.text is not None for hit in result.ranking] == [True] * texts + [False] * (6 - texts)
    (step,) = environment.step([Step(question_id="q", plan=native("heat", 6))], with_text=with_text)
    assert step.ranking == result.ranking


def test_a_question_keeps_its_excluded_documents_out(tmp_path):
    corpus = [Document("a", "", "heat"), Document("b", "", "heat heat")]
    split = Split([Question("q", "heat", excluded=("b",))], {"q": {"a": 1}})
    save_beir(Dataset("tiny", corpus, {"test": split}), tmp_path / "data")
    dataset = DatasetConfig(path=str(tmp_path / "data"))
    config = EnvironmentConfig(retriever="fts5", dataset=dataset, index=str(tmp_path / "index"))
    build_index(config)
    (step,) = Environment.open(config).step([Step(question_id="q", plan=native("heat", 1))], metrics=["setp@1"])
    assert ([hit.id for hit in step.ranking], step.hits, step.metrics["setp@1"]) == (["a"], 2, 1.0)
