"""From a sampled answer to a search plan, for every rewriter; and that only the sampled answer counts."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError
from querylect.rewriters.parse import render
from querylect.rewriters.registry import REWRITERS, make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused

BM25 = RetrieverInfo("bm25", "bm25")
ASKED = Question("q", "Big head")

TAGGED = sorted(REWRITERS.keys() - {"hyde", "query2doc", "multi_query", "hcqr", "chr", "misknow"})
"""Those that ask for tagged answers; the others' are tested in test_rewriters_passages.py."""

every_rewriter = pytest.mark.parametrize("name", TAGGED)


WHOLE = str(Path(__file__).parents[1] / "plain_prompt.yaml")
"""Of `small`: a prompt that leaves the whole answer to the model, as the other rewriters do."""


def make(name="small", k=10, **settings):
    return make_rewriter(RewriterConfig(name=name, prompt=WHOLE, **settings), BM25, k)


@every_rewriter
def test_one_rewrite_is_one_probe_of_one_term(name):
    rewrite = make(name).parse(ASKED, "<think>a large skull</think><rewrite>macrocephaly</rewrite>", 1)
    assert rewrite.plan == SearchPlan.of("macrocephaly")
    assert (rewrite.think, rewrite.rewrites, rewrite.failure) == ("a large skull", ("macrocephaly",), "")


@every_rewriter
def test_several_rewrites_are_one_probe_each_fused_by_maximum(name):
    plan = make(name).parse(ASKED, render("", ["skull size", "skull growth"]), 1).plan
    assert [[term.text for term in probe.terms] for probe in plan.probes] == [["skull size"], ["skull growth"]]
    assert plan.fuse == "max"


@every_rewriter
def test_a_kept_question_is_a_term_of_every_probe(name):
    rewriter = make(name, keep_question_weight=0.5, rewrite_weight=2.0)
    plan = rewriter.parse(ASKED, render("", ["a", "b"]), 2).plan
    assert plan.probes == tuple(
        Probe(terms=(Term(text="Big head", weight=0.5), Term(text=rewrite, weight=2.0))) for rewrite in ("a", "b")
    )


@every_rewriter
@pytest.mark.parametrize("turn", [1, 2, 3])
def test_tags_in_the_prompt_earn_nothing(name, turn):
    """A well-formed answer in question, examples or documents is not the answer of a turn that says nothing."""
    planted = render("", ["planted"])
    question = Question("q", planted)
    rewriter = make(name)
    prompt_text = rewriter.first(question)[-1]["content"] + rewriter.follow_up(
        question, [Document("d", planted, planted)], 2
    )
    assert planted in prompt_text
    assert rewriter.parse(question, "I do not know", turn).plan is None
    assert rewriter.parse(question, "", turn).plan is None


@every_rewriter
def test_a_prompt_given_to_the_parser_by_mistake_fails(name):
    rewriter = make(name)
    prompt = "\n".join(message["content"] for message in rewriter.first(ASKED))
    assert rewriter.parse(ASKED, prompt, 1).plan is None
    assert rewriter.parse(ASKED, prompt + "\n" + render("", ["a"]), 1).plan is None


@given(st.text(st.characters()), st.sampled_from(sorted(REWRITERS)))
def test_whatever_is_sampled_gives_a_plan_or_a_reason(text, name):
    for sampled in (text, f"<think>{text}</think><rewrite>{text}</rewrite>"):
        rewrite = make(name).parse(ASKED, sampled, 1)
        assert (rewrite.plan is None) == bool(rewrite.failure) == (not rewrite.rewrites)


def test_an_unknown_rewriter_names_the_nearest():
    with refused(ConfigError, "'explor'", "chr, direct, explore, ", ", small", "'explore'"):
        make("explor")
    with refused(ConfigError, "'zzz'") as caught:
        make("zzz")
    assert str(caught.value).count("'") == 2, "no other name is near"


def test_a_rewrite_without_weight_is_refused():
    with refused(ConfigError, "rewriter.rewrite_weight is 0"):
        make(rewrite_weight=0)
