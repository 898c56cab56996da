"""The retriever `postgres` against a real server: its rankings by plain SQL, refused queries, outages, the table."""

import json
from dataclasses import replace
from hashlib import blake2b
from random import Random

import pytest
from querylect.configs.environment import EnvironmentConfig
from querylect.configs.load import load_config
from querylect.data.types import Document
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.open import verify_indexes
from querylect.errors import ConfigError, EnvironmentUnavailableError, IndexFolderError, RequestError

from ..postgres_server import postgres  # noqa: F401 (fixture)
from ..raising import refused
from .wings import documents, plan, save

pytestmark = pytest.mark.server

DATES = {"d7": "2024-05-01", "d3": "2025-01-31", "d40": "2024-05-01T12:00"}
CORPUS = [
    *(replace(document, date=DATES.get(document.id, "")) for document in documents(60)),
    Document("zero", "a NUL\0", "the red/green wing-tip of an aeroplane"),
    Document("blank", "", "the of and"),
]
SIGNS = "heat wing ' '' \\ \" ( ) ! <-> <3> <-1> : :* :A* :*B * %s % $1 ;-- NULL http://a.b/c?d=e a@b.c - {} T"
RANKED = "SELECT v @@ q, ts_rank(v, q, 1) FROM to_tsvector('english', %s) v, to_tsquery('english', %s) q"


def native(text, k=100):
    return SearchPlan(probes=(Probe(terms=(Term(text=text),)),), k=k, mode="native")


@pytest.fixture(scope="module")
def config(postgres, tmp_path_factory):  # noqa: F811
    folder = tmp_path_factory.mktemp("data") / "mine"
    config = EnvironmentConfig(
        dataset=save(folder, CORPUS), retriever="postgres", index=f"{folder}-index", postgres_url=postgres.url
    )
    build_index(config)
    return config


@pytest.fixture(scope="module")
def opened(config):
    return Environment.open(config)


@pytest.fixture
def sql(config):
    import psycopg

    with psycopg.connect(config.postgres_url) as session:
        yield session


def listed(ids):
    """Ids in the order of `env.order: date`."""
    hashed = sorted(ids, key=lambda name: blake2b(name.encode()).digest())
    return sorted(hashed, key=lambda name: DATES.get(name, ""), reverse=True)


def scores_by_sql(sql, weights):
    """The score of each document with a word of the tsqueries, from its text alone; the best first."""
    scores = {}
    for document in CORPUS:
        text = document.contents.replace("\0", " ")
        rows = [sql.execute(RANKED, (text, query)).fetchone() for query in weights]
        if any(matches for matches, _ in rows):
            scores[document.id] = sum(weight * rank for weight, (_, rank) in zip(weights.values(), rows, strict=True))
    return {name: scores[name] for name in sorted(listed(scores), key=lambda name: -scores[name]) if scores[name] > 0}


@pytest.mark.parametrize(
    "query",
    ["heat & wing", "heats | drag", "heat & !(wing | slab)", "wing <-> heat", "'heat air' | lay:*", "aeroplane"],
)
def test_a_native_query_ranks_as_plain_sql_does(query, opened, sql):
    expected = scores_by_sql(sql, {query: 1.0})
    (ranking,) = opened.rank([native(query)])
    assert [hit.id for hit in ranking] == list(expected)
    assert [hit.score for hit in ranking] == pytest.approx(list(expected.values()))
    assert (ranking.hits, ranking.error) == (len(expected), None)
    assert opened.rank([native(query, 3)])[0] == ranking[:3]


@pytest.mark.parametrize(
    ("terms", "weights"),
    [
        ([("Is there heat, or a wing?", 1.0)], {"heat | wing": 1.0}),
        ([("slab: flow & | !", 2.0), ("heat's", -0.5)], {"slab | flow": 2.0, "heat": -0.5}),
        ([("heat", 1.0), ("heat", -1.0)], {}),
        ([("the?! :*", 1.0)], {}),
    ],
)
def test_a_text_is_asked_as_any_of_its_words_with_its_weight(terms, weights, opened, sql):
    expected = scores_by_sql(sql, weights)
    (ranking,) = opened.rank([plan(terms, 100)])
    assert [hit.id for hit in ranking] == list(expected)
    assert [hit.score for hit in ranking] == pytest.approx(list(expected.values()))


def test_listed_by_date_the_newest_comes_first(config, opened):
    by_date = Environment.open(config.model_copy(update={"order": "date"}))
    assert str(by_date.info().retriever["query_language"]).endswith("and not by relevance.")
    for by_score in (native("heat | wing"), plan([("heat wing", 1.0)], 100)):
        matches = [hit.id for hit in opened.rank([by_score])[0]]
        (ranking,) = by_date.rank([by_score])
        assert [hit.id for hit in ranking] == listed(matches)
        assert by_date.rank([by_score.model_copy(update={"k": 2})])[0] == ranking[:2]
    assert [hit.id for hit in by_date.rank([plan([("heat", -1.0), ("lift", 0.1)])])[0]] == [
        hit.id for hit in by_date.rank([native("lift", 5)])[0]
    ]


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("heat wing", "syntax error"),
        ("heat &", "no operand"),
        ("heat <99999> wing", "16384"),
        (f"{'!' * 40}heat", "stack"),
        (f"heat | {'é' * 1900}ß:*", None),
        ("!heat | wing", "&"),
        ("he:*", "he*"),
        ("'w heat':*", "w*"),
        ("heat\0", "NUL"),
        ("the", None),
    ],
)
def test_a_refused_query_is_an_answer_with_the_reason(query, reason, opened):
    before, after = (opened.rank([native(query)])[0] for _ in range(2))
    assert (before, before.error) == (after, after.error)
    if reason is None:
        assert before.error is None
    else:
        assert (list(before), before.hits) == ([], 0)
        assert reason in before.error


def test_hostile_queries_raise_nothing_and_others_are_answered(opened):
    random, expected = Random(0), opened.rank([native("heat | wing")])
    pieces = SIGNS.split()
    pieces += [" ", "\t", "é", "\u2028", "\x01", "😀", "\ud83d", "\0", "x" * 2100, "'); DROP TABLE querylect;"]
    queries = [
        random.choice(("&", "|", " & ", "")).join(random.choices(["wing", *pieces], k=random.randrange(1, 6)))
        for _ in range(300)
    ]
    rankings = opened.rank([*map(native, queries), native("heat | wing")])
    assert 50 < sum(ranking.error is None for ranking in rankings) < 250
    assert rankings[-1:] == expected
    assert opened.rank([plan([(query, 1.0)]) for query in queries])


def test_a_text_beyond_what_the_server_parses_is_a_wrong_request(opened):
    with refused(RequestError, "stack depth"):
        opened.rank([plan([(" ".join(map(str, range(50_000))), 1.0)])])
    assert opened.rank([native("heat")])[0]


def test_a_search_that_is_cut_off_or_has_no_server_has_failed(config, postgres, sql):  # noqa: F811
    environment = Environment.open(config)
    plans = [native("heat & wing"), plan([("slab", 1.0)])]
    expected = environment.rank(plans)
    table = json.loads((config.index_folder / "postgres.json").read_text())["table"]
    sql.execute(f"LOCK TABLE {table}")
    environment._retriever._session.execute("SET statement_timeout = '10ms'")
    for single in plans:
        with refused(EnvironmentUnavailableError, "statement timeout"):
            environment.rank([single])
    sql.rollback()
    postgres.stop()
    for single in plans:
        with refused(EnvironmentUnavailableError, config.postgres_url):
            environment.rank([single])
    postgres.start()
    assert environment.rank(plans) == expected


def test_another_table_than_that_of_the_index_is_refused_and_filled_again(config, tmp_path):
    import psycopg

    mine = config.model_copy(update={"index": str(tmp_path / "index"), "language": "simple"})
    build_index(mine)
    verify_indexes(mine)
    table = json.loads((tmp_path / "index" / "postgres.json").read_text())["table"]
    with psycopg.connect(config.postgres_url, autocommit=True) as session:
        for statement, rows in (
            (f"DELETE FROM {table} WHERE ordinal = 3", len(CORPUS) - 1),
            (f"DROP TABLE {table}", None),
        ):
            session.execute(statement)
            for check in (Environment.open, verify_indexes):
                with refused(IndexFolderError, table, f" {rows} ", len(CORPUS)):
                    check(mine)
        with refused(IndexFolderError, "'simple'", "'english'"):
            Environment.open(mine.model_copy(update={"language": "english"}))
        build_index(mine, overwrite=True)
        (ranking,) = Environment.open(mine).rank([native("the")])
        assert {hit.id for hit in ranking} == {"zero", "blank"}
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            Environment.open(mine)._retriever._session.execute(f"DROP TABLE {table}")


def test_an_unknown_language_and_a_password_in_the_settings_are_refused(config, tmp_path):
    with refused(ConfigError, "'klingon'", "german"):
        build_index(config.model_copy(update={"language": "klingon", "index": str(tmp_path / "index")}))
    for url in ("postgresql://me:secret@host/db", "host=a password=secret"):
        with refused(ConfigError, "PGPASSWORD"):
            load_config(None, [f"env.postgres_url={url}"])
