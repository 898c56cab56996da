"""HCQR: its two stages, its three queries, its ablations, and what becomes of a question without a hypothesis."""

import json
import logging
from typing import get_args

import pytest
from querylect.configs.evaluation import SystemConfig
from querylect.configs.llm import LlmConfig
from querylect.configs.rewriter import QueryRole, RewriterConfig
from querylect.configs.schema import PolicyConfig, RolloutConfig
from querylect.data.types import Document, Question
from querylect.errors import ConfigError
from querylect.eval.identity import prompts_identity, system_identity
from querylect.llms.access import Llm
from querylect.methods.method import GARBLED, MISSING
from querylect.methods.methods import make_method
from querylect.methods.runner import Runner
from querylect.rewriters.hcqr import ChosenHypothesis, Hypothesis
from querylect.rewriters.mixed import MixedRewriter
from querylect.rewriters.registry import make_rewriter
from querylect.rollouts import first_stage as stages
from querylect.rollouts.first_stage import ask_first_stage

from ..raising import refused
from ..scripted import BM25, Collection, Script, run, terms

PLAIN = Question("plain", "why is the sky blue?")
CHOICE = Question("choice", "which scatters most?", ("blue light", "red light"))
EVIDENCE = {"confirming_evidence": ["Rayleigh's law"]}
FEATURES = {"discriminating_features": ["short waves", "noon"], "reasoning": "short waves scatter more", **EVIDENCE}
OPEN = json.dumps({**FEATURES, "best_guess": "scattering"})
CHOSEN = json.dumps({**FEATURES, "best_guess": "A", "best_guess_text": "blue light"})
LINES = "Discriminating features:\n1. short waves\nReasoning: so\nConfirming evidence: x\nBest guess: scattering"
BASE = PolicyConfig(model="base")
QUERIES = "Query 1: s\nQuery 2: d\nQuery 3: k"


def hcqr(llm=None, **settings):
    return make_rewriter(RewriterConfig(name="hcqr", hcqr=settings, llm=llm), BM25, 10)


def learned(question=PLAIN, **settings):
    rewriter = hcqr(**settings)
    rewriter.learn(question, Hypothesis.model_validate_json(OPEN))
    return rewriter


def test_the_formulator_sees_the_options_unless_they_are_off():
    for settings, question, form, has_options in (
        ({}, CHOICE, ChosenHypothesis, True),
        ({"options": False}, CHOICE, Hypothesis, False),
        ({}, PLAIN, Hypothesis, False),
    ):
        stage = hcqr(**settings).stage(question)
        prompt_text = message_text(stage)
        assert stage.ask.form is form
        assert ("A. blue light\nB. red light" in prompt_text) == has_options == ("best_guess_text" in prompt_text)
        assert question.text in prompt_text
        assert stage.llm is None
    ten_options = Question("many", "which?", tuple(f"option {number}" for number in range(10)))
    assert '"A/B/C/D/E/F/G/H/I/J"' in message_text(hcqr().stage(ten_options))
    assert "\nBest guess: <A/B/C/D/E/F/G/H/I/J>\n" in message_text(hcqr().stage(ten_options), "lines", 0)


def message_text(stage, way="json", message=-1):
    return stage.ask.prompt.worded(stage.ask.form, way).messages[message]["content"]


def test_the_rewriter_is_asked_with_the_hypothesis_and_without_the_options():
    rewriter = hcqr()
    rewriter.learn(CHOICE, ChosenHypothesis.model_validate_json(CHOSEN))
    (message,) = rewriter.first(CHOICE)
    for line in ("Best guess at the answer: blue light\n", "Key features: short waves; noon\n",
                 "Evidence needed: Rayleigh's law\n", "Reasoning: short waves scatter more\n"):  # fmt: skip
        assert line in message["content"]
    assert "red light" not in message["content"]
    assert rewriter.opening == "Query 1:"
    later = rewriter.follow_up(CHOICE, [Document("d", "T", "t")], 2)
    assert "Query 3:" in later
    assert "red light" not in later, "nor in a later turn"
    rewriter.learn(CHOICE, Hypothesis.model_validate_json(OPEN))
    assert "scattering" in rewriter.first(CHOICE)[0]["content"], "the newest hypothesis counts"


def test_three_queries_are_searched_five_documents_each_and_at_most_fifteen_in_all():
    plan = learned().parse(PLAIN, "s\nQuery 2: d\nQuery 3: k", 1).plan
    assert terms(plan) == [[("s", 1.0)], [("d", 1.0)], [("k", 1.0)]]
    assert ([probe.k for probe in plan.probes], plan.fuse, plan.k) == ([5, 5, 5], "interleave", 15)


@pytest.mark.parametrize(
    ("role", "left"), [("support", ["d", "k"]), ("distinction", ["s", "k"]), ("key_features", ["s", "d"])]
)
def test_an_ablated_query_is_written_and_not_searched(role, left):
    rewriter = learned(without=[role])
    rewrite = rewriter.parse(PLAIN, QUERIES.removeprefix("Query 1:"), 1)
    assert [[(text, 1.0)] for text in left] == terms(rewrite.plan)
    assert rewrite.rewrites == ("s", "d", "k")
    assert rewriter.first(PLAIN) == learned().first(PLAIN)
    assert role in get_args(QueryRole)


def test_both_stages_as_a_method():
    shelf, model = Collection("a", "b"), Script(f"<think>A or B?</think>{CHOSEN}", QUERIES)
    outcome = run("hcqr", CHOICE, model, shelf, without=["distinction"])
    assert terms(outcome.plan) == [[("s", 1.0)], [("k", 1.0)]]
    assert outcome.notes["first_stage"]["best_guess_text"] == "blue light"
    assert outcome.notes["rewrites"] == ["s", "d", "k"]
    assert [draw.max_tokens for draw in model.draws] == [2048, 512]
    assert [document.id for document in outcome.documents] == ["a", "b"]


@pytest.mark.parametrize(
    ("answers", "failure"),
    [
        (("no idea", "still none"), GARBLED),
        ((OPEN.replace("scattering", " "), "{}"), GARBLED),
        ((json.dumps({**FEATURES, "best_guess": "x", "confirming_evidence": []}), "{}"), GARBLED),
        ((None,), MISSING),
        ((OPEN, None), MISSING),
        ((OPEN, "Query 1: only", "Query 1: still"), "missing part"),
    ],
)
def test_a_stage_that_fails_ends_the_method(answers, failure):
    shelf = Collection("a")
    outcome = run("hcqr", PLAIN, Script(*answers), shelf)
    assert (outcome.failure, outcome.documents, shelf.plans) == (failure, (), [])


@pytest.fixture
def opened(monkeypatch):
    """Models by name: what each is to say, in the order of the prompts; and which were opened."""
    scripts, names = {}, []

    def open_llm(config):
        names.append(config.model)
        return Llm(scripts[config.model])

    monkeypatch.setattr(stages, "open_llm", open_llm)
    return scripts, names


def test_questions_fall_out_with_a_count(opened, caplog):
    scripts, names = opened
    questions = [Question(str(number), f"question {number}") for number in range(4)]
    scripts["base"] = Script(OPEN, "?", None, OPEN, "??")
    rewriter = hcqr()
    reported = []
    with caplog.at_level(logging.WARNING):
        remaining = ask_first_stage(
            rewriter, questions, BASE, lost=lambda dropped, why: reported.append((dropped.id, why))
        )
    assert reported == [("1", GARBLED), ("2", MISSING)]
    assert [question.id for question in remaining] == ["0", "3"]
    assert names == ["base"], "the policy's own base model, once"
    assert all(fact in caplog.text for fact in ("2 of 4", f"1 {GARBLED}", f"1 {MISSING}"))
    rewriter.first(questions[3])
    with refused(ConfigError, "'1'"):
        rewriter.first(questions[1])


def test_where_all_fall_out_the_run_ends(opened):
    opened[0]["weak"] = Script("?", "?")
    with refused(ConfigError, "1 of 1 ", "rewriter.llm"):
        ask_first_stage(hcqr(LlmConfig(model="weak")), [PLAIN], BASE)


def test_a_small_model_forms_hypotheses_in_lines(opened):
    opened[0]["base"] = Script(LINES, "?", "??")
    rewriter = make_rewriter(RewriterConfig(name="hcqr", form="lines"), BM25, 10)
    questions = [PLAIN, Question("other", "why not?")]
    assert ask_first_stage(rewriter, questions, BASE) == [PLAIN]
    assert "Best guess at the answer: scattering" in rewriter.first(PLAIN)[0]["content"]


def test_forms_do_not_mix_and_several_processes_ask_once(opened):
    opened[0]["base"] = Script(OPEN, CHOSEN)
    results = []

    def once(ask):
        results.append(ask())
        return results[0]

    first, second = hcqr(), hcqr()
    ask_first_stage(first, [PLAIN, CHOICE], BASE, once)
    ask_first_stage(second, [PLAIN, CHOICE], BASE, lambda ask: results[0])
    assert "Best guess at the answer: blue light" in second.first(CHOICE)[0]["content"]
    assert second.first(PLAIN) == first.first(PLAIN)
    assert len(opened[0]["base"].prompt_texts) == 2


def identity(rewriter, **settings):
    config = RewriterConfig(name=rewriter, **settings)
    return system_identity(SystemConfig(turns=2), PolicyConfig(), RolloutConfig(), config, 0)


def test_a_system_is_recognised_by_its_prompts_and_its_own_settings():
    assert identity("hcqr") != identity("multi_query")
    strong = LlmConfig(model="strong")
    assert identity("hcqr")["rewriter"] != identity("hcqr", llm=strong)["rewriter"]
    assert identity("chr")["rewriter"] != identity("chr", chr={"penalty": 0.5})["rewriter"]


def test_changed_prompts_are_not_those_of_earlier_answers(tmp_path):
    config = RewriterConfig(name="small", prompt=str(tmp_path / "prompt.yaml"))
    prompt, code = tmp_path / "prompt.yaml", tmp_path / "levels.py"
    identities = set()
    for texts in (("one", "one"), ("other", "one"), ("other", "other")):
        for path, text in zip((prompt, code), texts, strict=True):
            path.write_text(text)
        identities.add(prompts_identity(config, tmp_path))
    assert len(identities) == 3


def test_in_a_mix_only_the_questions_of_its_environment_have_a_first_stage(opened):
    opened[0]["strong"] = Script(OPEN)
    members = {"a": hcqr(LlmConfig(model="strong")), "b": make_rewriter(RewriterConfig(name="multi_query"), BM25)}
    with refused(ConfigError, "a", "b"):
        MixedRewriter(members)
    mixed = MixedRewriter({"a": members["a"], "b": hcqr()})
    questions = [Question("a/1", "why?")]
    assert ask_first_stage(mixed, questions, BASE) == questions
    assert "scattering" in mixed.first(questions[0])[0]["content"]


def test_a_small_model_is_shown_an_example_where_forms_are_lines():
    for way, has_example in (("json", False), ("lines", True)):
        model = Script(OPEN if way == "json" else LINES, QUERIES)
        method = make_method("hcqr", {}, BM25)
        (ran,) = Runner(Llm(model), {"": Collection("d1", "d2")}, form=way).run(method, [PLAIN])
        assert ran.outcome.failure == ""
        chat = model.prompts[1].messages
        assert (len(chat), model.prompts[1].opening) == (3 if has_example else 1, "Query 1:")
        assert PLAIN.text in chat[-1]["content"]
        if has_example:
            assert chat[1]["content"].startswith("Query 1: croup")
            assert "Best guess at the answer: Croup" in chat[0]["content"]
            assert model.prompts[1].version == "hcqr-rewriter-1/lines"
    copied = "Query 1: <the supporting query>\nQuery 2: <the distinguishing query>\nQuery 3: x"
    outcome = run("hcqr", PLAIN, Script(OPEN, copied, copied), Collection("d1"))
    assert outcome.failure == "empty part", "the form itself is no answer"
