"""The published methods answered in labelled lines, worked by hand: the same plans and contexts as from JSON."""

import pytest
from querylect.data.types import Question
from querylect.methods.method import GARBLED
from querylect.methods.methods import make_method
from querylect.rewriters.retriever_info import RetrieverInfo

from ..method_doubles import ASKED, Shelf, doc, ids, migres, misknow, run

CHOICE = Question("q", "怎么办？", tuple("甲乙丙丁戊己庚辛壬癸"))
PAIR = Question("q", "Is it?", ("yes", "no"))
WIKI = {ASKED.text: [doc("w1"), doc("w2")], "dog tamers": [doc("w2"), doc("w9")]}


def drafting(judgement):
    return lambda prompt: judgement if "First answer" in prompt else "Ann"


def test_misknow_searches_for_what_the_lines_name():
    judgement = (
        "Thought: w1: nothing.\nJudge: yes\nMissing knowledge:\n1. the tamer\nQuery:\n1. dog tamers\n\nQuestion: x"
    )
    wiki = Shelf(WIKI)
    outcome, model = run(misknow(), drafting(judgement), lines=True, wiki=wiki)
    assert wiki.queries == [[ASKED.text], ["dog tamers"]]
    assert (ids(outcome), outcome.answer) == (["w1", "w2", "w9"], "Ann")
    assert outcome.notes["judgements"][0]["missing_knowledge"] == ["the tamer"]
    assert "Thoughts on the passages above: w1: nothing." in model.prompts[-1]
    enough = "Thought: all\nJudge: no\nMissing knowledge: none\nQuery: none"
    outcome, _ = run(misknow(), drafting(enough), lines=True, wiki=Shelf(WIKI))
    assert ids(outcome) == ["w1", "w2"]


def test_migres_goes_its_rounds_in_lines():
    replies = ["Passages: 2", "Passage: 1\nInformation: It says: so", "Passages: 1", "Passage: 1\nInformation: And so"]
    queries = ["dog tamers", "dog tamers"]

    def answer(prompt):
        if "## Missing\n" in prompt:
            return f"Queries:\n1. {queries.pop(0)}"
        if "## Answer" in prompt:
            return "Ann"
        if "## Information" in prompt:
            return "Sufficient: no\nMissing:\n1. the tamer"
        return replies.pop(0)

    wiki = Shelf(WIKI)
    outcome, _ = run(migres(k=2), answer, lines=True, wiki=wiki)
    assert wiki.queries == [[ASKED.text], ["dog tamers"]]
    assert outcome.notes["information"] == ["It says: so", "And so"]
    assert (ids(outcome), outcome.failure) == (["w2", "w9"], "")


@pytest.mark.parametrize(("question", "letter", "text"), [(CHOICE, "J", "癸"), (PAIR, "A", "yes")])
def test_hcqr_and_chr_take_two_options_and_ten(question, letter, text):
    hypothesis = (
        f"Discriminating features:\n1. 早\nReasoning: so\nConfirming evidence: x\nBest guess: {letter}\n"
        f"Best guess text: {text}"
    )
    queries = "Query 1: one\nQuery 2: two\nQuery 3: three"
    shelf = Shelf({"one": [doc("d1")], "two": [doc("d2")], "three": [doc("d1"), doc("d3")]})
    hcqr = make_method("hcqr", {}, RetrieverInfo("bm25", "bm25"))

    def answer(prompt):
        return queries if "Best guess at the answer" in prompt else hypothesis

    outcome, model = run(hcqr, answer, question, lines=True, wiki=shelf)
    assert ids(outcome) == ["d1", "d2", "d3"]
    assert f"Best guess at the answer: {text}\n" in model.prompts[1]
    assert model.prompts[0].endswith("\nJ. 癸" if letter == "J" else "\nB. no"), "the case alone, after an example"

    chr_ = make_method("chr", {"k": 2}, None)
    shelf = Shelf({text: [doc("d1")]})
    outcome, _ = run(chr_, lambda prompt: f"H_plus: {text}\nH_minus: 别的：H_plus", question, lines=True, wiki=shelf)
    assert (outcome.notes["H_plus"], outcome.notes["H_minus"]) == (text, "别的：H_plus")
    assert [(term.text, term.weight) for term in shelf.plans[0].probes[0].terms] == [(text, 1), ("别的：H_plus", -1)]


def test_what_keeps_to_no_line_is_recorded_and_no_answer():
    method = make_method("chr", {}, None)
    outcome, _ = run(method, lambda prompt: '{"H_plus": "a"}', lines=True, wiki=Shelf(WIKI))
    assert outcome.failure == GARBLED
    assert "H_minus: Field required" in outcome.notes["problem"]
    outcome, _ = run(migres(), lambda prompt: "不", lines=True, wiki=Shelf(WIKI))
    assert (outcome.failure, outcome.notes["unreadable"]["text"]) == (GARBLED, "不")
