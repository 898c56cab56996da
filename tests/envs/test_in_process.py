"""The environment in this process answers as the service does over HTTP."""

import pytest
from querylect.configs.environment import HybridConfig, MemberConfig, RemoteConfig
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.client.connect import only_reads_index
from querylect.envs.environment import PLANS_AT_ONCE, Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.schemas import Step
from querylect.envs.server.app import create_app
from querylect.errors import ConfigError, RequestError

from ..raising import refused

pytestmark = pytest.mark.server

WEIGHTED = SearchPlan(probes=(Probe(terms=(Term(text="sugar"), Term(text="blood insulin", weight=0.3))),), k=3)
STEPS = [
    Step(question_id="q-head", plan=SearchPlan.of("head hurts aspirin", k=5)),
    Step(question_id="q-sugar", plan=WEIGHTED),
    Step(question_id="q-gums", plan=SearchPlan.of("xylophone", k=5)),
] * (PLANS_AT_ONCE // 2)


def test_every_call_answers_as_over_http(small_environment, run_app):
    environment = Environment.open(small_environment)
    with run_app(create_app(environment)) as url, EnvironmentClient(ClientConfig(urls=[url])) as client:
        assert environment.info() == client.info()
        assert environment.questions("test") == client.questions("test")
        for options in ({}, {"with_text": True, "metrics": ("recall@3", "mrr@10")}):
            assert environment.step(STEPS, **options) == client.step(STEPS, **options)
        plans = [step.plan for step in STEPS]
        assert environment.search(plans) == client.search(plans)
        assert environment.search(plans, with_text=False) == client.search(plans, with_text=False)


def test_what_cannot_be_answered_is_refused(environment):
    with refused(RequestError, "q-none"):
        environment.step([Step(question_id="q-none", plan=WEIGHTED)])
    with refused(RequestError, "validation"):
        environment.questions("validation")
    with refused(RequestError, "native"):
        environment.search([SearchPlan.of("title:x", k=1).model_copy(update={"mode": "native"})])
    with pytest.raises(ConfigError, match="ndgc@10"):
        environment.step(STEPS[:1], metrics=["ndgc@10"])


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        ({}, True),
        ({"retriever": "all-minilm-l6-v2"}, True),
        ({"retriever": "python:mine.py"}, False),
        ({"engine": "milvus"}, False),
        ({"remote": RemoteConfig(url="http://127.0.0.1:1", index="mine")}, False),
        ({"hybrid": HybridConfig(members=[MemberConfig(retriever="bm25")] * 2)}, True),
    ],
)
def test_only_what_searches_files_of_this_machine_is_opened_in_this_process(small_environment, change, alone):
    assert only_reads_index(small_environment.model_copy(update=change)) is alone
