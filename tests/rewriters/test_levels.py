"""The three prompt levels: the guidance of each, and that the next turn shows the retrieved documents."""

import pytest
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Document, Question
from querylect.errors import ConfigError
from querylect.rewriters.levels import query_form
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rewriters.template import tasks

from ..raising import refused

STRATEGIES = ("Take the question apart", "Enrich its words", "Split it", "Say it in another way", "Write the document")
FORMS = tasks()["forms"]
BM25 = RetrieverInfo("bm25", "bm25", "BM25, which counts matching words.")
CONTRIEVER = RetrieverInfo("contriever", "dense", "Contriever, trained on pairs of spans of one document.")
FTS5 = RetrieverInfo(
    "fts5", "fts5", "FTS5, a Boolean index.", query_language="a OR b: one of them.\nHits are listed by date."
)
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


@pytest.mark.parametrize(("retriever", "form"), [(BM25, "keywords"), (CONTRIEVER, "passage")])
def test_direct_introduces_the_retriever_and_prescribes_one_form(retriever, form):
    first, second = chat("direct", retriever)
    assert first.startswith(f"Documents are found by {retriever.trained}")
    assert [name for name, candidate in FORMS.items() if candidate["advice"] in first] == [form]
    assert f"Write {FORMS[form]['name']} again" in second
    assert not any(text in first for text in STRATEGIES)


@pytest.mark.parametrize(
    ("name", "kind", "form"),
    [
        ("sentence-transformers/all-MiniLM-L12-v2", "dense", "sentence"),
        ("Qwen/Qwen3-Embedding-4B", "dense", "question"),
        ("medcpt", "dense", "search"),
        ("somebody/some-encoder", "dense", "passage"),
        ("bm25+contriever", "hybrid", "statement"),
        ("qb-rag", "questions", "question_index"),
    ],
)
def test_direct_knows_the_form_that_suits_a_retriever(name, kind, form):
    assert query_form(RetrieverInfo(name, kind)) is FORMS[form]
    with refused(ConfigError, "'mine'", "rewriter.name=explore"):
        chat("direct", RetrieverInfo("mine", "custom"))


def test_a_native_query_is_asked_for_with_as_much_of_the_language_as_the_level_has():
    told = {level: "\n".join(chat(level, FTS5, query="native")) for level in ("general", "explore", "direct")}
    parts = (FTS5.trained, "listed by date", "a OR b")
    assert [[part in text for part in parts] for text in told.values()] == [[0, 0, 0], [1, 1, 0], [1, 1, 1]]
    for text in told.values():
        assert text.count("Give exactly one <rewrite> part.") == 2
        assert not any(word in text for word in ("passage", "paragraph", "keywords", "best match first", *STRATEGIES))
    assert "Write keywords" in chat("direct", FTS5)[0], "as text, words are counted"


@pytest.mark.parametrize("name", ["general", "few_shot"])
def test_a_native_answer_is_one_query_with_any_sign(name):
    rewriter = make_rewriter(RewriterConfig(name=name, query="native"), FTS5)
    begun = rewriter.opening

    def parse(*queries):
        answer = "<think></think>" + "".join(f"<rewrite>{query}</rewrite>" for query in queries)
        return rewriter.parse(QUESTION_ASKED, answer.removeprefix(begun), 1)

    assert parse('a <-> "b" NOT c').plan.texts == ['a <-> "b" NOT c']
    assert parse("a", "b").failure == "too many rewrites"
