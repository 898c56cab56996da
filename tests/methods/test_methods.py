"""Every method in bad surroundings: a model that is silent or writes garbage, a retriever that is down, few and many
options, other scripts, a content of one word. A question is answered or has a failure that says why; nothing is a
silent 0. And the prompts: a file of one's own replaces them."""

import json
import re

import pytest
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.llms.access import Llm
from querylect.llms.base import Text
from querylect.methods.method import MISSING, NO_RANKING, Runner
from querylect.methods.methods import METHODS, make_method, method_settings
from querylect.methods.prompts import prompt_text
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused
from ..scripted import ASKED, Scripted, Shelf, doc, form, ids, method_of, obliging, run

FORMED = ("multi_query", "hcqr", "chr", "migres", "cot", "main_rag")
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
GARBAGE = ["", "}{", "<think>never ends", '{"judge": "maybe"}', "\x00" * 40]
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


def ran(name, model, searcher):
    return Runner(Llm(Scripted(model)), {"": searcher}, Even()).run(make_method(name, {}, CARD), QUESTIONS)


@pytest.mark.parametrize("name", sorted(METHODS))
@pytest.mark.parametrize("text", GARBAGE, ids=["empty", "braces", "thinking", "json", "zeros"])
def test_garbage_is_a_failure_or_what_was_said(name, text):
    for result in [entry.result for entry in ran(name, lambda prompt: Text(text, True), OneWord())]:
        if name in FORMED or (name in WORDS and not text):
            assert result.failure
            assert (result.answer, result.documents) == (None, ())
        elif name in ANSWERS:
            assert (result.failure, result.answer is None) == ("", False)
        else:
            assert result.failure or result.documents
        json.dumps(dict(result.notes), ensure_ascii=True)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_model_that_gives_no_reply_is_no_answer(name):
    results = [entry.result for entry in ran(name, lambda prompt: None, OneWord())]
    assert {result.failure for result in results} == ({""} if name in WITHOUT_MODEL else {MISSING})
    assert {result.answer for result in results} == {None}


@pytest.mark.parametrize("name", sorted(set(METHODS) - {"direct_gen", "cot"}))
def test_a_retriever_that_is_down_is_no_empty_context(name):
    results = [entry.result for entry in ran(name, well_behaved, Shelf({}, down=True))]
    assert {(result.failure, result.documents, result.answer) for result in results} == {(NO_RANKING, (), None)}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_options_scripts_and_single_words_are_nothing_special(name):
    model = Scripted(well_behaved)
    results = Runner(Llm(model), {"": OneWord()}, Even()).run(make_method(name, {}, CARD), QUESTIONS)
    assert [(entry.question.id, entry.result.failure) for entry in results] == [(entry.id, "") for entry in QUESTIONS]
    if name in ("direct_gen", "cot"):
        assert all(entry.result.answer for entry in results)
    else:
        assert all(entry.result.documents for entry in results)
    if with_options := [prompt for prompt in model.prompts if "A. " in prompt]:
        assert any("J. option 9" in prompt for prompt in with_options), "all ten"
        assert any(re.search(r"A\. yes\nB\. no", prompt) for prompt in with_options)
        assert any("A. 疲劳\nB. 发热" in prompt for prompt in with_options)
    assert any("维生素D缺乏有什么症状？" in prompt for prompt in model.prompts) or name in WITHOUT_MODEL


def well_behaved(prompt):
    """Keeps to the form that a prompt asks for."""
    if "exactly one word: Yes or No" in prompt:
        return Text("Yes", True, {"Yes": -0.1, "No": -2.0})
    return obliging(prompt)


def test_settings_and_names_are_checked():
    for name, wrong in (("qa_rag", {"k": 0}), ("migres", {"sources": []})):
        with pytest.raises(ConfigError):
            method_of(name, **wrong)
    with refused(ConfigError, "'hcqrr'", "'hcqr'"):
        method_settings("hcqrr", {})


def test_a_file_replaces_the_prompts_that_it_has(tmp_path):
    (tmp_path / "mine.j2").write_text(
        "{% macro pick(question, documents, words) %}Pick! {{ question.text }}{% endmacro %}"
    )
    mine = str(tmp_path / "mine.j2")
    _, model = run(method_of("csqe", prompt=mine), lambda prompt: "none", wiki=Shelf({ASKED.text: [doc("a")]}))
    assert f"Pick! {ASKED.text}" in model.prompts
    assert any(prompt.startswith("Write a passage") for prompt in model.prompts)
    settings = [method_settings("csqe", {"prompt": file}) for file in (mine, None)]
    assert prompt_text("csqe", settings[0]).endswith("{% endmacro %}"), "what answers depend on"
    assert prompt_text("csqe", settings[0]).startswith(prompt_text("csqe", settings[1]))
    with refused(ConfigError, "nowhere.j2", "`prompt`"):
        run(method_of("csqe", prompt="nowhere.j2"), lambda _: "", wiki=Shelf({}))


def test_lines_of_a_local_model_come_to_the_same_context():
    judgement = "Thought: w1: nothing.\nJudge: yes\nMissing knowledge: the tamer\nQuery: dog tamers"
    wiki = Shelf({ASKED.text: [doc("w1"), doc("w2")], "dog tamers": [doc("w2"), doc("w9")]})
    answer = {True: judgement, False: "Ann"}
    result, model = run(method_of("misknow"), lambda text: answer["First answer" in text], lines=True, wiki=wiki)
    assert wiki.queries == [[ASKED.text], ["dog tamers"]]
    assert (ids(result), result.answer) == (["w1", "w2", "w9"], "Ann")
    assert "Thoughts on the passages above: w1: nothing." in model.prompts[-1]


def test_the_published_chr_asks_once_for_json():
    pair, shelf = (
        {"H_plus": "it raises dopamine", "H_minus": "it stops a virus"},
        Shelf({"it raises dopamine": [doc("a")]}),
    )
    question = Question("q", "which drug?", ("amantadine", "ribavirin"))
    result, model = run(method_of("chr", k=1, penalty=0.5), lambda prompt: form(**pair), question, wiki=shelf)
    weights = [(term.text, term.weight) for term in shelf.plans[0].probes[0].terms]
    assert (weights, ids(result)) == ([(pair["H_plus"], 1.0), (pair["H_minus"], -0.5)], ["a"])
    assert result.notes == {**pair, "penalty": 0.5}
    (prompt,) = model.prompts
    assert "A. amantadine\nB. ribavirin" in prompt
    assert "diagnosis" in prompt
    for answer in (form(H_plus="a"), form(H_plus="a", H_minus=" "), "H_plus: a\nno second line"):
        result, _ = run(method_of("chr"), lambda prompt, answer=answer: answer, wiki=(shelf := Shelf({})))
        assert (bool(result.failure), shelf.plans) == (True, [])
