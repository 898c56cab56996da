"""HCQR: its two stages, its three queries, its ablations, and what becomes of a question without a hypothesis."""

import json
import logging

import pytest
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.errors import ConfigError
from querylect.llms.access import Llm
from querylect.methods.method import GARBLED, MISSING
from querylect.rewriters.base import StagedQuestion
from querylect.rewriters.delegating import MixedRewriter
from querylect.rewriters.hcqr import ChosenHypothesis, Hypothesis
from querylect.rewriters.registry import make_rewriter
from querylect.rollouts import llms
from querylect.rollouts.llms import FirstStages, answered

from ..raising import refused
from ..scripted import BM25, Collection, Script, run_named, terms

PLAIN = Question("plain", "why is the sky blue?")
CHOICE = Question("choice", "which scatters most?", ("blue light", "red light"))
EVIDENCE = {"confirming_evidence": ["Rayleigh's law"]}
FEATURES = {"discriminating_features": ["short waves", "noon"], "reasoning": "short waves scatter more", **EVIDENCE}
OPEN = json.dumps({**FEATURES, "best_guess": "scattering"})
CHOSEN = json.dumps({**FEATURES, "best_guess": "A", "best_guess_text": "blue light"})
LINES = "Discriminating features: short waves\nReasoning: so\nConfirming evidence: x\nBest guess: scattering"
BASE = LlmConfig(model="base")
QUERIES = "Query 1: s\nQuery 2: d\nQuery 3: k"


def hcqr(llm=None, **settings):
    return make_rewriter(RewriterConfig(name="hcqr", hcqr=settings, llm=llm), BM25, 10)


def staged(question, hypothesis):
    form = ChosenHypothesis if "best_guess_text" in hypothesis else Hypothesis
    return StagedQuestion.of(question, form.model_validate_json(hypothesis))


@pytest.mark.parametrize(
    ("settings", "question", "form", "has_options"),
    [
        ({}, CHOICE, ChosenHypothesis, True),
        ({"options": False}, CHOICE, Hypothesis, False),
        ({}, PLAIN, Hypothesis, False),
    ],
)
def test_the_formulator_sees_the_options_unless_they_are_off(settings, question, form, has_options):
    stage = hcqr(**settings).first_stage(question)
    text = stage.prompt.worded(stage.form, as_json=True).messages[-1]["content"]
    assert (stage.form, stage.llm) == (form, None)
    assert ("A. blue light\nB. red light" in text) == has_options == ("best_guess_text" in text)
    assert ('"A/B"' in text) == has_options
    assert question.text in text


def test_the_rewriter_is_asked_with_the_hypothesis_and_without_the_options():
    rewriter, question = hcqr(), staged(CHOICE, CHOSEN)
    (message,) = rewriter.first(question)
    for line in ("Best guess at the answer: blue light\n", "Key features: short waves; noon\n",
                 "Evidence needed: Rayleigh's law\n", "Reasoning: short waves scatter more\n"):  # fmt: skip
        assert line in message["content"]
    later = rewriter.follow_up(question, [Document("d", "T", "t")], 2)
    assert "Query 3:" in later
    assert "red light" not in message["content"] + later
    with refused(ConfigError, "'choice'"):
        rewriter.first(CHOICE)


@pytest.mark.parametrize(("role", "left"), [("support", ["d", "k"]), ("key_features", ["s", "d"])])
def test_an_ablated_query_is_written_and_not_searched(role, left):
    question = staged(PLAIN, OPEN)
    rewrite = hcqr(without=[role]).parse(question, QUERIES, 1)
    assert [[(text, 1.0)] for text in left] == terms(rewrite.plan)
    assert rewrite.rewrites == ("s", "d", "k")
    assert hcqr(without=[role]).first(question) == hcqr().first(question)


def test_both_stages_as_a_method():
    shelf, model = Collection("a", "b"), Script(f"<think>A or B?</think>{CHOSEN}", QUERIES)
    outcome = run_named("hcqr", CHOICE, model, shelf, without=["distinction"])
    assert terms(shelf.plans[0]) == [[("s", 1.0)], [("k", 1.0)]]
    assert outcome.notes["first_stage"]["best_guess_text"] == "blue light"
    assert outcome.notes["rewrites"] == ["s", "d", "k"]
    assert [document.id for document in outcome.documents] == ["a", "b"]


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        (("no idea", "still none"), GARBLED),
        ((json.dumps({**FEATURES, "best_guess": "x", "confirming_evidence": []}), "{}"), GARBLED),
        ((None,), MISSING),
        ((OPEN, None), MISSING),
        ((OPEN, "Query 1: only", "Query 1: still"), "missing part"),
    ],
)
def test_a_stage_that_fails_ends_the_method(answers, failure):
    shelf = Collection("a")
    outcome = run_named("hcqr", PLAIN, Script(*answers), shelf)
    assert (outcome.failure, outcome.documents, shelf.plans) == (failure, (), [])


@pytest.fixture
def opened(monkeypatch):
    """Models by name: what each is to say, in the order of the prompts; and which were opened."""
    scripts, names = {}, []

    def open_llm(config):
        names.append(config.model)
        return Llm(scripts[config.model], json_answers=config.model != "small")

    monkeypatch.setattr(llms, "open_llm", open_llm)
    return scripts, names


def ask(rewriter, questions, times=1):
    with FirstStages(rewriter, BASE, 100) as stages:
        return [stages.ask(questions) for _ in range(times)][-1]


def test_questions_fall_out_with_a_count(opened, caplog):
    scripts, names = opened
    questions = [Question(str(number), f"question {number}") for number in range(4)]
    scripts["base"] = Script(OPEN, "?", None, CHOSEN, "??")
    outcomes = ask(hcqr(), questions)
    assert outcomes[1:3] == [GARBLED, MISSING]
    with caplog.at_level(logging.WARNING):
        assert [question.id for question in answered(outcomes)] == ["0", "3"]
    assert names == ["base"], "the policy's own base model, once"
    assert all(fact in caplog.text for fact in ("2 of 4", f"1 {GARBLED}", f"1 {MISSING}"))
    assert ask(hcqr(), [outcomes[0]]) == [outcomes[0]], "what has an answer is not asked about again"


def test_in_a_mix_only_the_questions_of_its_environment_have_a_first_stage(opened):
    opened[0]["strong"] = Script(OPEN)
    strong, plain = hcqr(LlmConfig(model="strong")), make_rewriter(RewriterConfig(name="multi_query"), BM25)
    with refused(ConfigError, "a", "b"):
        MixedRewriter({"a": strong, "b": plain})
    hyde, query2doc = (make_rewriter(RewriterConfig(name=name), BM25) for name in ("hyde", "query2doc"))
    mixed = MixedRewriter({"a": hyde, "b": query2doc})
    assert ask(mixed, [Question("a/1", "why?")]) == [Question("a/1", "why?")]
    mixed = MixedRewriter({"a": strong, "b": hcqr()})
    (question,) = ask(mixed, [Question("a/1", "why?")])
    assert "scattering" in mixed.first(question)[0]["content"]
