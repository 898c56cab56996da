"""The three prompt levels: the guidance of each, and that the next turn shows the retrieved documents."""

import pytest
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.errors import ConfigError
from querylect.rewriters.levels import KEYWORDS, PASSAGE, QUESTION, SEARCH, SENTENCE, STATEMENT, query_form
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused

LEVELS = ("general", "explore", "direct")
STRATEGIES = ("Take the question apart", "Enrich its words", "Split it", "Say it in another way", "Write the document")
FORMS = (KEYWORDS, PASSAGE, QUESTION, SENTENCE, SEARCH, STATEMENT)
BM25 = RetrieverInfo("bm25", "bm25", "BM25, which counts matching words.")
CONTRIEVER = RetrieverInfo("contriever", "dense", "Contriever, trained on pairs of spans of one document.")
QUESTION_ASKED = Question("q", "Who discovered polonium?")
DOCUMENTS = (Document("d1", "Polonium", "A rare\nmetal."), Document("d2", "", "An untitled text."))


def chat(level, retriever, **settings):
    """All messages of the level over two turns."""
    rewriter = make_rewriter(RewriterConfig(name=level, **settings), retriever)
    (message,) = rewriter.first(QUESTION_ASKED)
    assert message["role"] == "user"
    return message["content"], rewriter.follow_up(QUESTION_ASKED, DOCUMENTS, 2)


@pytest.mark.parametrize("retriever", [BM25, CONTRIEVER])
def test_general_explains_five_strategies_and_hides_the_retriever(retriever):
    first, second = chat("general", retriever)
    assert all(f"{number}. {text}" in first for number, text in enumerate(STRATEGIES, start=1))
    for text in (first, second):
        assert retriever.name not in text.lower()
        assert retriever.trained not in text
    assert chat("general", BM25) == chat("general", CONTRIEVER)


@pytest.mark.parametrize(("retriever", "form"), [(BM25, KEYWORDS), (CONTRIEVER, PASSAGE)])
def test_direct_introduces_the_retriever_and_prescribes_one_form(retriever, form):
    first, second = chat("direct", retriever)
    assert first.startswith(f"Documents are found by {retriever.trained}")
    assert [candidate.name for candidate in FORMS if candidate.advice in first] == [form.name]
    assert f"Write {form.name} again" in second
    assert not any(text in first for text in STRATEGIES)


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("bm25", "bm25", KEYWORDS),
        ("contriever", "dense", PASSAGE),
        ("all-minilm-l6-v2", "dense", SENTENCE),
        ("sentence-transformers/all-MiniLM-L12-v2", "dense", SENTENCE),
        ("Qwen/Qwen3-Embedding-4B", "dense", QUESTION),
        ("medcpt", "dense", SEARCH),
        ("hybrid", "hybrid", STATEMENT),
        ("BAAI/bge-base-en-v1.5", "dense", QUESTION),
        ("somebody/some-encoder", "dense", PASSAGE),
        ("bm25+contriever", "hybrid", STATEMENT),
    ],
)
def test_direct_knows_the_form_that_suits_a_retriever(name, kind, form):
    assert query_form(RetrieverInfo(name, kind)) is form


def test_direct_makes_up_no_strategy_for_a_retriever_of_the_users_own():
    retriever = RetrieverInfo("mine", "custom", "mine, a retriever of the user's own.")
    with refused(ConfigError, "'mine'", "rewriter.name=explore"):
        chat("direct", retriever)
    assert chat("explore", retriever)[0].startswith("Documents are found by mine, a retriever of the user's own.")


@pytest.mark.parametrize("level", LEVELS)
def test_the_next_turn_numbers_the_documents_in_rank_order(level):
    _, second = chat(level, BM25)
    assert "\n[1] Polonium: A rare metal.\n[2] An untitled text.\n" in second
    assert second.endswith(QUESTION_ASKED.text)
