"""CSQE and ThinkQE: what stands in their queries, which sentences count, and which documents a round is shown."""

import pytest
from querylect.data.types import Document, Question
from querylect.methods.csqe import NO_EXPANSION, pivotal
from querylect.methods.method import MISSING, NO_RANKING

from ..scripted import Collection, Down, Script, run, terms

QUESTION = Question("q", "are sharks warm")
TEXTS = {"mako": "Most sharks are cold-blooded. The mako is partly warm.", "tuna": "Tuna swim fast.", "one": "shark"}
BOTH_SENTENCES = ["The mako is partly warm.", "Tuna swim fast."]
DOCUMENTS = [Document(name, "", text) for name, text in TEXTS.items()]


@pytest.mark.parametrize(
    ("text", "expected", "dropped"),
    [
        ('Document 1:\n"The mako is partly warm."\n"Tuna swim fast."', BOTH_SENTENCES, 0),
        ('"the MAKO is  partly warm"\n"The mako is partly cold."', ["the MAKO is partly warm"], 1),
        ("1. “Tuna swim fast.” and „Tuna swim fast.“", ["Tuna swim fast."], 0),
        ('Both "Tuna swim fast." and "Most sharks are cold" fit', ["Tuna swim fast.", "Most sharks are cold"], 0),
        ('"shark"\n"sha"\n"mako is partly warm. Tuna"', ["shark"], 2),
        ('<think>"Tuna swim fast."</think>nothing', [], 0),
        ('<think>"Tuna swim fast."', [], 0),
        ('"..."\n""\nnone', [], 0),
        ("\ud800", [], 0),
    ],
)
def test_a_sentence_counts_where_it_stands_in_a_document(text, expected, dropped):
    assert pivotal(text, DOCUMENTS) == (expected, dropped)


def test_a_sentence_of_another_script():
    documents = [Document("d", "鮫", "多くの鮫は変温動物である。アオザメは温かい。")]
    assert pivotal('"アオザメは温かい。"\n"鮫は温かい。"', documents) == (["アオザメは温かい。"], 1)


def csqe(*answers, searcher=None, **settings):
    shelf = searcher or Collection("mako", "tuna", "one", texts=TEXTS)
    model = Script(*answers)
    return run("csqe", QUESTION, model, shelf, k=2, **settings), shelf, model


def test_csqe_joins_question_passages_and_sentences():
    picks = ['"The mako is partly warm."\n"Tuna swim fast."\n"made up"', "none of them"]
    outcome, shelf, model = csqe(picks, ["Some are warm.", "<think>so</think> Makos are."])
    assert terms(shelf.plans[0]) == [[(QUESTION.text, 1.0)]]
    assert [plan.k for plan in shelf.plans] == [10, 2]
    added = ("Some are warm.", "Makos are.", "\n".join(BOTH_SENTENCES))
    assert terms(outcome.plan) == [[(QUESTION.text, 2.0), *((text, 1.0) for text in added)]]
    assert outcome.notes["dropped_sentences"] == 1
    assert outcome.notes["sentences"] == [BOTH_SENTENCES, []]
    assert [(draw.n, draw.temperature) for draw in model.draws] == [(2, 1.0), (2, 1.0)]
    assert "1. About mako: Most sharks" in model.prompt_texts[0]
    assert [document.id for document in outcome.documents] == ["mako", "tuna"]


def test_csqe_goes_on_with_what_is_left():
    outcome, _, _ = csqe(["nothing"], [" "])
    assert (outcome.failure, outcome.notes["empty_passages"]) == (NO_EXPANSION, 1)
    outcome, _, _ = csqe(['"shark"'], [" "])
    assert terms(outcome.plan) == [[(QUESTION.text, 1.0), ("shark", 1.0)]]
    outcome, _, model = csqe(["A passage."], searcher=Collection())
    assert terms(outcome.plan) == [[(QUESTION.text, 1.0), ("A passage.", 1.0)]]
    assert len(model.prompt_texts) == 1, "there is nothing to pick from"
    assert csqe(None, ["p"])[0].failure == csqe(["p"], None)[0].failure == MISSING
    assert csqe(searcher=Down())[0].failure == NO_RANKING


NAMES = [f"d{number}" for number in range(30)]


def thinkqe(*answers, searcher=None, **settings):
    shelf = searcher or Collection(*NAMES)
    model = Script(*answers)
    return run("thinkqe", QUESTION, model, shelf, k=3, **settings), shelf, model


def test_thinkqe_grows_the_query_and_shows_no_document_twice():
    # The plan of a later round holds the earlier passages too: the newest one decides here.
    names_by_text = {"second": ["d0", "d12", *NAMES[1:12], *NAMES[13:]], "first": ["d15", *NAMES[:10], *NAMES[16:]]}
    shelf = Collection(*NAMES, by_text=names_by_text)
    outcome, _, model = thinkqe("<think>a</think>first", "second", "third", searcher=shelf)
    rest = ["d12", "d10", "d11", "d13", "d14", *NAMES[25:]]
    assert outcome.notes["shown"] == [NAMES[:10], ["d15", *NAMES[16:25]], rest]
    assert "1. About d15: d15 text\n2. About d16" in model.prompt_texts[1]
    assert [plan.k for plan in shelf.plans] == [10, 20, 30, 3], "deep enough for ten new documents"
    grown = [("first", 1.0), ("second", 1.0), ("third", 1.0)]
    assert [terms(plan)[0][1:] for plan in shelf.plans] == [grown[:size] for size in range(4)]
    assert outcome.notes["expansions"] == ["first", "second", "third"]
    assert [document.id for document in outcome.documents] == ["d0", "d12", "d1"]


@pytest.mark.parametrize(("words", "weight"), [(1, 1.0), (17, 1.0), (18, 2.0), (27, 3.0)])
def test_thinkqe_repeats_the_question_a_third_as_long(words, weight):
    outcome, _, _ = thinkqe(" ".join(["word"] * words), "", "")
    assert terms(outcome.plan)[0][0] == (QUESTION.text, weight)


def test_thinkqe_counts_rounds_that_add_nothing():
    outcome, _, model = thinkqe("<think>never ends", "a passage", "")
    assert (outcome.failure, outcome.notes["empty_rounds"], outcome.notes["expansions"]) == ("", 2, ["a passage"])
    assert thinkqe("", " ", "")[0].failure == NO_EXPANSION
    assert thinkqe("first", None)[0].failure == MISSING
    assert thinkqe("first", searcher=Down())[0].failure == NO_RANKING
    outcome, _, model = thinkqe("first", "second", "third", searcher=Collection("d0"))
    assert "No further passages" in model.prompt_texts[1]
