"""BM25: the formula by hand, with both engines and any weights."""

from functools import partial
from itertools import pairwise
from math import log

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from querylect.configs.environment import EnvironmentConfig
from querylect.data.types import Document
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.recipes import RECIPES
from querylect.envs.retrievers import bm25
from querylect.envs.retrievers.bm25 import Bm25Kind
from querylect.envs.retrievers.vocabulary import stems
from querylect.errors import DataError

ENGINES = ["bm25s", "rank_bm25"]
TEXTS = ["wing flow", "wing wing heat", "slab", "heat heat slab wing", "", "wing flow"]
"""6 documents of 2, 3, 1, 4, 0 and 2 words."""


def probe(*terms):
    return Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms))


def plain(text):
    return probe((text, 1.0))


def opened(folder, texts, engine, cuts=()):
    """A retriever over the texts, built in one part or cut at the given places."""
    folder.mkdir()
    kind = Bm25Kind(RECIPES["bm25"], engine)
    kind.merge(parts_of(folder, texts, engine, cuts), folder)
    return kind.load(folder, texts)


def parts_of(folder, texts, engine, cuts):
    parts = []
    for start, end in pairwise([0, *cuts, len(texts)]):
        parts.append(folder.with_name(f"{folder.name}.{start}"))
        parts[-1].mkdir()
        block = [Document(str(number), "", text) for number, text in enumerate(texts[start:end])]
        Bm25Kind(RECIPES["bm25"], engine).write_part(parts[-1], block)
    return parts


@pytest.fixture(scope="module", params=ENGINES)
def retriever(request, tmp_path_factory):
    return opened(tmp_path_factory.mktemp("bm25") / "index", TEXTS, request.param)


def pairs(ranking):
    return list(zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True))


def by_hand(tf, df, length):
    return log(1 + (6 - df + 0.5) / (df + 0.5)) * tf / (tf + 1.2 * (1 - 0.75 + 0.75 * length / 2))


def test_scores_follow_the_formula(retriever):
    (ranking,) = retriever.rank([plain("Slabs of heat")], [10])
    expected = {3: by_hand(2, 2, 4) + by_hand(1, 2, 4), 1: by_hand(1, 2, 3), 2: by_hand(1, 2, 1)}
    assert dict(pairs(ranking)) == pytest.approx(expected, abs=1e-6)
    assert ranking.documents.tolist() == sorted(expected, key=lambda document: -expected[document])


def test_a_block_stems_a_distinct_word_once(monkeypatch, tmp_path):
    stemmed = []
    monkeypatch.setattr(bm25, "_CHUNK", 2)
    monkeypatch.setattr(bm25, "stems", lambda words: stemmed.extend(words) or stems(words))
    opened(tmp_path / "index", [*TEXTS, "The slab of heat"], "bm25s")
    assert sorted(stemmed) == ["flow", "heat", "of", "slab", "the", "wing"]


@given(st.lists(st.text(st.sampled_from("aAtTheinsİß_9ς -'\u0301"), max_size=30), max_size=6))
def test_the_words_of_a_block_are_those_of_bm25s(texts):
    words, tokens, lengths = bm25._number_words(texts, None)
    expected = bm25.tokenise(texts)
    assert [words[token].decode() for token in tokens] == [word for text in expected for word in text]
    assert lengths.tolist() == list(map(len, expected))


def test_a_repeated_word_counts_each_time(retriever):
    once, twice = retriever.rank([plain("slab"), plain("slab slab")], [10, 10])
    assert pairs(twice) == [(document, pytest.approx(2 * score, abs=1e-6)) for document, score in pairs(once)]


def test_a_query_without_a_known_word_finds_nothing(retriever):
    for text in ("", "of the", "zebra"):
        (ranking,) = retriever.rank([plain(text)], [10])
        assert pairs(ranking) == []


def test_equal_scores_stand_in_corpus_order_also_at_the_cut(retriever):
    full, cut = retriever.rank([plain("flow"), plain("flow")], [10, 1])
    assert full.documents.tolist() == [0, 5]
    assert cut.documents.tolist() == [0]


def test_a_negative_weight_pushes_documents_down_and_out(retriever):
    slab, heat, both = retriever.rank([plain("slab"), plain("heat"), probe(("slab", 1.0), ("heat", -0.5))], [10] * 3)
    slab_scores, heat_scores = dict(pairs(slab)), dict(pairs(heat))
    net = {document: score - 0.5 * heat_scores.get(document, 0.0) for document, score in slab_scores.items()}
    assert dict(pairs(both)) == pytest.approx({d: s for d, s in net.items() if s > 0}, abs=1e-6)
    assert 1 in heat_scores
    assert 1 not in both.documents


def test_without_compiled_code_a_text_in_many_probes_is_scored_once(tmp_path):
    retriever = opened(tmp_path / "index", TEXTS, "bm25s")
    retriever._engine.batch = None
    scored = []
    inner = retriever._engine.scores
    retriever._engine.scores = lambda words: scored.append(tuple(words)) or inner(words)
    retriever.rank([probe(("wing", 1.0), (text, 0.5)) for text in ("heat", "slab", "flow")], [5] * 3)
    assert sorted(scored) == [("flow",), ("heat",), ("slab",), ("wing",)]


WORDS = st.lists(st.sampled_from(["wing", "heat", "slab", "flow", "zebra"]), max_size=4).map(" ".join)
PROBES = st.lists(st.tuples(WORDS, st.floats(-2, 2)), min_size=1, max_size=3)


@settings(max_examples=60)
@given(st.lists(PROBES, min_size=1, max_size=4))
def test_a_probe_is_the_weighted_sum_of_its_texts_and_a_batch_is_one_by_one(retriever, batch):
    rankings = retriever.rank([probe(*terms) for terms in batch], [10] * len(batch))
    for terms, ranking in zip(batch, rankings, strict=True):
        (alone,) = retriever.rank([probe(*terms)], [10])
        assert pairs(alone) == pairs(ranking)
        total = np.zeros(len(TEXTS))
        for text, weight in terms:
            (single,) = retriever.rank([plain(text)], [10])
            total[single.documents] += weight * single.scores
        assert dict(pairs(ranking)) == pytest.approx(
            dict(zip(ranking.documents, total[ranking.documents], strict=True))
        )
        assert set(ranking.documents) >= set(np.flatnonzero(total > 1e-9))
        assert set(ranking.documents) <= set(np.flatnonzero(total > -1e-9))


def test_a_corpus_without_words_is_refused(tmp_path):
    with pytest.raises(DataError, match="none of the 2 documents holds a word"):
        opened(tmp_path / "index", ["of the", "!"], "bm25s")


def okapi(k3, text, document):
    """The formula with the query factor of Okapi's BM25, for a document of TEXTS, from its words alone."""
    words, score = TEXTS[document].split(), 0.0
    for word in set(text.split()):
        df, tf, q = sum(word in passage.split() for passage in TEXTS), words.count(word), text.split().count(word)
        score += (k3 + 1) * q / (k3 + q) * by_hand(tf, df, len(words)) if tf else 0.0
    return score


def weighted(score, terms):
    """The positive sums of a score of the texts of TEXTS, by document."""
    totals = {d: sum(weight * score(text, d) for text, weight in terms.items()) for d in range(len(TEXTS))}
    return {document: total for document, total in totals.items() if total > 0}


@pytest.fixture(scope="module", params=[*ENGINES, "bm25s without numba"])
def saturating(request, tmp_path_factory):
    """Opens a retriever over TEXTS with a k3."""
    engine = request.param.split()[0]
    folder = tmp_path_factory.mktemp("saturating") / "index"
    opened(folder, TEXTS, engine)

    def load(k3):
        retriever = Bm25Kind(RECIPES["bm25"], engine, k3).load(folder, TEXTS)
        if request.param != engine:
            retriever._engine.batch = None
        return retriever

    return load


LONG = "heat heat heat heat wing slab slab"


@pytest.mark.parametrize("k3", [0.0, 1.0, 8.0, 1e9])
def test_repeated_words_of_a_query_saturate_by_the_formula(saturating, k3):
    (ranking,) = saturating(k3).rank([plain(LONG)], [10])
    assert dict(pairs(ranking)) == pytest.approx({d: okapi(k3, LONG, d) for d in (0, 1, 2, 3, 5)}, rel=1e-5)


def test_every_text_of_a_probe_saturates_by_itself_and_is_weighted_then(saturating):
    """So a probe stays a weighted sum of its texts, negative weights included."""
    (ranking,) = saturating(2.0).rank([probe((LONG, 1.0), ("heat heat", 2.0), ("slab", -0.5))], [10])
    expected = weighted(partial(okapi, 2.0), {LONG: 1.0, "heat heat": 2.0, "slab": -0.5})
    assert dict(pairs(ranking)) == pytest.approx(expected, rel=1e-5)


def anserini(text, document):
    """Score of a document of TEXTS with Anserini's query-side BM25: Lucene's score of each distinct word times a boost,
    which is the word's BM25 weight in the query, all from words alone. Words that no document holds lengthen the query.
    """
    query, words, score = [word for word in text.split() if word != "the"], TEXTS[document].split(), 0.0
    for word in set(query) & set(words):
        df, tf = sum(word in passage.split() for passage in TEXTS), query.count(word)
        boost = log(1 + (6 - df + 0.5) / (df + 0.5)) * tf / (tf + 1.2 * (1 - 0.75 + 0.75 * len(query) / 2))
        score += boost * by_hand(words.count(word), df, len(words))
    return score


@pytest.mark.parametrize("text", [LONG, "heat", "the wing zebra zebra heat heat yak"])
def test_query_side_weights_are_anserinis(saturating, text):
    (ranking,) = saturating("query-side").rank([plain(text)], [10])
    expected = {document: anserini(text, document) for document in range(6)}
    assert dict(pairs(ranking)) == pytest.approx({d: score for d, score in expected.items() if score}, rel=1e-5)
    assert ranking.documents.tolist() == sorted(dict(pairs(ranking)), key=lambda document: -expected[document])


def test_query_side_weights_of_a_text_are_scaled_by_its_weight_in_the_probe(saturating):
    (ranking,) = saturating("query-side").rank([probe((LONG, 1.0), ("heat zebra", 2.5), ("wing flow", -0.5))], [10])
    expected = weighted(anserini, {LONG: 1.0, "heat zebra": 2.5, "wing flow": -0.5})
    assert set(expected) == {1, 2, 3}, "the negative weight pushes a document out"
    assert dict(pairs(ranking)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    ("settings", "accepted"),
    [
        ({"retriever": "bm25"}, True),
        ({"retriever": "bm25", "engine": "rank_bm25"}, True),
        ({"retriever": "hybrid", "hybrid": {"members": [{"retriever": "bm25"}, {"retriever": "contriever"}]}}, True),
        ({"retriever": "contriever"}, False),
        ({"retriever": "bm25", "engine": "milvus"}, False),
        ({"retriever": "bm25", "remote": {"url": "http://x", "index": "y"}}, False),
    ],
)
@pytest.mark.parametrize("k3", [8, "query-side"])
def test_k3_without_a_local_bm25_is_refused(settings, accepted, k3):
    if accepted:
        assert EnvironmentConfig(**settings, k3=k3).k3 == k3
    else:
        with pytest.raises(ValidationError, match=rf"env\.k3 is {k3}"):
            EnvironmentConfig(**settings, k3=k3)


def test_an_environment_with_k3_says_so_and_keeps_its_index(small_environment):
    linear, once, query_side = (
        Environment.open(small_environment.model_copy(update={"k3": k3})) for k3 in (None, 0.0, "query-side")
    )
    assert linear.index_hash == once.index_hash == query_side.index_hash
    assert len({linear.settings_hash, once.settings_hash, query_side.settings_hash}) == 3
    assert (linear.card.get("k3"), once.card["k3"], query_side.card["k3"]) == (None, 0.0, "query-side")
    plans = [SearchPlan.of("headache headache headache blood"), SearchPlan.of("headache blood")]
    repeated, plain_words = once.search(plans)
    assert [hit.id for hit in repeated] == [hit.id for hit in plain_words]
    assert [hit.score for hit in repeated] == pytest.approx([hit.score for hit in plain_words])
    assert [hit.score for hit in linear.search(plans)[0]] != [hit.score for hit in repeated]
