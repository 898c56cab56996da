"""Rewriters inside LangChain, LlamaIndex and Haystack: the real libraries around a real tiny policy."""

import asyncio
import os

import pytest
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError
from querylect.inference.adapters import merged
from querylect.inference.rewriter import Rewriter
from querylect.inference.turns import plain_queries

from ..lessons import TEXTS
from ..raising import refused
from ..used import select_turn

pytestmark = pytest.mark.model

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # read when it is imported
QUESTION = "my head hurts"


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


def test_rankings_are_merged_by_their_places():
    assert merged([["a", "b", "c"]], str) == ["a", "b", "c"]
    assert merged([["a", "b", "c"], ["c", "d"]], str) == ["c", "a", "b", "d"]  # 1/63 + 1/61, then 1/61, 1/62, 1/62
    assert merged([], str) == []


SAID = [("user", "my head hurts"), ("assistant", "since when?")]


@pytest.fixture
def second(trained, monkeypatch):
    """A rewriter whose second turn won on validation; what it is asked, what its service is."""
    from querylect.inference import rewriter

    asked, plans, search, parse = [], [], EnvironmentClient.search, rewriter.parse_questions

    def searching(self, batch, *arguments):
        plans.extend(batch)
        return search(self, batch, *arguments)

    def parsing(*arguments):
        asked.extend(parse(*arguments))
        return asked[-1:]

    select_turn(trained[1], 2)
    with Rewriter.from_pretrained(trained[1]) as loaded:
        expected = loaded.rewrite(QUESTION, turn=1), loaded.rewrite(QUESTION)
        monkeypatch.setattr(EnvironmentClient, "search", searching)
        monkeypatch.setattr(rewriter, "parse_questions", parsing)
        yield loaded, trained[1], expected, asked, plans


def history_of(question):
    return [(utterance.role, utterance.text) for utterance in question.history]


def test_langchain_over_a_service(rewriter, failing, settings, caplog):
    pytest.importorskip("langchain_core")
    from querylect.inference.adapters.langchain import RewritingRetriever

    with EnvironmentClient(settings.client) as client:
        for turns in (1, 2):
            expected = rewriter.search(QUESTION, client, turns=turns, k=2).ranking
            retriever = RewritingRetriever(rewriter=rewriter, retriever=client, k=2, turns=turns)
            documents = retriever.invoke(QUESTION)
            assert [document.id for document in documents] == [hit.id for hit in expected]
            assert documents == asyncio.run(retriever.ainvoke(QUESTION))
        assert documents[0].page_content == TEXTS[documents[0].id]
        caplog.clear()
        result = RewritingRetriever(rewriter=failing, retriever=client, k=2).invoke("headache")
        assert {document.id for document in result} == {"aspirin", "triptan"}
        assert "the rewrite failed" in caplog.text


def test_langchain_searches_its_own_retriever_in_every_turn(second):
    pytest.importorskip("langchain_core")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
    from querylect.inference.adapters.langchain import RewritingRetriever

    rewriter, _, (first, _), asked, plans = second
    queries = []
    retriever = RewritingRetriever(rewriter=rewriter, retriever=langchain_retriever(queries))
    documents = retriever.invoke(QUESTION)
    assert queries[0] == first.text
    assert [document.id for document in documents] == matching(queries[1])
    assert plans == [], "the service of the run is not asked"
    messages = [SystemMessage("be kind"), HumanMessage(SAID[0][1]), AIMessage(SAID[1][1]), AIMessage("")]
    asyncio.run(retriever.ainvoke("since monday", chat_history=messages))
    assert history_of(asked[-1]) == SAID


def test_llama_index_searches_with_the_turn_that_won(second):
    pytest.importorskip("llama_index.core")
    from llama_index.core.base.llms.types import ChatMessage
    from llama_index.core.retrievers import BaseRetriever, TransformRetriever
    from querylect.inference.adapters.llama_index import QuerylectTransform

    rewriter, _, (first, last), asked, plans = second
    queries, messages = [], [ChatMessage(role=role, content=text) for role, text in [("system", "be kind"), *SAID]]

    class Words(BaseRetriever):
        def _retrieve(self, query_bundle):
            queries.append((query_bundle.query_str, query_bundle.embedding_strs))
            return []

    TransformRetriever(Words(), QuerylectTransform(rewriter)).retrieve(QUESTION)
    assert (queries, plans) == ([(last.text, [last.text])], [first.plan])
    QuerylectTransform(rewriter, history=lambda: messages).run("since monday")
    assert history_of(asked[-1]) == SAID


def test_haystack_searches_with_the_turn_that_won(second, failing_run):
    pytest.importorskip("haystack")
    from haystack import Pipeline
    from haystack.dataclasses import ChatMessage
    from querylect.inference.adapters.haystack import QuerylectRewriter

    _, folder, (first, last), asked, plans = second
    pipeline = Pipeline()
    pipeline.add_component("rewriter", QuerylectRewriter(str(folder), checkpoint="final", env="bm25"))
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["querylect.inference.adapters.haystack"])
    expected = {"query": last.text, "queries": [last.text], "failure": None}
    assert again.run({"rewriter": {"query": QUESTION}})["rewriter"] == expected
    assert plans == [first.plan]
    messages = [ChatMessage.from_system("be kind"), ChatMessage.from_user(SAID[0][1])]
    again.run({"rewriter": {"query": "since monday", "history": messages}})
    assert history_of(asked[-1]) == SAID[:1]
    assert QuerylectRewriter(str(failing_run[1])).run(query="headache")["query"] == "headache"
