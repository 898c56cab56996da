"""QA-RAG, MIGRES, Rerank and MAIN-RAG, worked by hand."""

import math

import pytest
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.llms.base import Text
from querylect.methods.main_rag import NO_JUDGEMENT, FirstTokenJudgement, judge, keep
from querylect.methods.method import GARBLED, MISSING, NO_RANKING
from querylect.methods.qa_rag import EMPTY

from ..method_doubles import ASKED, Shelf, doc, form, ids, main_rag, migres, qa_rag, rerank, run

pytestmark = pytest.mark.model

QUERY = ASKED.text


class Table:
    """A cross-encoder that looks up the score of a document's text."""

    def __init__(self, scores):
        self.table, self.requests = scores, []

    def scores(self, question, texts):
        self.requests.append((question, list(texts)))
        return [self.table[text] for text in texts]


def test_rerank_keeps_the_best_candidates_and_ties_stay_in_order():
    shelf = Shelf({QUERY: [doc(name, name) for name in "abcde"]})
    scores = Table({"a": 0.0, "b": 2.0, "c": -1.0, "d": 2.0, "e": 0.0})
    outcome, _ = run(rerank(candidates=4, k=3), None, cross_encoder=scores, wiki=shelf)
    assert (shelf.plans[0].k, scores.requests) == (4, [(QUERY, ["a", "b", "c", "d"])])
    assert (ids(outcome), outcome.notes["scores"], outcome.plan) == (["b", "d", "a"], [2.0, 2.0, 0.0], None)
    shelf = Shelf({QUERY: [doc(str(number)) for number in range(200)]})
    outcome, _ = run(rerank(), None, cross_encoder=Table({f"text of {n}": n for n in range(200)}), wiki=shelf)
    assert ids(outcome) == [str(number) for number in range(149, 134, -1)], "15 of 150"


def test_rerank_without_candidates_or_retriever():
    scores = Table({})
    outcome, _ = run(rerank(), None, cross_encoder=scores, wiki=Shelf({}))
    assert (outcome.documents, outcome.failure, scores.requests) == ((), "", [])
    assert run(rerank(), None, cross_encoder=Table({}), wiki=Shelf({}, down=True))[0].failure == NO_RANKING
    for wrong in ({"k": 0}, {"k": 5, "candidates": 4}):
        with pytest.raises(ConfigError):
            rerank(**wrong)


def test_qa_rag_searches_with_the_answer_alone():
    shelf = Shelf({"It was Ann.": [doc("a"), doc("b")], QUERY: [doc("c"), doc("a2", "text of a")]})
    outcome, _ = run(qa_rag(k=2), lambda prompt: "<think>x</think> It was Ann.", wiki=shelf)
    assert (shelf.queries, ids(outcome), outcome.plan) == ([["It was Ann."]], ["a", "b"], shelf.plans[0])


def test_qa_rag_without_an_answer_has_nothing_to_search_with():
    shelf = Shelf({})
    assert run(qa_rag(), lambda prompt: " \n", wiki=shelf)[0].failure == EMPTY
    assert run(qa_rag(), lambda prompt: None, wiki=shelf)[0].failure == MISSING
    assert shelf.plans == []
    assert run(qa_rag(), lambda prompt: "x", wiki=Shelf({}, down=True))[0].failure == NO_RANKING
    empty, _ = run(qa_rag(), lambda prompt: "安", wiki=shelf)
    assert (empty.failure, empty.documents, empty.notes["written"]) == ("", (), "安")
    with pytest.raises(ConfigError):
        qa_rag(k=0)


class Steps:
    """Answers each step of MIGRES with the next of its own scripted values."""

    def __init__(self, **values):
        self.values, self.prompts = {name: iter(replies) for name, replies in values.items()}, []

    def __call__(self, prompt):
        self.prompts.append(prompt)
        keys = {"help to answer": "filter", "Write down": "extract", "suffice": "judge", "simple query": "queries"}
        step = next((name for start, name in keys.items() if start in prompt.partition("\n")[0]), "answer")
        return next(self.values[step])


def piece(passage, information):
    return {"passage": passage, "information": information}


FOUND = {QUERY: [doc("a"), doc("b"), doc("c")], "Ann's dog": [doc("c"), doc("d")], "kennel": [doc("d"), doc("a")]}


def test_migres_gathers_information_until_nothing_is_missing():
    model = Steps(
        filter=[form(passages=[1, 3, 7]), form(passages=[1])],
        extract=[
            form(pieces=[piece(2, "Ann has a dog."), piece(9, "Made up."), piece(1, " ")]),
            form(pieces=[piece(1, "It is red.")]),
        ],
        judge=[form(sufficient=False, missing=["its colour"]), form(sufficient=True, missing=["x"])],
        queries=[form(queries=["Ann's dog", QUERY])],
        answer=["Ann"],
    )
    shelf = Shelf(FOUND)
    outcome, _ = run(migres(k=3), model, wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"]]
    assert ids(outcome) == ["c", "d"], "a was kept and gave nothing; b was filtered out; c was not shown twice"
    assert outcome.notes["information"] == ["Ann has a dog.", "It is red."]
    assert (outcome.notes["unfounded"], outcome.notes["missing"], outcome.answer) == ([2, 0], [], "Ann")
    filtered, extracted, judged, query_prompt, second, _, _, answer_prompt = model.prompts
    assert "[3] text of c" in filtered
    assert "[1] text of a\n[2] text of c" in extracted, "only what the filter left, numbered anew"
    assert "## Information\n- Ann has a dog.\n" in judged
    assert "## Missing\n- its colour" in query_prompt
    assert f"made before\n- {QUERY}" in query_prompt
    assert "[1] text of d\n" in second
    assert "text of c" not in second
    assert "- Ann has a dog.\n- It is red." in answer_prompt
    assert "[1] text of c\n[2] text of d" in answer_prompt


def test_migres_ends_after_its_rounds_or_without_a_new_query():
    def model(query_rounds):
        return Steps(
            filter=[form(passages=[])] * 9,
            judge=[form(sufficient=False, missing=["all"])] * 9,
            queries=[form(queries=queries) for queries in query_rounds],
            answer=["Ann"],
        )

    shelf, steps = Shelf(FOUND), model([["Ann's dog"], ["kennel"], ["more"]])
    outcome, _ = run(migres(k=3), steps, wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"], ["kennel"]]
    assert (outcome.documents, outcome.notes["missing"], outcome.answer) == ((), ["all"], "Ann")
    assert len(steps.prompts) == 8, "filter, judge and queries twice, judge (nothing new is found), answer"
    shelf = Shelf(FOUND)
    run(migres(k=3), model([["Ann's dog"], [QUERY, " "]]), wiki=shelf)
    assert shelf.queries == [[QUERY], ["Ann's dog"]]


def test_migres_records_what_is_wrong():
    outcome, _ = run(migres(), lambda prompt: "no json, 不", wiki=Shelf(FOUND))
    unread = outcome.notes["unreadable"]
    assert (outcome.failure, unread["step"], unread["text"]) == (GARBLED, "Kept", "no json, 不")
    assert run(migres(), lambda prompt: None, wiki=Shelf(FOUND))[0].failure == MISSING
    assert run(migres(), lambda prompt: None, wiki=Shelf(FOUND, down=True))[0].failure == NO_RANKING
    empty = Steps(judge=[form(sufficient=True, missing=[])], answer=["Ann"])
    outcome, _ = run(migres(), empty, wiki=Shelf({}))
    assert (outcome.answer, outcome.documents, len(empty.prompts)) == ("Ann", (), 2)
    outcome, _ = run(
        migres(answers=False), Steps(judge=[form(sufficient=True, missing=[])]), wiki=Shelf({}), pairs=Shelf({})
    )
    assert (outcome.answer, outcome.failure) == (None, "")
    for wrong in ({"sources": ()}, {"k": 0}):
        with pytest.raises(ConfigError):
            migres(**wrong)


def judged(**verdicts):
    """A predictor that answers "Ann from X" and a judge with the given first tokens (or text) for each document."""

    def answer(prompt):
        name = prompt.partition("Document: text of ")[2].split("\n")[0]
        if "You tell useful documents from noise" not in prompt:
            return None if verdicts[name] == "no prediction" else f"Ann from {name}"
        first = verdicts[name]
        return None if first is None else Text("?", True, first)

    return answer


def test_main_rag_keeps_what_is_at_or_above_the_mean_best_first():
    verdicts = {
        "a": {"Yes": -1.0, "No": -1.0},
        "b": {"Yes": -0.5, "No": -2.5},
        "c": {"No": -0.5, "Yes": -4.5},
        "d": {"Yes": -1.0, "No": -3.0},
        "e": {"Yes": -1.5, "No": -1.5},
    }
    shelf = Shelf({QUERY: [doc(name) for name in "abcde"]})
    outcome, model = run(main_rag(), judged(**verdicts), wiki=shelf)
    assert outcome.notes["scores"] == [0, 2, -4, 2, 0]
    assert outcome.notes["threshold"] == 0, "the mean of 0, 2, -4, 2 and 0"
    assert ids(outcome) == ["b", "d", "a", "e"], "a score that is the mean stays; equal scores in the given order"
    assert (shelf.plans[0].k, len(model.prompts), outcome.plan) == (15, 10, None)
    assert outcome.notes["predictions"][0] == "Ann from a"
    assert "Answer: Ann from a" in model.prompts[5], "all documents are answered from, then all judged"
    assert [(draw.max_tokens, draw.first_logprobs) for draw in model.draws[4:6]] == [(32, 0), (1, 20)]


def test_scores_that_are_equal_or_are_the_mean_stay_whatever_is_rounded():
    documents = [doc(str(number)) for number in range(3)]
    assert keep(documents, [0.1, 0.1, 0.1])[1] == tuple(documents)
    assert [document.id for document in keep(documents, [0.1, 0.2, 0.3])[1]] == ["2", "1"]
    assert keep(documents, [None, -1.0, None]) == (-1.0, (documents[1],))
    assert keep((), ()) == (None, ())


def test_a_judge_that_says_neither_is_recorded_and_scores_nothing():
    verdicts = {
        "a": {"Yes": -0.25, "No": -2.25},
        "b": {"Maybe": -0.1, "<think>": -3.0},
        "c": {},
        "d": None,
        "e": "no prediction",
    }
    outcome, _ = run(main_rag(), judged(**verdicts), wiki=Shelf({QUERY: [doc(name) for name in "abcde"]}))
    assert (ids(outcome), outcome.notes["threshold"]) == (["a"], 2.0)
    assert outcome.notes["scores"] == [2.0, None, None, None, None]
    assert outcome.notes["unjudged"] == {"b": "said '?'", "c": "said '?'", "d": "no reply", "e": "no prediction"}
    for names, failure in (("bc", NO_JUDGEMENT), ("bcd", MISSING), ("be", MISSING)):
        outcome, _ = run(main_rag(), judged(**verdicts), wiki=Shelf({QUERY: [doc(name) for name in names]}))
        assert (outcome.failure, outcome.documents) == (failure, ())
    outcome, _ = run(main_rag(), judged(), wiki=Shelf({}))
    assert (outcome.failure, outcome.documents) == ("", ())
    assert run(main_rag(), judged(), wiki=Shelf({}, down=True))[0].failure == NO_RANKING


def test_the_score_of_first_tokens():
    assert judge({"Yes": -0.5, "No": -2.0, "the": -5.0}) == FirstTokenJudgement(1.5, False)
    both = judge({" Yes": math.log(0.3), "yes": math.log(0.2), "▁No": math.log(0.25)})
    assert both.score == pytest.approx(math.log(2))
    assert judge({"yesterday": -0.1, "Nope": -2.0}) is None
    assert judge({}) is None
    listed = judge({"Yes": math.log(0.6), "the": math.log(0.2), "a": math.log(0.05)})
    assert listed == (pytest.approx(math.log(12)), True), "No is at most as likely as the least that is listed"
    assert judge({"No": math.log(0.9)}) == (pytest.approx(-math.log(9)), True), "one token, and 0.1 for all others"
    assert judge({"Yes": 0.0, "No": -math.inf}) == (pytest.approx(24 * math.log(2)), True)


def test_main_rag_shows_options():
    question = Question("o", "Which one?", ("red", "blue"))
    _, model = run(main_rag(), judged(a={"Yes": -1.0}), question, wiki=Shelf({"Which one?": [doc("a")]}))
    assert all("Which one?\nA. red\nB. blue" in prompt for prompt in model.prompts)
    assert "letter" in model.prompts[0]


@pytest.mark.parametrize("length", [None, 8])
def test_the_cross_encoder_of_environments_serves_methods(tmp_path, length):
    from querylect.configs.environment import RerankConfig
    from querylect.envs.retrievers.rerank import PairScorer
    from sentence_transformers import CrossEncoder
    from torch import nn

    from ..encoders import save_cross_encoder

    folder = save_cross_encoder(tmp_path / "cross")
    scorer = PairScorer(RerankConfig(model=str(folder), max_length=length))
    texts = ["aspirin relieves headache", "insulin lowers blood glucose in the blood", "安"]
    peer = CrossEncoder(str(folder), activation_fn=nn.Identity(), max_length=length)
    expected = [float(peer.predict([(QUERY, text)], show_progress_bar=False)[0]) for text in texts]
    assert scorer.scores(QUERY, texts) == pytest.approx(expected, abs=1e-5)
    assert len(set(expected)) > 1
    assert scorer.scores(QUERY, []) == []
    shelf = Shelf({QUERY: [doc(str(index), text) for index, text in enumerate(texts)]})
    outcome, _ = run(rerank(k=2), None, cross_encoder=scorer, wiki=shelf)
    assert outcome.notes["scores"] == pytest.approx(sorted(expected, reverse=True)[:2], abs=1e-5)
