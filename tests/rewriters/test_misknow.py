"""Misknow-RAG's query writing in turns: a first answer, then queries for what is missing."""

from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

QUESTION = Question("q", "Who tamed the red dog?", ("Ann", "Ben"))
SECOND = " Passage 1 has no name.\nMissing: the tamer's name\nQuery 1: red dog tamer\nQuery 2: tamers by name"


def misknow():
    return make_rewriter(RewriterConfig(name="misknow"), RetrieverInfo("contriever", "dense"), 10)


def test_the_first_turn_answers_and_searches_with_the_question():
    rewriter = misknow()
    (message,) = rewriter.first(QUESTION)
    assert "B. Ben" in message["content"]
    assert message["content"].endswith("Answer: <your first answer>")
    rewrite = rewriter.parse(QUESTION, " Dogs.\nAnswer: Ann", 1)
    assert ([probe.terms[0].text for probe in rewrite.plan.probes], rewrite.plan.k) == ([QUESTION.text], 10)
    assert (rewrite.think, rewrite.rewrites) == ("Thought: Dogs.\nAnswer: Ann", (QUESTION.text,))
    assert rewriter.parse(QUESTION, SECOND, 1).failure == "missing part", "the form of the second turn"


def test_the_second_turn_searches_for_what_is_missing_beside_the_question():
    rewriter = misknow()
    message = rewriter.follow_up(QUESTION, [Document("d", "Dogs", "some are red")], 2)
    assert "[1] Dogs: some are red" in message
    assert "Query 2: <query 2>" in message
    assert "Query 3" not in message
    assert "found no documents" in rewriter.follow_up(QUESTION, [], 2)
    rewrite = rewriter.parse(QUESTION, SECOND, 2)
    assert [probe.terms[0].text for probe in rewrite.plan.probes] == [QUESTION.text, "red dog tamer", "tamers by name"]
    assert (rewrite.plan.fuse, rewrite.plan.k) == ("interleave", 10)
    assert rewrite.rewrites == ("red dog tamer", "tamers by name")
    assert rewrite.think == "Thought: Passage 1 has no name.\nMissing: the tamer's name"
    assert rewriter.parse(QUESTION, " x\nAnswer: Ann", 2).plan is None


def test_all_answers_begin_alike():
    rewriter = misknow()
    assert rewriter.opening == "Thought:"
    assert rewriter.parse(QUESTION, f"Thought:{SECOND}", 2) == rewriter.parse(QUESTION, SECOND, 2)


def test_a_prompted_model_may_write_more_around_its_answer():
    rewriter = misknow()
    chatty = f"Sure! Here is my judgement:\n\n**Thought:**{SECOND}\n\nI hope this helps!"
    assert rewriter.read(QUESTION, chatty, 2) == rewriter.parse(QUESTION, f"Thought:{SECOND}", 2)
    assert rewriter.parse(QUESTION, chatty, 2).plan is None, "training stays strict"
    assert rewriter.read(QUESTION, f"Thought:{SECOND}\nQuery 3: dogs", 2).failure == "too many parts"
