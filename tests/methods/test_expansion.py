"""CSQE and ThinkQE: what stands in their queries, which sentences count, and which documents a round is shown."""

import pytest
from querylect.data.types import Document, Question
from querylect.methods.expansion import NO_EXPANSION, pivotal

from ..scripted import Collection, Script, run_named, terms

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
    ],
)
def test_a_sentence_counts_where_it_stands_in_a_document(text, expected, dropped):
    assert pivotal(text, DOCUMENTS) == (expected, dropped)


def csqe(*answers, searcher=None):
    """The passages' answer comes first, as they are asked for first."""
    shelf, model = searcher or Collection("mako", "tuna", "one", texts=TEXTS), Script(*answers)
    return run_named("csqe", QUESTION, model, shelf, k=2), shelf, model


def test_csqe_joins_question_passages_and_sentences():
    picks = ['"The mako is partly warm."\n"Tuna swim fast."\n"made up"', "none of them"]
    result, shelf, model = csqe(["Some are warm.", "<think>so</think> Makos are."], picks)
    assert terms(shelf.plans[0]) == [[(QUESTION.text, 1.0)]]
    assert [plan.k for plan in shelf.plans] == [10, 2]
    added = ("Some are warm.", "Makos are.", "\n".join(BOTH_SENTENCES))
    assert terms(shelf.plans[1]) == [[(QUESTION.text, 2.0), *((text, 1.0) for text in added)]]
    assert result.notes["dropped_sentences"] == 1
    assert result.notes["sentences"] == [BOTH_SENTENCES, []]
    assert [(draw.n, draw.temperature) for draw in model.draws] == [(2, 1.0), (2, 1.0)]
    assert "[1] About mako: Most sharks" in model.prompts[1]
    assert [document.id for document in result.documents] == ["mako", "tuna"]


def test_csqe_goes_on_with_what_is_left():
    assert csqe([" "], ["nothing"])[0].failure == NO_EXPANSION
    _, shelf, _ = csqe([" "], ['"shark"'])
    assert terms(shelf.plans[-1]) == [[(QUESTION.text, 1.0), ("shark", 1.0)]]
    _, shelf, model = csqe(["A passage."], searcher=Collection())
    assert terms(shelf.plans[-1]) == [[(QUESTION.text, 1.0), ("A passage.", 1.0)]]
    assert len(model.prompts) == 1, "there is nothing to pick from"


NAMES = [f"d{number}" for number in range(30)]


def thinkqe(*answers, searcher=None):
    shelf, model = searcher or Collection(*NAMES), Script(*answers)
    return run_named("thinkqe", QUESTION, model, shelf, k=3), shelf, model


def test_thinkqe_grows_the_query_and_shows_no_document_twice():
    # The plan of a later round holds the earlier passages too: the newest one decides here.
    names_by_text = {"second": ["d0", "d12", *NAMES[1:12], *NAMES[13:]], "first": ["d15", *NAMES[:10], *NAMES[16:]]}
    shelf = Collection(*NAMES, by_text=names_by_text)
    result, _, model = thinkqe("<think>a</think>first", "second", "third", searcher=shelf)
    rounds = [[name for name, number in result.notes["shown"].items() if number == shown] for shown in (1, 2, 3)]
    assert rounds == [NAMES[:10], ["d15", *NAMES[16:25]], ["d12", "d10", "d11", "d13", "d14", *NAMES[25:]]]
    assert "[1] About d15: d15 text\n[2] About d16" in model.prompts[1]
    assert [plan.k for plan in shelf.plans] == [10, 20, 30, 3], "deep enough for ten new documents"
    grown = [("first", 1.0), ("second", 1.0), ("third", 1.0)]
    assert [terms(plan)[0][1:] for plan in shelf.plans] == [grown[:size] for size in range(4)]
    assert result.notes["expansions"] == ["first", "second", "third"]
    assert [document.id for document in result.documents] == ["d0", "d12", "d1"]


@pytest.mark.parametrize(("words", "weight"), [(17, 1.0), (18, 2.0)])
def test_thinkqe_repeats_the_question_a_third_as_long(words, weight):
    _, shelf, _ = thinkqe(" ".join(["word"] * words), "", "")
    assert terms(shelf.plans[-1])[0][0] == (QUESTION.text, weight)


def test_thinkqe_counts_rounds_that_add_nothing():
    result, _, model = thinkqe("<think>never ends", "a passage", "")
    assert (result.failure, result.notes["empty_rounds"], result.notes["expansions"]) == ("", 2, ["a passage"])
    assert thinkqe("", " ", "")[0].failure == NO_EXPANSION
    result, _, model = thinkqe("first", "second", "third", searcher=Collection("d0"))
    assert "No further passages" in model.prompts[1]
