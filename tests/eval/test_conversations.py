"""Evaluations of questions with a history: their rows, on a real served index, with a prompted endpoint."""

import json

import pytest
from querylect.configs.evaluation import HISTORY, RAW, REFERENCE, SpecConfig
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split, Utterance
from querylect.envs.build import build_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.eval.spec import evaluate_spec

from ..chat_server import ChatServer, last_user, serving
from ..evaluated import records_of

pytestmark = pytest.mark.model

TEXTS = {"hammer": "a hammer drives nails", "spade": "a spade turns the soil", "saw": "a saw cuts wood"}


def question(word):
    history = (Utterance("user", f"I need a {word}."), Utterance("assistant", f"Which {word}?"))
    return Question(f"q-{word}", "And what does it do?", (), history, f"What does a {word} do?")


@pytest.fixture
def tools(tmp_path):
    """An index of three tools; every question has the same words, and another history."""
    documents = [Document(word, "", text) for word, text in TEXTS.items()]
    questions = [question(word) for word in TEXTS]
    split = Split(questions, {entry.id: {entry.id.removeprefix("q-"): 1} for entry in questions})
    save_beir(Dataset("tools", documents, {"test": split}), tmp_path / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(tmp_path / "data")), index=str(tmp_path / "i"))
    build_index(config)
    return config


def test_rows_of_conversations_stand_beside_the_raw_question(tools, run_app, tmp_path):
    def answer(body):
        words = last_user(body).split("Question:")[0].split()
        return f"<think>so</think><rewrite>{words[-1].rstrip('?.')}</rewrite>"

    server = ChatServer(answer)
    with run_app(create_app(Environment.open(tools))) as url, serving(run_app, server) as endpoint:
        with EnvironmentClient(ClientConfig(), [url]) as client:
            assert client.questions("test") == [question(word) for word in TEXTS]
        llm = {"model": "m", "base_url": endpoint, "cache": str(tmp_path / "replies.sqlite"), "deadline": 120.0}
        values = {
            "name": "plan",
            "output": str(tmp_path / "out"),
            "training_free": ["rm3"],
            "permutations": 50,
            "bootstrap": 50,
            "datasets": {"tools": tools.dataset.model_dump()},
            "environments": {"bm25": {"urls": {"tools": [url]}}},
            "rewriter": {"name": "explore"},
            "rollout": {"max_new_tokens": 20, "history_tokens": 3},
            "systems": {"asked": {"llm": llm}},
        }
        path, failed = evaluate_spec(SpecConfig.model_validate(values))
        last_prompt = last_user(server.bodies[-1])
    assert failed is None
    results = json.loads((path.parent / "results.json").read_text(encoding="utf-8"))
    means = {row["system"]: row["metrics"]["ndcg@10"] for row in results["scores"]}
    assert means[RAW] < 1.0
    assert means[HISTORY] == means[REFERENCE] == means["asked"] == 1.0
    assert "history and question" in (path.parent / "tables.md").read_text(encoding="utf-8")
    records = records_of(path.parent, "asked")
    assert {record.history for record in records} == {question(word).history for word in TEXTS}
    assert "User: I\nAssistant: Which" in last_prompt, "three words of the history, the newest"
