"""Rewriters inside LangChain, LlamaIndex and Haystack: the real libraries around a real tiny policy."""

import asyncio
import logging
import os

import pytest
from querylect.data.types import Question
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import ConfigError
from querylect.inference.adapters.common import merged, queries_of
from querylect.inference.results import RewriteResult, plain_queries
from querylect.inference.rewriter import Rewriter

from ..lessons import TEXTS
from ..raising import refused
from ..used import select_turn

pytestmark = pytest.mark.model

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when it is imported
QUESTION = "my head hurts"


@pytest.fixture
def second(trained):
    """The folder of a run whose second turn won on validation."""
    select_turn(trained[1], 2)
    return trained[1]


@pytest.fixture
def searched(monkeypatch):
    """The plans that rewriters search in the service of their run, as they come."""
    plans, search = [], EnvironmentClient.search

    def noting(self, some, *arguments):
        plans.extend(some)
        return search(self, some, *arguments)

    monkeypatch.setattr(EnvironmentClient, "search", noting)
    return plans


def matching(query):
    """The documents that share a word with the query, the longest text first."""
    words = set(query.split())
    return sorted((name for name, text in TEXTS.items() if words & set(text.split())), key=lambda n: -len(TEXTS[n]))


def langchain_retriever(queries):
    """A retriever of LangChain that finds documents which share a word with the query; records its calls."""
    from langchain_core.documents import Document
    from langchain_core.retrievers import BaseRetriever

    class Words(BaseRetriever):
        def _get_relevant_documents(self, query, *, run_manager):
            queries.append(query)
            return [Document(page_content=TEXTS[name], id=name) for name in matching(query)]

    return Words()


def test_a_plan_becomes_one_query_per_probe_and_one_that_subtracts_none():
    probes = [
        Probe(terms=(Term(text="head", weight=0.5), Term(text="ache"))),
        Probe(terms=(Term(text="migraine"), Term(text="left out", weight=0))),
        Probe(terms=(Term(text="migraine"),)),
    ]
    assert plain_queries(SearchPlan(probes=tuple(probes))) == ["head ache", "migraine"]
    with refused(ConfigError):
        plain_queries(SearchPlan(probes=(Probe(terms=(Term(text="a"), Term(text="b", weight=-1))),)))


def test_a_failed_rewrite_is_the_question_and_a_warning(caplog):
    failed = RewriteResult(Question("", "as asked"), 1, SearchPlan.of("as asked"), failure="missing think")
    with caplog.at_level(logging.WARNING):
        assert queries_of(failed) == ["as asked"]
    assert "missing think" in caplog.text


def test_llama_index_embeds_every_query_of_a_plan():
    pytest.importorskip("llama_index.core")
    from llama_index.core.schema import QueryBundle
    from querylect.inference.adapters.llama_index import QuerylectTransform

    class Two:
        def rewrite(self, question, **_):
            probes = tuple(Probe(terms=(Term(text=text),)) for text in ("a", "b"))
            return RewriteResult(Question("", question), 1, SearchPlan(probes=probes), ("a", "b"))

    bundle = QuerylectTransform(Two())._run(QueryBundle("x"), {})
    assert (bundle.query_str, bundle.embedding_strs) == ("a", ["a", "b"])


def test_rankings_are_merged_by_their_places():
    assert merged([["a", "b", "c"]], str) == ["a", "b", "c"]
    assert merged([["a", "b", "c"], ["c", "d"]], str) == ["c", "a", "b", "d"]  # 1/63 + 1/61, then 1/61, 1/62, 1/62
    assert merged([], str) == []


def test_langchain_over_a_service(rewriter, failing, settings, caplog):
    pytest.importorskip("langchain_core")
    from querylect.inference.adapters.langchain import RewritingRetriever

    with EnvironmentClient(settings.client) as client:
        expected = rewriter.search(QUESTION, client, k=2).ranking
        documents = RewritingRetriever(rewriter=rewriter, retriever=client, k=2).invoke(QUESTION)
        assert [document.id for document in documents] == [hit.id for hit in expected]
        assert documents[0].page_content == TEXTS[documents[0].id]
        caplog.clear()
        result = RewritingRetriever(rewriter=failing, retriever=client, k=2).invoke("headache")
        assert {document.id for document in result} == {"aspirin", "triptan"}
        assert "the rewrite failed" in caplog.text


def test_haystack(rewriter, trained_run, failing_run):
    pytest.importorskip("haystack")
    from haystack import Pipeline
    from querylect.inference.adapters.haystack import QuerylectRewriter

    text, pipeline = rewriter.rewrite(QUESTION).text, Pipeline()
    pipeline.add_component("rewriter", QuerylectRewriter(str(trained_run[1]), checkpoint="final", env="bm25"))
    assert pipeline.run({"rewriter": {"query": QUESTION}})["rewriter"] == {
        "query": text, "queries": [text], "failure": None,
    }  # fmt: skip
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["querylect.inference.adapters.haystack"])
    assert again.get_component("rewriter").checkpoint == "final"
    assert again.get_component("rewriter").env == "bm25"
    assert QuerylectRewriter(str(failing_run[1])).run(query="headache")["query"] == "headache"


def test_langchain_searches_its_own_retriever_between_the_turns(second, searched):
    pytest.importorskip("langchain_core")
    from querylect.inference.adapters.langchain import RewritingRetriever

    queries = []
    rewriter = Rewriter.from_pretrained(second)
    first = rewriter.rewrite(QUESTION, turn=1)
    between = matching(first.text)
    assert between, "something is found between the turns"

    class Between:
        def search(self, plans):
            hits = [HitBody(id=name, score=1, title="", text=TEXTS[name]) for name in between]
            return [PlanResult(ranking=hits)]

    last = rewriter.rewrite(QUESTION, turn=2, client=Between())
    retriever = RewritingRetriever(rewriter=rewriter, retriever=langchain_retriever(queries))
    for kind in ("sync", "async"):
        documents = retriever.invoke(QUESTION) if kind == "sync" else asyncio.run(retriever.ainvoke(QUESTION))
        assert queries == [first.text, last.text]
        assert [document.id for document in documents] == matching(last.text)
        queries.clear()
    assert searched == [], "the service of the run is not asked"


def test_every_adapter_searches_before_the_turn_that_won(second, settings, searched):
    """Two searches each: of the first turn in the service of the run, and of the second by the framework."""
    pytest.importorskip("langchain_core")
    pytest.importorskip("llama_index.core")
    pytest.importorskip("haystack")
    from haystack import Document, Pipeline
    from haystack.components.retrievers.in_memory import InMemoryBM25Retriever
    from haystack.document_stores.in_memory import InMemoryDocumentStore
    from llama_index.core.retrievers import BaseRetriever, TransformRetriever
    from querylect.inference.adapters.haystack import QuerylectRewriter
    from querylect.inference.adapters.langchain import RewritingRetriever
    from querylect.inference.adapters.llama_index import QuerylectTransform

    queries = []

    class Words(BaseRetriever):
        def _retrieve(self, query_bundle):
            queries.append((query_bundle.query_str, query_bundle.embedding_strs))
            return []

    rewriter = Rewriter.from_pretrained(second)
    first, last = rewriter.rewrite(QUESTION, turn=1), rewriter.rewrite(QUESTION)
    assert (first.turn, last.turn, searched) == (1, 2, [first.plan])

    def searches(call):
        """What `call` gives, and the plans that were searched in it."""
        searched.clear()
        return call(), list(searched)

    once = [first.plan]
    retriever = TransformRetriever(Words(), QuerylectTransform(rewriter))
    assert searches(lambda: retriever.retrieve(QUESTION)) == ([], once)
    assert searches(lambda: asyncio.run(retriever.aretrieve(QUESTION))) == ([], once)
    assert queries == [(last.text, [last.text])] * 2

    store = InMemoryDocumentStore()
    store.write_documents([Document(id=name, content=text) for name, text in TEXTS.items()])
    pipeline = Pipeline()
    pipeline.add_component("rewriter", QuerylectRewriter(str(second)))
    pipeline.add_component("retriever", InMemoryBM25Retriever(store, top_k=2))
    pipeline.connect("rewriter.query", "retriever.query")
    data, included = {"rewriter": {"query": QUESTION}}, {"rewriter"}
    ways = (lambda: pipeline.run(data, included), lambda: asyncio.run(pipeline.run_async(data, included)))
    for ran, plans in map(searches, ways):
        assert (ran["rewriter"]["query"], plans) == (last.text, once)
        assert {document.id for document in ran["retriever"]["documents"]} >= {*matching(last.text)[:1]}

    with EnvironmentClient(settings.client) as client:
        ranking = [hit.id for hit in rewriter.search(QUESTION, client).ranking]
        served = RewritingRetriever(retriever=client, rewriter=rewriter, k=50)
        both = [first.plan, last.plan.model_copy(update={"k": 50})]
        for documents, plans in map(
            searches, (lambda: served.invoke(QUESTION), lambda: asyncio.run(served.ainvoke(QUESTION)))
        ):
            assert [document.id for document in documents][: len(ranking)] == ranking
            assert plans == both


@pytest.fixture
def histories(monkeypatch):
    """The histories of the questions that rewriters get, in their order."""
    from querylect.inference import rewriter

    turns, parse = [], rewriter.parse_questions

    def noting(*arguments):
        questions = parse(*arguments)
        turns.extend([(entry.role, entry.text) for entry in question.history] for question in questions)
        return questions

    monkeypatch.setattr(rewriter, "parse_questions", noting)
    return turns


SAID = [("user", "my head hurts"), ("assistant", "since when?")]


def test_langchain_takes_the_messages_before_a_question(rewriter, histories):
    pytest.importorskip("langchain_core")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from querylect.inference.adapters.langchain import RewritingRetriever

    messages = [SystemMessage("be kind"), HumanMessage(SAID[0][1]), AIMessage(SAID[1][1]), AIMessage("")]
    retriever = RewritingRetriever(rewriter=rewriter, retriever=langchain_retriever([]))
    retriever.invoke("since monday", chat_history=messages)
    asyncio.run(retriever.ainvoke("since monday", chat_history=messages))
    assert histories == [SAID] * 2


def test_llama_index_and_haystack_take_the_messages_before_a_question(rewriter, trained_run, histories):
    pytest.importorskip("llama_index.core")
    pytest.importorskip("haystack")
    from haystack.dataclasses import ChatMessage as HaystackMessage
    from llama_index.core.base.llms.types import ChatMessage
    from querylect.inference.adapters.haystack import QuerylectRewriter
    from querylect.inference.adapters.llama_index import QuerylectTransform

    messages = [ChatMessage(role=role, content=text) for role, text in [("system", "be kind"), *SAID]]
    transform = QuerylectTransform(rewriter, history=lambda: messages)
    transform.run("since monday")
    messages = [HaystackMessage.from_system("be kind"), HaystackMessage.from_user(SAID[0][1])]
    QuerylectRewriter(str(trained_run[1])).run(query="since monday", history=messages)
    assert histories == [SAID, SAID[:1]]
