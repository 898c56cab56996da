"""The repr of public objects: one short line, without secrets."""

from querylect.configs.llm import LlmConfig
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.inference.conversations import EndpointModel
from querylect.inference.load import open_trained
from querylect.inference.rewriter import Rewriter

SECRET = "s3cret"


def test_a_client_says_where_it_asks_and_not_its_token(monkeypatch):
    monkeypatch.setenv("QUERYLECT_TOKEN", SECRET)
    with EnvironmentClient(ClientConfig(urls=["http://127.0.0.1:9", "http://127.0.0.1:8"])) as client:
        assert repr(client) == "EnvironmentClient(http://127.0.0.1:9, http://127.0.0.1:8)"


def test_a_rewriter_says_its_turn_and_the_model_of_its_endpoint_and_not_its_key():
    endpoint = EndpointModel.at(LlmConfig(model="m", base_url=f"http://me:{SECRET}@host:8000/v1"), None, trained=False)
    with Rewriter(open_trained("tiny"), endpoint) as rewriter:
        assert repr(rewriter) == "Rewriter('tiny', turn=1, endpoint model 'm')"
