"""BM25: the formula by hand, with both engines and any weights, and its words in every script."""

from itertools import pairwise
from math import log

import bm25s
import numpy as np
import pytest
import Stemmer
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.configs.environment import EnvironmentConfig
from querylect.data.types import Document
from querylect.envs.plan import Probe, Term
from querylect.envs.presets import PRESETS
from querylect.envs.retrievers.bm25 import Bm25Factory
from querylect.envs.retrievers.tokenizer import WordTokenizer
from querylect.errors import DataError

from ..raising import logged

ENGLISH = WordTokenizer("english")
TEXTS = ["wing flow", "wing wing heat", "slab", "heat heat slab wing", "", "wing flow"]
"""6 documents of 2, 3, 1, 4, 0 and 2 words."""


def probe(*terms):
    return Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms))


def plain(text):
    return probe((text, 1.0))


def opened(folder, texts, engine="bm25s", cuts=(), language="english"):
    """A retriever over the texts, built in one part or cut at the given places."""
    folder.mkdir()
    kind, parts = Bm25Factory(PRESETS["bm25"], EnvironmentConfig(engine=engine, language=language)), []
    for start, end in pairwise([0, *cuts, len(texts)]):
        parts.append(folder.with_name(f"{folder.name}.{start}"))
        parts[-1].mkdir()
        kind.write_part(parts[-1], [Document(str(number), "", text) for number, text in enumerate(texts[start:end])])
    kind.merge(parts, folder)
    return kind.load(folder, texts)


@pytest.fixture(scope="module", params=["bm25s", "rank_bm25"])
def retriever(request, tmp_path_factory):
    return opened(tmp_path_factory.mktemp("bm25") / "index", TEXTS, request.param)


def pairs(ranking):
    return list(zip(ranking.documents.tolist(), ranking.scores.tolist(), strict=True))


def by_hand(tf, df, length):
    return log(1 + (6 - df + 0.5) / (df + 0.5)) * tf / (tf + 1.2 * (1 - 0.75 + 0.75 * length / 2))


def test_scores_follow_the_formula_and_equal_ones_stand_in_corpus_order(retriever):
    ranking, full, cut = retriever.rank([plain("Slabs of heat"), plain("flow"), plain("flow")], [10, 10, 1])
    expected = {3: by_hand(2, 2, 4) + by_hand(1, 2, 4), 1: by_hand(1, 2, 3), 2: by_hand(1, 2, 1)}
    assert dict(pairs(ranking)) == pytest.approx(expected, abs=1e-6)
    assert ranking.documents.tolist() == sorted(expected, key=lambda document: -expected[document])
    assert (full.documents.tolist(), cut.documents.tolist()) == ([0, 5], [0])


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
        found = zip(ranking.documents, total[ranking.documents], strict=True)
        assert dict(pairs(ranking)) == pytest.approx(dict(found))
        assert set(ranking.documents) >= set(np.flatnonzero(total > 1e-9))
        assert set(ranking.documents) <= set(np.flatnonzero(total > -1e-9))


FORMS = [f"{stem}{end}" for stem in ("wing", "heat", "slab", "flow", "lift", "drag") for end in ("", "s", "ing")]
WEIGHTED = st.builds(
    Term,
    text=st.lists(st.sampled_from([*FORMS, "The", "x", "ÉTÉ", "-"]), max_size=6).map(" ".join),
    weight=st.sampled_from([1.0, 0.5, -1.0, 0.1, -0.3, 0.0]) | st.floats(-2, 2),
)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """400 documents, many of them equal."""
    random = np.random.default_rng(3)
    texts = [" ".join(random.choice(FORMS, random.integers(1, 5))) for _ in range(400)]
    return opened(tmp_path_factory.mktemp("many") / "index", texts)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.lists(WEIGHTED, min_size=1, max_size=4), st.sampled_from([1, 2, 10, 399, 1000]))))
def test_a_limited_ranking_is_the_head_of_the_whole_one_to_the_last_bit(many, batch):
    probes = [Probe(terms=tuple(terms)) for terms, _ in batch]
    limits = [limit for _, limit in batch]
    for single, limit, ranking in zip(probes, limits, many.rank(probes, limits), strict=True):
        (whole,) = many.rank([single], [400])
        falling = list(zip((-whole.scores).tolist(), whole.documents.tolist(), strict=True))
        assert falling == sorted(falling), "best first, equal scores in corpus order"
        assert pairs(ranking) == pairs(whole)[:limit]


@given(st.lists(st.text(st.sampled_from("aAtTheinsß_9ς -'"), max_size=30), max_size=6))
def test_the_words_of_texts_are_those_of_bm25s(texts):
    stemmer = Stemmer.Stemmer("english")
    expected = bm25s.tokenize(texts, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False)
    assert ENGLISH(texts) == expected


SCRIPTS = {
    "हिन्दी": "हिन्दी भाषा भारत में बोली जाती है",
    "தமிழ்": "தமிழ் மொழி பழமையானது",
    "ภาษาไทย": "ภาษาไทยเป็นภาษาที่ใช้ในประเทศไทย",
    "水泵": "请定期检查水泵",
    "ポンプ": "このポンプは水を運ぶ",
    "펌프": "펌프는 물을 높은 곳으로 보낸다",
    "المضخة": "يُستخدم المضخّة لنقل الماء",
    "насос": "Этот насос качает воду",
    "café": "The cafe\u0301 serves coffee",
    "cre\u0300me": "A crème of the café's kitchen",
}
"""A word, and a text that holds it, if with other vowel signs or accents."""


@pytest.mark.parametrize("language", ["english", "hindi", "russian", "arabic"])
def test_a_word_of_every_script_finds_its_text_in_every_language(language, tmp_path):
    retriever = opened(tmp_path / "index", [*SCRIPTS.values()], language=language)
    rankings = retriever.rank(list(map(plain, SCRIPTS)), [1] * len(SCRIPTS))
    assert [ranking.documents.tolist() for ranking in rankings] == [[number] for number in range(len(SCRIPTS))]


@pytest.mark.parametrize(
    ("language", "forms", "stop_word"),
    [("german", "Haus Häuser", "der"), ("russian", "насос насоса насосы", "и"), ("hindi", "भाषा भाषाओं", "")],
)
def test_a_language_has_its_stems_and_its_stop_words(language, forms, stop_word):
    (stems,) = WordTokenizer(language)([f"{stop_word} {forms}"])
    assert (len(set(stems)), len(stems)) == (1, len(forms.split()))
    assert len(set(ENGLISH([forms])[0])) > 1


@pytest.mark.parametrize(
    ("language", "texts", "expected"),
    [
        ("english", ["насос качает воду"] * 3 + ["a wing"] * 7, (30, "Cyrillic", "russian or serbian")),
        ("russian", ["насос качает воду"] * 2 + ["a wing"] * 8, (80, "Latin", "german")),
        ("english", ["საქართველო ქვეყანა"] * 10, (100, "Georgian", "no stemmer")),
        ("english", ["насос качает воду"] + ["a wing"] * 9, None),
        ("english", ["请定期检查水泵", "펌프는 물을", "ภาษาไทย", "12 34", ""] * 2, None),
        ("serbian", ["насос качает воду", "pumpa podiže vodu"] * 5, None),
    ],
)
def test_a_build_warns_of_many_texts_that_the_language_does_not_stem(language, texts, expected, tmp_path, caplog):
    opened(tmp_path / "index", texts, "rank_bm25", cuts=(4,), language=language)
    warnings = logged(caplog, "envs.retrievers.bm25")
    if expected is None:
        assert not warnings
    else:
        ((share, of_language, script, remedy),) = warnings
        assert (round(share), of_language, script) == (expected[0], language, expected[1])
        assert expected[2] in remedy


def test_a_corpus_without_words_is_refused(tmp_path):
    with pytest.raises(DataError, match="none of the 2 documents holds a word"):
        opened(tmp_path / "index", ["of the", "!"])
