"""The repr of public objects: one short line, without secrets."""

from querylect.configs.llm import LlmConfig
from querylect.configs.schema import ClientConfig
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.inference.endpoint import endpoint_of
from querylect.inference.load import open_trained
from querylect.inference.results import RewriteResult
from querylect.inference.rewriter import Rewriter

SECRET = "s3cret"


def test_an_environment_says_what_it_holds(small_environment):
    expected = "Environment('small/bm25', bm25, 6 documents, 1 train questions, 3 test questions)"
    assert repr(Environment.open(small_environment)) == expected


def test_a_client_says_where_it_asks_and_not_its_token(monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", SECRET)
    with EnvironmentClient(ClientConfig(urls=["http://127.0.0.1:9", "http://127.0.0.1:8"])) as client:
        assert repr(client) == "EnvironmentClient(http://127.0.0.1:9, http://127.0.0.1:8)"


def test_a_rewriter_says_its_retriever_turn_and_endpoint():
    trained = open_trained("tiny")
    assert repr(trained) == f"Trained('tiny', unknown, turn=1 of {trained.turns})"
    endpoint = endpoint_of(LlmConfig(model="m", base_url=f"http://me:{SECRET}@host:8000/v1"), None, trained=False)
    assert repr(endpoint) == "EndpointModel('m', 'http://host:8000/v1')"
    with Rewriter(trained, endpoint) as rewriter:
        expected = "Rewriter('tiny', retriever='unknown', turn=1, endpoint='http://host:8000/v1', model='m')"
        assert repr(rewriter) == expected


def test_a_result_says_question_and_rewrite_in_one_line():
    result = RewriteResult(Question("", "my head\nhurts"), 2, SearchPlan.of("triptan"), ("triptan",))
    assert repr(result) == "RewriteResult('my head hurts' → 'triptan', turn=2)"
    failed = RewriteResult(Question("", "x" * 99), 1, SearchPlan.of("x"), failure="missing think")
    assert repr(failed) == f"RewriteResult('{'x' * 59}…' → the question, for it failed: missing think, turn=1)"


def test_a_dataset_says_its_sizes():
    split = Split([Question("q", "text")], {"q": {"d": 2, "e": 0}})
    dataset = Dataset("set", [Document("d", "", "text")] * 5, {"test": split})
    assert repr(dataset) == "Dataset('set', 5 documents, test=Split(1 questions, 1 relevant judgements))"
