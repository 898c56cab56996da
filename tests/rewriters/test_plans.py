"""From a sampled answer to a search plan, for every rewriter; and that only the sampled answer counts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError
from querylect.llms.base import LlmResponse, Text
from querylect.rewriters.base import read_reply
from querylect.rewriters.forms import render
from querylect.rewriters.registry import REWRITERS, make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rewriters.template import union

from ..raising import refused
from ..scripted import BM25, DENSE, terms

ASKED = Question("q", "Big head", ("femur", "tibia"))
TAGGED = ("general", "explore", "direct", "few_shot")
every_tagged_rewriter = pytest.mark.parametrize("name", TAGGED)
WHOLE = str(Path(__file__).parents[1] / "plain_prompt.yaml")
"""A few-shot prompt that leaves the whole answer to the model, as the other rewriters do."""


def make(name="few_shot", retriever=BM25, k=10, **settings):
    return make_rewriter(RewriterConfig(name=name, prompt=WHOLE, **settings), retriever, k)


def planned(name, text, retriever=BM25, turn=1, **settings):
    return make(name, retriever, 7, **settings).parse(ASKED, text, turn).plan


@every_tagged_rewriter
def test_tagged_rewrites_are_one_probe_each_fused_by_maximum(name):
    rewrite = make(name).parse(ASKED, "<think>a large skull</think><rewrite>macrocephaly</rewrite>", 1)
    assert rewrite.plan == SearchPlan.of("macrocephaly")
    assert (rewrite.think, rewrite.rewrites, rewrite.failure) == ("a large skull", ("macrocephaly",), "")
    plan = planned(name, render("", ["a", "b"]), keep_question_weight=0.5, rewrite_weight=2.0)
    kept = Term(text="Big head", weight=0.5)
    assert plan.probes == tuple(Probe(terms=(kept, Term(text=text, weight=2.0))) for text in ("a", "b"))
    assert (plan.fuse, plan.k) == ("max", 7)


@every_tagged_rewriter
def test_tags_in_the_prompt_earn_nothing(name):
    """A well-formed answer in question, examples or documents is not the answer of a turn that says nothing."""
    planted = render("", ["planted"])
    question = Question("q", planted)
    rewriter = make(name)
    prompt = rewriter.first(question)[-1]["content"] + rewriter.follow_up(question, [Document("d", planted, "")], 2)
    assert planted in prompt
    for sampled in ("I do not know", "", prompt, f"{prompt}\n{planted}"):
        assert rewriter.parse(question, sampled, 2).plan is None


@given(st.text(st.characters()), st.sampled_from(sorted(REWRITERS)))
def test_whatever_is_sampled_gives_a_plan_or_a_reason(text, name):
    for sampled in (text, f"<think>{text}</think><rewrite>{text}</rewrite>"):
        rewrite = make(name).parse(ASKED, sampled, 1)
        assert (rewrite.plan is None) == bool(rewrite.failure) == (not rewrite.rewrites)


PASSAGE = "insulin lowers glucose"


@pytest.mark.parametrize(
    ("name", "retriever", "settings", "expected"),
    [
        ("hyde", DENSE, {}, [("Big head", 1.0), (PASSAGE, 1.0)]),
        ("hyde", BM25, {"keep_question_weight": 0.0}, [(PASSAGE, 1.0)]),
        (
            "hyde",
            BM25,
            {"keep_question_weight": 0.5, "rewrite_weight": 2.0},
            [("Big head", 0.5), (PASSAGE, 2.0)],
        ),
        ("query2doc", BM25, {}, [("Big head", 5.0), (PASSAGE, 1.0)]),
        ("query2doc", BM25, {"keep_question_weight": 2.0}, [("Big head", 2.0), (PASSAGE, 1.0)]),
        ("query2doc", DENSE, {}, [(f"Big head\n{PASSAGE}", 1.0)]),
        ("query2doc", DENSE, {"keep_question_weight": 0.0}, [(PASSAGE, 1.0)]),
    ],
)
def test_passages_and_questions_are_weighted(name, retriever, settings, expected):
    plan = planned(name, PASSAGE, retriever, **settings)
    assert (terms(plan), plan.k) == ([expected], 7)


def test_hyde_joins_the_passages_of_several_answers():
    def joined_of(*texts):
        return read_reply(make("hyde", k=7), ASKED, LlmResponse(tuple(Text(text, True) for text in texts), 1, 1))

    joined = joined_of("one", "", "two")
    assert joined.rewrites == ("one", "two")
    assert terms(joined.plan) == [[("Big head", 1.0), ("one", 1.0), ("two", 1.0)]]
    assert joined_of("", "").failure == "empty answer"
    assert not make("query2doc").joins
    assert not make("hyde", stop=True).joins


def test_a_union_takes_the_first_of_every_query_rank_by_rank_and_no_document_twice(small_environment):
    plan = union(["a", "b", "c"])
    assert ([probe.k for probe in plan.probes], plan.fuse, plan.k) == ([5, 5, 5], "interleave", 15)
    environment = Environment.open(small_environment)
    queries = ["headache", "blood cholesterol", "headache migraine"]
    alone = environment.rank([union([query]) for query in queries])
    assert [[hit.id for hit in ranking] for ranking in alone] == [
        ["aspirin", "triptan"],
        ["statin", "insulin"],
        ["triptan", "aspirin"],
    ]
    (full,) = environment.rank([union(queries)])
    assert [hit.id for hit in full] == ["aspirin", "statin", "triptan", "insulin"], "fewer than 15: they overlap"


SECOND = " Passage 1 has no name.\nMissing: the tamer's name\nQuery 1: red dog tamer\nQuery 2: tamers by name"


def test_misknow_answers_and_searches_with_the_question_first():
    rewriter = make("misknow")
    (message,) = rewriter.first(ASKED)
    assert "B. tibia" in message["content"]
    rewrite = rewriter.parse(ASKED, " Dogs.\nAnswer: Ann", 1)
    assert terms(rewrite.plan) == [[("Big head", 1.0)]]
    assert (rewrite.think, rewrite.rewrites) == ("Thought: Dogs.\nAnswer: Ann", ("Big head",))
    assert rewriter.parse(ASKED, SECOND, 1).failure == "missing part", "the form of the second turn"


def test_misknow_then_searches_for_what_is_missing_beside_the_question():
    rewriter = make("misknow")
    message = rewriter.follow_up(ASKED, [Document("d", "Dogs", "some are red")], 2)
    assert "[1] Dogs: some are red" in message
    assert "Query 2: <query 2>" in message
    rewrite = rewriter.parse(ASKED, SECOND, 2)
    assert terms(rewrite.plan) == [[("Big head", 1.0)], [("red dog tamer", 1.0)], [("tamers by name", 1.0)]]
    assert rewrite.plan.fuse == "interleave"
    assert rewrite.rewrites == ("red dog tamer", "tamers by name")
    assert rewrite.think == "Thought: Passage 1 has no name.\nMissing: the tamer's name"
    assert rewriter.read(ASKED, f"Sure!\n\nThought:{SECOND}\n\nI hope this helps!", 2) == rewrite
    assert rewriter.parse(ASKED, " x\nAnswer: Ann", 2).plan is None


@pytest.mark.parametrize(
    ("name", "settings", "facts"),
    [
        ("explor", {}, ["'explor'", "chr, direct, explore, ", "'explore'"]),
        ("general", {"rewrite_weight": 0}, ["rewriter.rewrite_weight is 0"]),
        ("query2doc", {"keep_question_weight": 2.0}, ["rewriter.keep_question_weight is 2", "query2doc"]),
        ("hyde", {"query": "native"}, ["rewriter.query", "'hyde'", "direct"]),
        ("few_shot", {"query": "native"}, ["rewriter.query", "'contriever'", "fts5"]),
    ],
)
def test_settings_that_make_no_rewriter_are_refused(name, settings, facts):
    with refused(ConfigError, *facts):
        make(name, RetrieverInfo("contriever", "dense"), **settings)
