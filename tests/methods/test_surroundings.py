"""Every method in bad surroundings: an endpoint that hangs, garbage, a retriever that is down, few and many options,
other scripts, a content of one word. A question is answered or has a failure that says why; nothing is a silent 0."""

import json
import re

import pytest
from querylect.data.types import Question
from querylect.llms.access import Llm
from querylect.llms.base import Text
from querylect.methods.method import MISSING, NO_RANKING
from querylect.methods.methods import METHODS, make_method
from querylect.methods.runner import Runner
from querylect.rewriters.retriever_info import RetrieverInfo

from ..method_doubles import Scripted, doc
from ..obliging import obliging
from ..scripted import Down

pytestmark = pytest.mark.model

FORMED = ("multi_query", "hcqr", "chr", "migres", "cot")
"""Methods that read a form: what is none is a failure, whatever it says."""
WORDS = ("hyde", "query2doc", "csqe", "thinkqe", "qa_rag")
"""Methods that search with whatever was written, as long as something was."""
ANSWERS = ("direct_gen", "std_rag", "misknow")
"""Methods whose answer is whatever was written, the empty text too; of misknow it is the draft."""
WITHOUT_MODEL = ("rerank",)
QUESTIONS = [
    Question("plain", "Who tamed the red dog?"),
    Question("two", "Is it red?", ("yes", "no")),
    Question("ten", "Which one is it?", tuple(f"option {number}" for number in range(10))),
    Question("zh", "维生素D缺乏有什么症状？", ("疲劳", "发热")),
    Question("ar", "ما الذي يخفض السكر؟"),
    Question("word", "statin"),
]
GARBAGE = ["", "}{", "<think>never ends", "\ud800 half a character", '{"judge": "maybe"}', "\x00" * 40]
CARD = RetrieverInfo("bm25", "bm25")


class OneWord:
    """Finds three contents for every plan: one of a single word, one of another script, one without a title."""

    def search(self, plans, with_text=True):
        from querylect.envs.schemas import HitBody, PlanResult

        documents = [doc("word", "statin"), doc("zh", "维生素D", "标题"), doc("empty", "")]
        hits = [HitBody(id=document.id, score=1, title=document.title, text=document.text) for document in documents]
        return [PlanResult(ranking=hits) for _ in plans]


class Even:
    """A cross-encoder to which all documents are alike."""

    def scores(self, question, texts):
        return [0.0] * len(texts)


def ran(name, llm, searcher, questions=QUESTIONS):
    method = make_method(name, {}, CARD)
    return Runner(llm, {"": searcher}, Even()).run(method, questions)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("text", GARBAGE, ids=["empty", "braces", "thinking", "surrogate", "json", "zeros"])
def test_garbage_is_a_failure_or_what_was_said(name, text):
    outcomes = [result.outcome for result in ran(name, Llm(Scripted(lambda prompt: Text(text, True))), OneWord())]
    for outcome in outcomes:
        if name in FORMED or name == "main_rag" or (name in WORDS and not text):
            assert outcome.failure
            assert (outcome.answer, outcome.documents if name in WORDS else ()) == (None, ())
        elif name in ANSWERS:
            assert (outcome.failure, outcome.answer is None) == ("", False)
        else:
            assert outcome.failure or outcome.documents
        json.dumps(dict(outcome.notes), ensure_ascii=True, default=str)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_model_that_gives_no_reply_is_no_answer(name):
    outcomes = [result.outcome for result in ran(name, Llm(Scripted(lambda prompt: None)), OneWord())]
    assert {outcome.failure for outcome in outcomes} == ({""} if name in WITHOUT_MODEL else {MISSING})
    assert {outcome.answer for outcome in outcomes} == {None}


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"direct_gen", "cot"}))
def test_a_retriever_that_is_down_is_no_empty_context(name):
    outcomes = [result.outcome for result in ran(name, Llm(Scripted(well_behaved)), Down())]
    assert {(outcome.failure, outcome.documents, outcome.answer) for outcome in outcomes} == {(NO_RANKING, (), None)}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_options_scripts_and_single_words_are_nothing_special(name):
    model = Scripted(well_behaved)
    results = ran(name, Llm(model), OneWord())
    assert [(entry.question.id, entry.outcome.failure) for entry in results] == [(entry.id, "") for entry in QUESTIONS]
    if name in ("direct_gen", "cot"):
        assert all(entry.outcome.answer for entry in results)
    else:
        assert all(entry.outcome.documents for entry in results)
    if with_options := [prompt for prompt in model.prompts if "A. " in prompt]:
        assert any("J. option 9" in prompt for prompt in with_options), "all ten"
        assert any(re.search(r"A\. yes\nB\. no", prompt) for prompt in with_options)
        assert any("A. 疲劳\nB. 发热" in prompt for prompt in with_options)
    assert any("维生素D缺乏有什么症状？" in prompt for prompt in model.prompts) or name in WITHOUT_MODEL


@pytest.mark.parametrize("name", sorted(METHODS))
def test_whatever_a_method_writes_up_to_its_limit_is_counted(name):
    def cut(prompt):
        text = well_behaved(prompt)
        return text if isinstance(text, Text) else Text(text, False)

    for result in ran(name, Llm(Scripted(cut)), OneWord()):
        judged = 3 * (name == "main_rag")  # by their first token, the only one that is asked for
        assert result.spent.cut == result.spent.calls - judged


def well_behaved(prompt):
    """Keeps to the form that a prompt asks for."""
    if "exactly one word: Yes or No" in prompt:
        return Text("Yes", True, {"Yes": -0.1, "No": -2.0})
    return obliging(prompt)
