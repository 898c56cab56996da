"""tantivy as a retriever: its BM25, the order of equal scores and of dates, and queries that it refuses."""

import math
import re
from dataclasses import replace

import pytest
from querylect.configs.environment import DatasetConfig, EnvironmentConfig
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.errors import ConfigError, RequestError

from ..raising import refused
from .wings import documents, plan, save

CORPUS = [
    replace(document, date="" if number % 5 == 0 else f"{2000 + number % 7}-01-01")
    for number, document in enumerate(documents(90))
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tantivy")
    save(folder / "data", CORPUS)
    return folder


def config(folder, **changes):
    dataset = DatasetConfig(path=str(folder / "data"))
    return EnvironmentConfig(dataset=dataset, retriever="tantivy", index=str(folder / "index"), **changes)


def opened(folder, **changes):
    build_index(config(folder), overwrite=True)
    return Environment.open(config(folder, **changes))


@pytest.fixture(scope="module")
def ranked(folder):
    return opened(folder)


def native(query, k=90):
    return plan([(query, 1.0)], k).model_copy(update={"mode": "native"})


def words(document):
    return re.findall(r"\w+", document.contents)


def bm25(word, document):
    lengths = [len(words(other)) for other in CORPUS]
    having = sum(word in words(other) for other in CORPUS)
    count, length = words(document).count(word), len(words(document))
    idf = math.log(1 + (len(CORPUS) - having + 0.5) / (having + 0.5))
    return idf * 2.2 * count / (count + 1.2 * (0.25 + 0.75 * length * len(CORPUS) / sum(lengths)))


def test_native_and_text_are_scored_by_weighted_bm25(ranked):
    text, native_or, both = ranked.rank(
        [plan([("heat, slab!", 2.0), ("wing", 0.5)], 90), native("(heat OR slab)^2 wing^0.5"), native("+drag +lift")]
    )
    expected = {
        document.id: 2 * bm25("heat", document) + 2 * bm25("slab", document) + 0.5 * bm25("wing", document)
        for document in CORPUS
        if {"heat", "slab", "wing"} & {*words(document)}
    }
    for ranking in (text, native_or):
        assert dict(ranking) == pytest.approx(expected, rel=1e-5)
    assert native_or.hits == len(expected)
    assert {hit.id for hit in both} == {document.id for document in CORPUS if {"drag", "lift"} <= {*words(document)}}
    with refused(RequestError, "'wing'", "-0.5"):
        ranked.rank([plan([("heat", 1.0), ("wing", -0.5)])])


def test_equal_scores_have_the_order_of_dates_whatever_the_limit(ranked, folder):
    dated = opened(folder, order="date")
    everything = [hit.id for hit in dated.rank([native("heat OR air")])[0]]
    dates = [next(document.date for document in CORPUS if document.id == name) for name in everything]
    assert dates == sorted(dates, reverse=True)
    assert len(everything) == len(CORPUS)
    rows = {name: row for row, name in enumerate(everything)}
    for environment in (ranked, dated):
        for terms in ("heat", "wing OR heat^2", "air", "heat AND flow"):
            (full,) = environment.rank([native(terms)])
            assert full == sorted(full, key=lambda hit: (-hit.score, rows[hit.id]))
            for k in (1, 3, 17):
                (part,) = environment.rank([native(terms, k)])
                assert (part, part.hits) == (full[:k], full.hits)


REFUSED = (
    "it's",
    "a (b",
    "heat OR",
    "-heat",
    "text:heat",
    "text:>a",
    "/he.*/",
    "*",
    "[a TO b]",
    '"heat',
    "\0",
    "\ud800",
)


def test_a_refused_query_has_an_error_and_others_go_on(ranked):
    (good, *bad) = ranked.rank([native("heat"), *map(native, REFUSED)])
    assert good.hits == len(good) > 0
    assert [(ranking, ranking.hits, bool(ranking.error)) for ranking in bad] == [([], 0, True)] * len(REFUSED)
    assert ranked.rank([native("xylophone")])[0].error is None


def test_equal_builds_have_one_hash_and_a_language_needs_a_stemmer(folder, tmp_path):
    assert (
        build_index(config(folder), overwrite=True).index_hash == build_index(config(folder), overwrite=True).index_hash
    )
    with refused(ConfigError, "hindi"):
        build_index(config(folder, language="hindi").model_copy(update={"index": str(tmp_path / "hindi")}))
