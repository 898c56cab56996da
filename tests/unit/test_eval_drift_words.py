"""How queries are worded: TF-IDF, telling words and profiles by hand."""

import math

import numpy as np
import pytest
from querylect.eval.drift.queries import Query, RetrieverQueries
from querylect.eval.drift.words import count_words, profile, telling_terms, tf_idf, variety_size, words_of

KEYWORDS = [f"symptom{n} liver disease adult" for n in range(30)]
SENTENCES = [f"what is the cause of symptom{n} in an adult?" for n in range(30)]
"""Two dialects: each of 30 symptoms in keywords, and in a sentence."""


def plain(name, texts, questions=None):
    question_texts = questions or [""] * len(texts)
    return RetrieverQueries(
        name, f"{name}.txt", "every query", tuple(Query(t, q, q) for t, q in zip(texts, question_texts, strict=True))
    )


def test_tf_idf_by_hand():
    """`a` is in both texts that have words, `c` in one; single letters and accents count, a text without words is 0."""
    words = count_words(["A c", "a, a", "…", "naïve ÉTAT"])
    assert words.vocabulary == ("a", "c", "naïve", "état")
    often, rare = math.log(5 / 3) + 1, math.log(5 / 2) + 1
    length, half = math.hypot(often, rare), math.sqrt(0.5)
    expected = [[often / length, rare / length, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, half, half]]
    assert tf_idf(words.counts).toarray() == pytest.approx(np.array(expected))


def test_texts_without_words_have_no_vocabulary():
    words = count_words(["…", "?"])
    assert (words.vocabulary, words.counts.shape) == ((), (2, 0))


def test_telling_terms_by_hand():
    """Log-odds of two parts of five words each, with a tenth of both as the prior."""
    words = count_words(["liver liver liver pain", "pain", "the pain", "of the liver"])
    (first, *_), (second, *_) = telling_terms(words, [slice(0, 2), slice(2, 4)], number=5)

    def odds(count, prior):
        return math.log((count + prior) / (5 + 1 - count - prior))

    z = (odds(3, 0.4) - odds(1, 0.4)) / math.sqrt(1 / 3.4 + 1 / 1.4)
    assert (first.word, first.z, first.here, first.elsewhere) == ("liver", pytest.approx(z), 600.0, 200.0)
    assert second.word == "the"


def test_words_of_one_side_are_never_called_telling_of_the_other():
    words = count_words([*KEYWORDS, *SENTENCES])
    keywords, sentences = telling_terms(words, [slice(0, 30), slice(30, 60)], number=50)
    only_sentences = {"what", "is", "the", "cause", "of", "in", "an"}
    assert [term.word for term in keywords[:2]] == ["disease", "liver"]
    assert not only_sentences & {term.word for term in keywords}
    assert {term.word for term in sentences} == only_sentences


def test_a_profile_by_hand():
    queries = [
        Query("What is the liver?", "1", "liver of rats"),
        Query("rats, rats", "2", "Rats"),
        Query("liver disease adult human", "2", "Rats"),
    ]
    counts = count_words([query.text for query in queries]).counts
    measured = profile(RetrieverQueries("s", "", "", tuple(queries)), counts, 4, resamples=200, seed=0)
    assert measured.words.mean == pytest.approx((4 + (2 + 4) / 2) / 2), "the two queries of one question are one value"
    assert measured.question_marks.mean == 0.5
    assert measured.stop_words.mean == pytest.approx((3 / 4 + 0) / 2)
    assert measured.copied.mean == pytest.approx((1 / 4 + (1 + 0) / 2) / 2)
    assert (measured.words.low, measured.words.high) == (3.0, 4.0)


def test_variety_is_the_expected_number_of_different_words_in_a_sample():
    texts = ["a a a a b", "c d a b", "e"]
    counts = count_words(texts).counts
    words = [word for text in texts for word in words_of(text)]
    variety = profile(plain("s", texts), counts, 4, resamples=10, seed=0).variety
    rng = np.random.default_rng(0)
    drawn = [len(set(rng.choice(words, 4, replace=False))) / 4 for _ in range(20_000)]
    assert variety.mean == pytest.approx(np.mean(drawn), abs=0.005)
    assert variety.low < variety.mean < variety.high


def test_variety_does_not_depend_on_how_many_queries_there_are():
    rng = np.random.default_rng(1)
    draw = lambda n: [" ".join(f"w{rank}" for rank in np.minimum(rng.zipf(1.5, 8), 500)) for _ in range(n)]  # noqa: E731
    texts = draw(100) + draw(1000)
    words, parts = count_words(texts), [slice(0, 100), slice(100, 1100)]
    size = variety_size(words, parts)
    small, large = (
        profile(plain("s", texts[part]), words.counts[part], size, resamples=10, seed=0).variety for part in parts
    )
    assert abs(small.mean - large.mean) < 0.08
    assert small.high - small.low > large.high - large.low
