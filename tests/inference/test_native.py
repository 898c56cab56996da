"""Queries in the retriever's language: a prompted model writes them, and a served FTS5 table runs them."""

import re
from functools import partial

import httpx
import pytest
from querylect.configs.llm import LlmConfig
from querylect.configs.load import load_config
from querylect.configs.schema import ClientConfig
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.server.app import create_app
from querylect.inference.rewriter import Rewriter
from querylect.inference.server import mount
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.llms import open_llm
from querylect.rollouts.prompted import PromptedConversation
from querylect.rollouts.tree_sampler import TreeSampler

from ..chat_server import ChatServer, last_user, serving
from ..lessons import change

pytestmark = pytest.mark.server

ERROR = 'fts5: syntax error near ","'
MENDED, STUBBORN, RARE = "my head hurts", "too much blood sugar", "fat in the blood"
SCRIPT = {
    MENDED: ["head, ache", "headache OR migraine", "migraine"],
    STUBBORN: ["blood, sugar", "blood, sugar?", "blood, insulin"],
    RARE: ["fat blood", "blood", "blood NOT glucose"],
}
"""What the model answers to the messages of a question, in their order."""


def answer(body):
    asked = body["messages"][0]["content"]
    question = next(question for question in SCRIPT if question in asked)
    query = SCRIPT[question][len(body["messages"]) // 2]
    return f"<think>so</think><rewrite>{query}</rewrite>"


@pytest.fixture
def native(fts5_lessons, settings, run_app, tmp_path):
    """The file of a config with native queries, the URL of its environment, and the model."""
    server = ChatServer(answer)
    with run_app(create_app(Environment.open(fts5_lessons))) as url, serving(run_app, server) as endpoint:
        config = change(
            settings,
            env=fts5_lessons.model_dump(),
            **{"client.urls": [url], "rewriter.name": "direct", "rewriter.query": "native"},
        )
        (tmp_path / "native.yaml").write_text(config.model_dump_json())
        yield tmp_path / "native.yaml", url, endpoint, server


def said(outcome):
    rewrite = outcome.rewrite
    found = None if outcome.ranking is None else {hit.id for hit in outcome.ranking}
    return rewrite.rewrites, rewrite.plan.mode, rewrite.failure, outcome.hits, outcome.error, found


def test_a_refused_query_is_sent_back_once_then_the_question_is_searched_as_text(native):
    config, url, endpoint, server = native
    with (
        Rewriter.from_pretrained(config, endpoint=endpoint, model="m") as rewriter,
        EnvironmentClient(ClientConfig(), [url]) as client,
    ):
        mended, stubborn, rare = rewriter.search([MENDED, STUBBORN, RARE], client, turns=1, k=2)
        (as_text,) = client.search([SearchPlan.of(STUBBORN, 2)])
    refused = ("refused query", None, ERROR, None)
    assert [said(turn) for turn in mended.turns] == [
        (("head, ache",), "text", *refused),
        (("headache OR migraine",), "native", None, 2, None, {"aspirin", "triptan"}),
    ]
    assert [said(turn)[:5] for turn in stubborn.turns] == [
        (("blood, sugar",), "text", *refused[:3]),
        (("blood, sugar?",), "text", *refused[:3]),
    ]
    assert stubborn.ranking == tuple(as_text.ranking)
    assert (stubborn.rewrite.text, len(as_text.ranking)) == (STUBBORN, 2)
    assert [said(turn) for turn in rare.turns] == [(("fat blood",), "native", None, 0, None, set())]
    assert [f"refused the query: {ERROR}" in last_user(body) for body in server.bodies] == [False] * 3 + [True] * 2


def test_the_service_says_what_was_asked_and_what_the_engine_said(native, fts5_lessons, run_app):
    config, _, endpoint, _ = native
    rewriter = Rewriter.from_pretrained(config, endpoint=endpoint, model="m")
    app = create_app(Environment.open(fts5_lessons), extend=partial(mount, rewriter=rewriter))
    with run_app(app) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        asked = http.post("/v1/ask", json={"questions": [MENDED], "turns": 1}).json()
    (turns,) = [entry["turns"] for entry in asked["answers"]]
    assert [(turn["text"], turn["plan"]["mode"], turn["hits"], turn["error"]) for turn in turns] == [
        (MENDED, "text", None, ERROR),
        ("headache OR migraine", "native", 2, None),
    ]


def test_later_turns_read_what_they_read_in_an_evaluation(native):
    """Where a turn follows anyway, a refused query is not asked twice."""
    config, url, endpoint, server = native
    with (
        Rewriter.from_pretrained(config, endpoint=endpoint, model="m") as rewriter,
        EnvironmentClient(ClientConfig(), [url]) as client,
    ):
        results = rewriter.search([MENDED, RARE], client, turns=2)
        ours, server.bodies[:] = list(server.bodies), []
        settings = load_config(str(config))
        writer = make_rewriter(settings.rewriter, RetrieverInfo.from_service(client.info().retriever))
        with open_llm(LlmConfig(model="m", base_url=endpoint, cache=None)) as llm:
            sampler = TreeSampler(PromptedConversation(llm, writer, settings.rollout), client, settings.reward)
            sampler.answer([question for question in client.questions("train") if question.text in (MENDED, RARE)], 2)
    assert [len(result.turns) for result in results] == [2, 2]
    assert sorted(map(last_user, ours)) == sorted(map(last_user, server.bodies))
    shown = re.findall(r"^(?:The search|Documents that).*", "\n".join(map(last_user, ours)), re.MULTILINE)
    assert sorted(shown) == ["Documents that match: 0", f"The search engine refused the query: {ERROR}"]
