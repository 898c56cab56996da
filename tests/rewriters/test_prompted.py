"""Answers of prompted models: what only the lenient parser reads, and what neither parser reads."""

import pytest
from querylect.configs.rewriter import RewriterConfig
from querylect.data.types import Question
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

QUESTION = Question("q", "what lowers blood sugar")
PASSAGE = "Insulin lowers glucose."
QUERIES = ("insulin lowers glucose", "insulin or aspirin", "high blood glucose")


def rewriter(name):
    return make_rewriter(RewriterConfig(name=name), RetrieverInfo("bm25", "bm25"), 10)


LABELLED = [
    "Here are 3 queries:\n\nQuery 1: {}\nQuery 2: {}\nQuery 3: {}",
    "Sure!\n```\nQuery 1: {}\nQuery 2: {}\nQuery 3: {}\n```",
    "1. Query 1: {}\n2. Query 2: {}\n3. Query 3: {}",
    "Query 1 (Support): {}\nQuery 2 (Distinction): {}\nQuery 3 (Key features): {}",
    "### Query 1\n{}\n\n### Query 2\n{}\n\n### Query 3\n{}",
    "Query 1: {}\nQuery 2: {}\nQuery 3: {}\n\nThese queries cover support, distinction and key features.",
    "Query 1: {}\nQuery 2: {}\nQuery 3: {}\nLet me know if you need more!",
    'Here you go: {{"query_1": "{}", "query_2": "{}", "query_3": "{}"}}',
    '```json\n["{}", "{}", "{}"]\n```',
    "Here are the queries:\n1. {}\n2. {}\n3. {}",
    "so first insulin, then</think>\n\nQuery 1: {}\nQuery 2: {}\nQuery 3: {}",
]
REFUSED = [
    ("Query 1: a\nQuery 2: b\nQuery 3: c\nQuery 4: d", "too many parts"),
    ("Query 1: a\nQuery 2: b\nQuery 3: c\n\nRevised:\nQuery 1: d", "repeated part"),
    ("Query 1: a\nQuery 2: b", "missing part"),
    ("I'm sorry, but I can't help with that.", "refusal"),
    ("<think>Query 1: a\nQuery 2: b\nQuery 3: c", "unclosed think"),
    ("1. a\n2. b\n3. c\n4. d", "too many parts"),
    ("Query 1: <the supporting query>\nQuery 2: b\nQuery 3: c", "empty part"),
    ("", "empty answer"),
]


@pytest.mark.parametrize("text", [form.format(*QUERIES) for form in LABELLED])
def test_training_refuses_what_is_read_of_a_prompted_model(text):
    hcqr = rewriter("hcqr")
    assert hcqr.read(QUESTION, text, 1).rewrites == QUERIES
    trained = hcqr.parse(QUESTION, text, 1)
    # A remark on the line below is a part of the last query there: it is searched as well.
    assert trained.plan is None or trained.rewrites[2].endswith("if you need more!")


@pytest.mark.parametrize(("text", "failure"), REFUSED)
def test_what_could_mean_two_things_or_nothing_is_read_nowhere(text, failure):
    rewrite = rewriter("hcqr").read(QUESTION, text, 1)
    assert (rewrite.failure, rewrite.plan) == (failure, None)


@pytest.mark.parametrize(
    ("text", "rewrites"),
    [
        ("Sure! <rewrite>insulin</rewrite> Hope this helps.", ("insulin",)),
        ("reasons</think><rewrite>insulin</rewrite>", ("insulin",)),
        ("```xml\n<Rewrite>\ninsulin\nglucose\n</Rewrite>\n```", ("insulin glucose",)),
        ("**Rewritten query:** insulin", ("insulin",)),
        ("<think>why</think><rewrite>what the retriever gets</rewrite>", ()),
        ("<think>why</think><rewrite>insulin", ()),
        ("insulin lowers blood sugar", ()),
    ],
)
def test_tagged_rewrites(text, rewrites):
    explore = rewriter("explore")
    assert explore.read(QUESTION, text, 1).rewrites == rewrites
    assert explore.parse(QUESTION, text, 1).rewrites == (("what the retriever gets",) if "gets" in text else ())


@pytest.mark.parametrize(
    ("text", "passage"),
    [
        (
            "Here is a passage that answers the question:\n\nInsulin lowers it.\n\nI hope this helps!",
            "Insulin lowers it.",
        ),
        ("**Passage:** Insulin lowers it.", "Insulin lowers it."),
        ('Certainly! Here it is:\n\n"Insulin lowers it."', "Insulin lowers it."),
        ("hm</think>Insulin lowers it.", "Insulin lowers it."),
        ("I'm sorry, but I can't provide medical advice.", None),
        ("<think>Insulin", None),
    ],
)
def test_passages(text, passage):
    assert rewriter("hyde").read(QUESTION, text, 1).rewrites == ((passage,) if passage else ())
