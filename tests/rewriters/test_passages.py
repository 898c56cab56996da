"""HyDE and Query2Doc: reading, plans against a brute-force reference, and use by a frozen model."""

import pytest
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Question
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError
from querylect.llms.access import Llm
from querylect.llms.base import SamplingParams
from querylect.rewriters.frozen import ask_rewriter, ask_turn
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused
from ..scripted import Script

QUESTION = Question("q", "what lowers blood sugar")
BM25, DENSE = RetrieverInfo("bm25", "bm25"), RetrieverInfo("contriever", "dense")


def make(name, retriever=BM25, **settings):
    return make_rewriter(RewriterConfig(name=name, **settings), retriever, 7)


def terms(rewriter, text="insulin lowers glucose"):
    plan = rewriter.parse(QUESTION, text, 1).plan
    (probe,) = plan.probes
    assert plan.k == 7
    return [(term.text, term.weight) for term in probe.terms]


def test_hyde_is_the_mean_of_question_and_passage():
    passage = "insulin lowers glucose"
    assert terms(make("hyde", DENSE)) == [(QUESTION.text, 1.0), (passage, 1.0)]
    assert terms(make("hyde", keep_question_weight=0.0)) == [(passage, 1.0)]
    assert terms(make("hyde", keep_question_weight=0.5, rewrite_weight=2.0)) == [(QUESTION.text, 0.5), (passage, 2.0)]


def test_query2doc_repeats_the_question_for_bm25_and_joins_texts_for_others():
    passage = "insulin lowers glucose"
    assert terms(make("query2doc")) == [(QUESTION.text, 5.0), (passage, 1.0)]
    assert terms(make("query2doc", keep_question_weight=2.0)) == [(QUESTION.text, 2.0), (passage, 1.0)]
    assert terms(make("query2doc", DENSE)) == [(f"{QUESTION.text}\n{passage}", 1.0)]
    assert terms(make("query2doc", DENSE, keep_question_weight=0.0)) == [(passage, 1.0)]
    with refused(ConfigError, "rewriter.keep_question_weight is 2", "query2doc"):
        make("query2doc", DENSE, keep_question_weight=2.0)


def test_query2doc_on_bm25_scores_as_the_text_with_the_question_five_times(small_environment):
    environment = Environment.open(small_environment)
    passage = "insulin lowers glucose and statin cholesterol"
    repeated_text = " ".join([QUESTION.text] * 5 + [passage])
    plans = [make("query2doc").parse(QUESTION, passage, 1).plan, SearchPlan.of(repeated_text, k=7)]
    weighted, repeated = environment.rank(plans)
    assert [hit.id for hit in weighted] == [hit.id for hit in repeated]
    assert [hit.score for hit in weighted] == pytest.approx([hit.score for hit in repeated], rel=1e-5)


@pytest.mark.parametrize("name", ["hyde", "query2doc"])
@pytest.mark.parametrize(
    ("text", "rewrites", "think", "failure"),
    [
        ("A passage.<|im_end|>", ("A passage.",), "", ""),
        ("<think>so</think>\n A passage ", ("A passage",), "so", ""),
        ("p < 0.05 and <rewrite>x</rewrite>", ("p < 0.05 and <rewrite>x</rewrite>",), "", ""),
        ("  <|im_end|>", (), "", "empty answer"),
        ("<think>so</think>", (), "so", "empty answer"),
        ("<think>never ends", (), "never ends", "unclosed think"),
        ("half \ud800", (), "", "invalid unicode"),
    ],
)
def test_the_whole_answer_is_the_passage(name, text, rewrites, think, failure):
    rewrite = make(name).parse(QUESTION, text, 1)
    assert (rewrite.rewrites, rewrite.think, rewrite.failure) == (rewrites, think, failure)
    assert rewrite.format_ok == (failure == "")


@pytest.mark.parametrize(
    ("text", "passage", "failure"),
    [
        ("Insulin cannot be taken orally.", "Insulin cannot be taken orally.", ""),
        ("Ibuprofen can't cure it.", "Ibuprofen can't cure it.", ""),
        ("It cannot be cured.", "It cannot be cured.", ""),
        ("Unfortunately, I cannot do it.", "", "refusal"),
        ("I’m sorry.", "", "refusal"),
        ("Symptoms include:\n- thirst", "Symptoms include:\n- thirst", ""),
        ("Here is a passage:\nThirst.", "Thirst.", ""),
    ],
)
def test_of_a_prompted_model_refusals_and_preambles_are_no_passage(text, passage, failure):
    rewrite = make("hyde").read(QUESTION, text, 1)
    assert ("".join(rewrite.rewrites), rewrite.failure) == (passage, failure)


def test_a_frozen_model_rewrites_with_any_rewriter():
    questions = [Question(str(number), f"question {number}") for number in range(3)]
    model = Script("<think></think><rewrite>a</rewrite>", None, "nonsense", "still nonsense")
    right, missing, wrong = ask_rewriter(Llm(model), make("general"), questions, SamplingParams())
    assert right.rewrites == ("a",)
    assert missing is None
    assert (wrong.plan, wrong.failure) == (None, "missing rewrite")
    assert "question 0" in model.prompts[0].messages[-1]["content"]
    assert [message["role"] for message in model.prompts[3].messages] == ["user", "assistant", "user"]
    assert "missing rewrite" in model.prompts[3].messages[-1]["content"]
    model, rewriter = Script("nonsense", "Sure! <rewrite>b</rewrite>"), make("general")
    chats = [rewriter.first(questions[0])]
    (mended,) = ask_turn(Llm(model), rewriter, questions[:1], chats, 1, SamplingParams())
    assert (mended.rewrite.rewrites, mended.tokens, mended.prompt_tokens) == (("b",), 2, 2), "both calls count"


def test_an_opening_is_read_whether_the_model_writes_it_or_not():
    rewriter = make("small")
    assert rewriter.opening
    with_opening = rewriter.opening + "cleft lip</rewrite>"
    for answer in (with_opening, "cleft lip</rewrite>"):
        (rewrite,) = ask_rewriter(Llm(Script(answer)), rewriter, [QUESTION], SamplingParams())
        assert rewrite.rewrites == ("cleft lip",)


def test_hyde_joins_the_passages_of_several_answers():
    draw = SamplingParams(n=3, temperature=0.7)
    (joined,) = ask_rewriter(Llm(Script(["one", "", "two"])), make("hyde"), [QUESTION], draw)
    assert joined.rewrites == ("one", "two")
    expected = Probe(terms=(Term(text=QUESTION.text), Term(text="one"), Term(text="two")))
    assert joined.plan == SearchPlan(probes=(expected,), k=7)
    (failed,) = ask_rewriter(Llm(Script(["", ""], ["", ""])), make("hyde"), [QUESTION], SamplingParams(n=2))
    assert (failed.plan, failed.failure) == (None, "empty answer")
    for name in ("query2doc", "general"):
        with pytest.raises(ValueError, match=name):
            ask_rewriter(Llm(Script()), make(name), [QUESTION], SamplingParams(n=2))
