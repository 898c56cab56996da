"""Every system of every packaged paper, over a small BM25 collection, a scripted endpoint and a cross-encoder."""

import json
from collections import Counter

import pytest
from querylect.configs.load import known_configs
from querylect.configs.paper import PAPERS, PaperConfig, load_paper
from querylect.configs.schema import EnvironmentConfig
from querylect.data.published import published
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.server.app import create_app
from querylect.eval.paper import run_paper
from querylect.eval.records import read_records
from querylect.methods.methods import METHODS

from ..chat_server import ChatServer, last_user, serving
from ..command import end
from ..encoders import save_cross_encoder
from ..scripted import obliging

pytestmark = pytest.mark.model

QUESTIONS = {
    "choice": [
        {"_id": "head", "question": "what stops a migraine", "options": ["triptan", "statin"], "answer": "A"},
        {"_id": "gums", "question": "what prevents scurvy", "options": ["statin", "vitamin c"], "answer": "B"},
    ],
    "open": [
        {"_id": "o1", "question": "what lowers cholesterol", "answers": ["statin"]},
        {"_id": "o2", "question": "what prevents scurvy", "answers": ["vitamin c"]},
    ],
}
VETTED = {"question": "which pill is for a migraine", "contents": ["triptan"]}


def answers(body):
    """Keeps to every format; requests with log-probabilities get Yes."""
    return "Yes" if body.get("logprobs") else obliging(last_user(body))


@pytest.fixture(scope="module")
def contents(small_environment, run_app):
    """The address of the small collection."""
    with run_app(create_app(Environment.open(small_environment))) as url:
        yield url


@pytest.fixture(scope="module")
def question_index(small_environment, tmp_path_factory, run_app):
    """The address of the same collection behind an index of one question."""
    folder = tmp_path_factory.mktemp("questions")
    (folder / "vetted.jsonl").write_text(json.dumps(VETTED))
    index_settings = {"folder": str(folder / "q"), "retriever": "bm25", "index": str(folder / "q-bm25")}
    settings = {"retriever": "qb-rag", "index": str(folder / "qb"), "question_index": index_settings}
    env = EnvironmentConfig.model_validate({**small_environment.model_dump(mode="json"), **settings})
    (folder / "config.yaml").write_text(json.dumps({"env": env.model_dump(mode="json")}))
    assert end("index", "questions", str(folder / "config.yaml"), "--add", str(folder / "vetted.jsonl")) == 0
    build_index(env)
    with run_app(create_app(Environment.open(env))) as url:
        yield url


@pytest.mark.parametrize("name", known_configs(PAPERS))
def test_every_system_of_a_paper_comes_to_its_end(name, small_environment, contents, question_index, run_app, tmp_path):
    paper = load_paper(name).model_dump(mode="json")
    for task in paper["tasks"].values():
        task |= {"judges": [], "data": small_environment.dataset.path}
        if task["kind"] != "content":
            task["data"], task["options"] = str(tmp_path / f"{task['kind']}.jsonl"), []
    for kind, rows in QUESTIONS.items():
        (tmp_path / f"{kind}.jsonl").write_text("".join(json.dumps(record) + "\n" for record in rows))
    for environment_name, environment in paper["environments"].items():
        environment["client"]["urls"] = [question_index if environment_name.startswith("questions") else contents]
    if paper["reranker"]:
        paper["reranker"]["model"] = str(save_cross_encoder(tmp_path / "cross-encoder"))
    server = ChatServer(answers)
    with serving(run_app, server) as url:
        paper |= {"limit": 2, "reader": {"model": "org/m", "base_url": url, "cache": None}}
        page = run_paper(PaperConfig.model_validate(paper), tmp_path / "out")
    records = read_records(page.parent / "eval.jsonl")
    failed = [record for record in records if record.failure or record.answer is None]
    ended = Counter((record.dataset, record.system) for record in records if record not in failed)
    rows = {(record.dataset, record.system) for record in records}
    assert {system for _, system in rows} >= set(load_paper(name).systems)
    assert ended == dict.fromkeys(rows, 2), failed
    searching = {system for system, system_config in load_paper(name).systems.items() if system_config.sources != []}
    assert searching == {record.system for record in records if record.searches and "[" not in record.system}
    for table in dict.fromkeys(figure.table for figure in published(name).figures if figure.task in paper["tasks"]):
        assert f"## {table.capitalize()}" in page.read_text(), "every table of the paper has our column"


def test_the_papers_name_every_method():
    methods = {system.method for name in known_configs(PAPERS) for system in load_paper(name).systems.values()}
    assert set(METHODS) <= methods
