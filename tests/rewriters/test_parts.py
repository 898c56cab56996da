"""Labelled parts: what is read, what fails, and the two rewriters that ask for nothing else."""

import pytest
from querylect.configs.rewriter import RewriterConfig
from querylect.data.types import Document, Question
from querylect.envs.environment import Environment
from querylect.rewriters.parse import Parsed
from querylect.rewriters.parts import read_labelled, read_parts
from querylect.rewriters.plans import union
from querylect.rewriters.registry import make_rewriter

from ..scripted import BM25, Collection, Script, run, terms

LABELS = ("Query 1", "Query 2")
QUESTION = Question("q", "what lowers blood sugar")
CHOICE = Question("q", "what lowers blood sugar", ("insulin", "citrus"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Query 1: a b\nQuery 2: c", Parsed(rewrites=("a b", "c"))),
        ("\nQuery 1:a\n\n\nQuery 2 : c<|im_end|>", Parsed(rewrites=("a", "c"))),
        ("**Query 1:** a\n- query 2: c", Parsed(rewrites=("a", "c"))),
        ("Query 1: a\nand more\nQuery 2: see Query 1: there", Parsed(rewrites=("a and more", "see Query 1: there"))),
        ("<think>Query 1: no</think>Query 1: a\nQuery 2: c", Parsed("Query 1: no", ("a", "c"))),
        ("Query 1: 血糖を下げる\nQuery 2: ça", Parsed(rewrites=("血糖を下げる", "ça"))),
        ("", Parsed(failure="empty answer")),
        ("<think>on and on", Parsed(think="on and on", failure="unclosed think")),
        ("I do not know.", Parsed(failure="missing part")),
        ("Query 1: a", Parsed(failure="missing part")),
        ("Query 1: a\nQuery 12: b", Parsed(failure="missing part")),
        ("Query 1: a\nQuery 2:", Parsed(failure="empty part")),
        ("Query 2: a\nQuery 1: b", Parsed(failure="parts out of order")),
        ("Query 1: a\nQuery 2: b\nQuery 2: c", Parsed(failure="repeated part")),
        ("Sure!\nQuery 1: a\nQuery 2: b", Parsed(failure="text outside parts")),
        ("Query 1: a\nQuery 2: b\n\nI hope this helps!", Parsed(failure="text outside parts")),
        ("Query 1: \ud800\nQuery 2: b", Parsed(failure="invalid unicode")),
    ],
)
def test_parts_are_read_strictly(text, expected):
    assert read_parts(text, LABELS) == expected


@pytest.mark.parametrize(
    ("text", "rewrites"),
    [
        ("a) x\nb) y\nc) z", ("x", "y", "z")),
        ("As you wish\nQuery I: x\nQuery II: y\nQuery III: z", ("x", "y", "z")),
        ("hepatitis A: vaccine\nhepatitis B: transmission\nhepatitis C: treatment", ()),
        ("vitamin A - eyes\nvitamin B. nerves\nvitamin C. gums", ()),
    ],
)
def test_a_letter_numbers_a_part_only_where_no_other_words_precede_it(text, rewrites):
    assert read_labelled(text, ["Query 1", "Query 2", "Query 3"]).rewrites == rewrites


def test_a_union_takes_the_first_of_every_query_rank_by_rank_and_no_document_twice():
    plan = union(["a", "b", "c"])
    assert terms(plan) == [[("a", 1.0)], [("b", 1.0)], [("c", 1.0)]]
    assert [probe.k for probe in plan.probes] == [5, 5, 5]
    assert (plan.fuse, plan.k) == ("interleave", 15)


def test_a_union_on_a_real_index(small_environment):
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


def rewriter(**settings):
    return make_rewriter(RewriterConfig(name="multi_query", **settings), BM25, 10)


def test_multi_query_plans_one_probe_for_each_paraphrase():
    rewrite = rewriter().parse(QUESTION, " insulin\nSub-query 2: glucose\nSub-query 3: sugar\n", 1)
    assert rewrite.rewrites == ("insulin", "glucose", "sugar")
    assert rewrite.plan == union(rewrite.rewrites)
    parts = "Sub-query 1: a\nSub-query 2: b\nSub-query 3: c"
    assert rewriter().parse(QUESTION, parts, 1).rewrites == ("a", "b", "c"), "a label that was written again"
    thought = rewriter().parse(QUESTION, f"<think>so</think>{parts}", 1)
    assert (thought.think, thought.rewrites) == ("so", ("a", "b", "c"))
    failed = rewriter().parse(QUESTION, "insulin", 2)
    assert (failed.plan, failed.rewrites, failed.failure) == (None, (), "missing part")


def test_multi_query_shows_options_only_where_it_is_told_to():
    for options in (False, True):
        (message,) = rewriter(options=options).first(CHOICE)
        assert ("B. citrus" in message["content"]) == options
        assert ("B. citrus" in rewriter(options=options).follow_up(CHOICE, [], 2)) == options, "in later turns alike"
        assert "exactly 3 different versions" in message["content"]
        assert message["content"].endswith("Sub-query 3: <version 3 of the question>")
    ten_options = Question("q", "which?", tuple(f"option {number}" for number in range(10)))
    assert "J. option 9" in rewriter(options=True).first(ten_options)[0]["content"]
    assert rewriter().opening == "Sub-query 1:"
    later = rewriter().follow_up(QUESTION, [Document("d", "A title", "text")], 2)
    assert "[1] A title: text" in later
    assert "Sub-query 3:" in later
    assert "found no documents" in rewriter().follow_up(QUESTION, [], 2)


def test_multi_query_as_a_method():
    shelf = Collection("a", "b", "c")
    model = Script("Sub-query 1: x\nSub-query 2: y\nSub-query 3: z")
    outcome = run("multi_query", QUESTION, model, shelf)
    assert [document.id for document in outcome.documents] == ["a", "b", "c"]
    assert terms(shelf.plans[0]) == [[("x", 1.0)], [("y", 1.0)], [("z", 1.0)]]
    assert (outcome.plan, outcome.notes["rewrites"], outcome.failure) == (shelf.plans[0], ["x", "y", "z"], "")


def test_hyde_as_a_method_samples_its_passages():
    shelf, model = Collection("a"), Script(["one", "two", " "])
    outcome = run("hyde", QUESTION, model, shelf, passages=3)
    assert (model.draws[0].n, model.draws[0].temperature) == (3, 0.7)
    assert terms(outcome.plan) == [[(QUESTION.text, 1.0), ("one", 1.0), ("two", 1.0)]]
    assert outcome.plan.k == 15


@pytest.mark.parametrize("name", ["query2doc", "hyde", "multi_query"])
def test_garbage_and_silence_end_a_method_with_a_reason(name):
    for answer, failure in (("", True), (None, True)):
        texts = [answer] * 8 if answer is not None and name == "hyde" else answer
        outcome = run(name, QUESTION, Script(texts, texts), Collection("a"))
        assert (bool(outcome.failure), outcome.documents) == (failure, ())
