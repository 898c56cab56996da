"""Misknow-RAG and its plain baselines, worked by hand: sources, budget, duplicates, the prompts."""

import pytest
from querylect.data.types import Question
from querylect.methods.method import MISSING, NO_RANKING
from querylect.methods.prompts import shortened
from querylect.methods.reading import NO_ANSWER, shares, usable

from ..scripted import ASKED, Shelf, cot, direct_gen, doc, form, ids, misknow, run, std_rag

QUERY = ASKED.text
WIKI = {QUERY: [doc("w1"), doc("w2"), doc("w3")], "dog tamers": [doc("w2"), doc("w9"), doc("w8")]}
PAIRS = {QUERY: [doc("p1"), doc("p2")], "dog tamers": [doc("p7"), doc("p8"), doc("p9")], "red dogs": [doc("p5")]}
MISSING_IT = form(
    thought="Passage 1 says nothing.", judge=True, missing_knowledge=["the tamer's name"], query=["dog tamers"]
)
ENOUGH = form(thought="All is there.", judge=False, missing_knowledge=[], query=[])


def judging(judgement, answer="Ann"):
    """A model with this judgement and the same answer to every reader's prompt."""
    return lambda prompt: judgement if "missing_knowledge" in prompt else answer


def sections(prompt):
    """The sections of a reader's prompt, by their heading."""
    parts = [part.partition("\n") for part in f"\n{prompt}".split("\n## ")[1:]]
    return {heading: body.strip() for heading, _, body in parts}


def test_a_second_search_adds_what_the_first_did_not_hold():
    wiki = Shelf(WIKI)
    result, model = run(misknow(), judging(MISSING_IT), wiki=wiki)
    assert wiki.queries == [[QUERY], ["dog tamers"]]
    assert [plan.k for plan in wiki.plans] == [2, 2], "two passages for each search, four in all"
    assert ids(result) == ["w1", "w2", "w9"], "w2 stands in both and is shown once"
    assert (result.answer, result.failure, result.notes["queries"]) == ("Ann", "", ["dog tamers"])
    draft, judge, final = model.prompts
    assert sections(draft)["Passages"] == "[1] text of w1\n[2] text of w2"
    assert "Missing knowledge" not in sections(draft)
    assert sections(judge)["Passages"] == sections(draft)["Passages"]
    assert (sections(judge)["First answer"], sections(judge)["Question"]) == ("Ann", QUERY)
    assert sections(final)["Passages"] == sections(draft)["Passages"]
    assert sections(final)["Missing knowledge"].splitlines() == [
        "More was wanted on: the tamer's name",
        "Thoughts on the passages above: Passage 1 says nothing.",
        "[3] text of w9",
    ]
    _, model = run(misknow(reasoning=False), judging(MISSING_IT), wiki=Shelf(WIKI))
    assert sections(model.prompts[-1])["Missing knowledge"].splitlines() == [
        "More was wanted on: the tamer's name",
        "[3] text of w9",
    ]


def test_nothing_is_searched_again_where_nothing_is_missing():
    contrary = form(thought="Fine.", judge=False, missing_knowledge=["a name"], query=["dog tamers"])
    for judgement, thought in ((ENOUGH, "All is there."), (contrary, "Fine.")):
        wiki = Shelf(WIKI)
        result, model = run(misknow(), judging(judgement), wiki=wiki)
        assert (wiki.queries, ids(result)) == ([[QUERY]], ["w1", "w2"])
        assert sections(model.prompts[-1])["Missing knowledge"] == f"Thoughts on the passages above: {thought}"
    _, model = run(misknow(reasoning=False), judging(ENOUGH), wiki=Shelf(WIKI))
    assert model.prompts[-1] == model.prompts[0], "nothing has come to the draft's prompt: a cache knows the reply"


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (["wiki"], ["wiki"], ["w1", "w2", "w9"]),
        (["pairs"], ["pairs"], ["p1", "p2", "p7", "p8"]),
        (["wiki"], ["pairs"], ["w1", "w2", "p7", "p8"]),
        (["pairs"], ["wiki"], ["p1", "p2", "w2", "w9"]),
        (["wiki", "pairs"], ["pairs", "wiki"], ["w1", "p1", "p7", "w2"]),
    ],
)
def test_each_search_has_its_sources_in_their_order(first, second, expected):
    result, _ = run(misknow(first=first, second=second), judging(MISSING_IT), wiki=Shelf(WIKI), pairs=Shelf(PAIRS))
    assert ids(result) == expected
    assert result.sources == tuple({"w": "wiki", "p": "pairs"}[name[0]] for name in expected)


def test_a_passage_is_the_same_whatever_its_id_and_source():
    wiki = Shelf({QUERY: [doc("w1", "Ann did it."), doc("w2", "Ann did it.")], "dog tamers": [doc("w3", "Bob")]})
    pairs = Shelf({QUERY: [doc("p1", "Ann did it."), doc("p2", "Bob")]})
    result, _ = run(std_rag(sources=["wiki", "pairs"]), judging(ENOUGH), wiki=wiki, pairs=pairs)
    assert (ids(result), result.sources) == (["w1", "p2"], ("wiki", "pairs"))


def test_several_queries_share_the_budget_and_blank_or_known_ones_are_not_made():
    queries = ["dog tamers", " ", QUERY, "red dogs", "dog tamers ", "y", "z", "x"]
    pairs = Shelf(PAIRS)
    judgement = form(thought="", judge=True, missing_knowledge=[], query=queries)
    result, _ = run(misknow(second_k=3), judging(judgement), pairs=pairs)
    (plan,) = pairs.plans[1:]
    assert (pairs.queries[1], plan.fuse, plan.k) == (["dog tamers", "red dogs", "y", "z"], "interleave", 3)
    assert ids(result) == ["p1", "p2", "p7", "p5", "p8"]
    assert result.notes["judgement"]["query"] == queries, "what was said is kept whole"
    assert [shares(4, 2), shares(5, 2), shares(7, 3), shares(1, 1)] == [[2, 2], [3, 2], [3, 2, 2], [1]]
    assert usable([" b ", "", "b", "a", "\ud800"], ["a"], 9) == ["b"]


def test_without_a_readable_judgement_the_draft_is_the_answer():
    wrong_type = form(thought="x", judge="partly", missing_knowledge=[], query=[])
    for garbled in ("ąę 狗 {]", wrong_type):
        result, model = run(misknow(), judging(garbled), wiki=Shelf(WIKI))
        assert (result.failure, result.answer, ids(result)) == ("", "Ann", ["w1", "w2"])
        assert (result.notes["draft_kept"], len(model.prompts)) == (True, 3), "draft, judgement, its repair"
        assert (result.sources, result.notes["text"]) == (("", ""), garbled)
    result, _ = run(misknow(answers=False), judging(wrong_type), wiki=Shelf(WIKI))
    assert (result.failure, result.answer, ids(result)) == ("", None, ["w1", "w2"]), "another reader answers"


def test_what_is_wrong_is_recorded_and_never_answered():
    wiki, down = Shelf(WIKI), Shelf(WIKI, down=True)
    result, _ = run(misknow(first=["wiki"], second=["pairs"]), judging(MISSING_IT), wiki=wiki, pairs=down)
    assert (result.failure, result.notes["down"], result.answer) == (NO_RANKING, "pairs", None)
    last = iter(["Ann", None])
    result, _ = run(misknow(), lambda text: MISSING_IT if "missing_knowledge" in text else next(last), wiki=wiki)
    assert (result.failure, result.answer) == (MISSING, None)


def test_empty_rankings_and_other_scripts_work():
    result, model = run(misknow(), judging(MISSING_IT), wiki=Shelf({}))
    assert (result.documents, result.failure, result.answer) == ((), "", "Ann")
    assert sections(model.prompts[1])["Passages"] == "(none was found)"
    assert "Passages" not in sections(model.prompts[0]), "the reader answers from what it knows"
    question = Question("z", "谁驯服了红狗?")
    judgement = form(thought="缺少名字", judge=True, missing_knowledge=["名字"], query=["驯狗师"])
    wiki = Shelf({question.text: [doc("1", "狗")], "驯狗师": [doc("2", "安" * 2000)]})
    result, model = run(misknow(), judging(judgement, "安"), question, wiki=wiki)
    assert (ids(result), result.answer) == (["1", "2"], "安")
    assert f"[2] {'安' * 1600}…\n" in model.prompts[-1], "200 words of 8 characters where no spaces are set"
    assert shortened("one two three", 2) == "one two…"


def test_plain_baselines():
    result, model = run(direct_gen(), lambda prompt: "<think>hm</think> Ann ")
    assert (result.answer, result.documents, "assage" in model.prompts[0]) == ("Ann", (), False)
    assert run(direct_gen(), lambda prompt: "")[0].answer == "", "an empty text is what the model said"
    result, model = run(cot(), lambda prompt: "The dog was wild.\nAnswer: **Ann**\n")
    assert (result.answer, result.failure) == ("Ann", "")
    assert "step by step" in model.prompts[0]
    garbage, _ = run(cot(), lambda prompt: "Ann, I think")
    assert (garbage.answer, garbage.failure, garbage.notes["text"]) == (None, NO_ANSWER, "Ann, I think")
    result, model = run(std_rag(k=2), lambda prompt: "Ann", wiki=Shelf(WIKI))
    assert (ids(result), result.answer) == (["w1", "w2"], "Ann")
    assert sections(model.prompts[0])["Passages"] == "[1] text of w1\n[2] text of w2"
