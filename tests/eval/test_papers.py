"""A whole paper in miniature over a real BM25 service and a scripted endpoint: figures, files, failures."""

import json
import re

import pytest
import yaml
from querylect.configs.paper import PaperConfig
from querylect.configs.section import Section
from querylect.envs.client.client import EnvironmentClient
from querylect.errors import ConfigError, DataError, EngineUnavailableError, EnvironmentUnavailableError
from querylect.eval.paper import run_paper
from querylect.eval.records import read_records
from querylect.methods.method import Result
from querylect.methods.methods import METHODS, KnownMethod

from ..chat_server import ChatServer, killed_while_asking, last_user, serving
from ..command import end
from ..raising import refused

pytestmark = pytest.mark.model

CHOICE = [
    {"_id": "head", "question": "what stops a migraine", "options": ["triptan", "statin"], "answer": "A"},
    {"_id": "sugar", "question": "what lowers glucose", "options": ["citrus", "insulin"], "answer": "B"},
    {"_id": "gums", "question": "what prevents scurvy", "options": ["statin", "vitamin c"], "answer": "B"},
    {"_id": "odd", "question": "what is the odd one", "options": [f"o{number}" for number in range(10)], "answer": "J"},
]
OPEN = [{"_id": "o1", "question": "what lowers cholesterol", "answers": ["statin"]}]


def answers(body):
    """Reads: names the option that the documents contain, else A. Judges by whether the context has the right one."""
    prompt = last_user(body)
    if "You judge how a context" in prompt:
        if "odd one" in prompt:
            return "I would say it is useful"
        right = prompt.partition("Right answer: ")[2].split("\n")[0][3:]
        contained = right in prompt.partition("Context:")[2]
        return json.dumps({"selected_answer": "A", "label": "ENTAILED" if contained else "NOT_USEFUL"})
    if "Write the passage" in prompt or "Write a passage" in prompt:
        return "a passage about scurvy"
    documents = prompt.partition("Documents:\n")[2].partition("Question:")[0]
    if "answer_choice" not in prompt:
        return "statin" if "statin" in documents else "no idea"
    options = [line for line in prompt.split("\n") if line[1:3] == ". "]
    choice = next((line[0] for line in options if line[3:] in documents), "A")
    return json.dumps({"step_by_step_thinking": "", "answer_choice": choice})


def lines(path, rows):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def server(run_app):
    server = ChatServer(answers)
    with serving(run_app, server) as server.url:
        yield server


@pytest.fixture
def values(url, server, tmp_path):
    return {
        "name": "tiny",
        "baseline": "alone",
        "alone": "alone",
        "reader": {"model": "org/m", "base_url": server.url, "cache": None},
        "tasks": {
            "mcq": {"kind": "choice", "data": lines(tmp_path / "mcq.jsonl", CHOICE), "judges": ["utility"]},
            "open": {"kind": "open", "data": lines(tmp_path / "open.jsonl", OPEN)},
        },
        "environments": {"small": {"client": {"urls": [url]}}},
        "systems": {
            "alone": {"method": "direct_gen", "settings": {"answers": False}},
            "rag": {"method": "std_rag", "settings": {"k": 1, "answers": False}},
            "hyde": {"method": "hyde", "settings": {"k": 2, "passages": 2}, "tasks": ["mcq"]},
        },
        "shifts": [["rag", "hyde"]],
        "sweeps": [{"systems": {"rag": ["k"]}, "values": [1, 2], "task": "mcq", "beside": ["alone"]}],
    }


BARE = {"baseline": "", "alone": "", "shifts": [], "sweeps": []}
"""A paper that compares nothing."""
NOWHERE = {"dataset": {"path": "nowhere"}}


def run(values, folder, overwrite=False, **changes):
    page = run_paper(PaperConfig.model_validate({**values, **changes}), folder, overwrite=overwrite)
    results = json.loads((page.parent / "results.json").read_text())
    figures = {(row["task"], row["system"], row["metric"]): (row["value"], row["n"]) for row in results["figures"]}
    return page, results, figures


def answers_of(page):
    records = read_records(page.parent / "eval.jsonl")
    return {(record.dataset, record.system, record.question_id): record for record in records}


def test_a_whole_paper(values, server, tmp_path):
    page, results, figures = run(values, tmp_path / "out")
    assert figures["mcq", "alone", "accuracy"] == (1 / 4, 4), "alone it always says A"
    assert figures["mcq", "rag", "accuracy"] == (3 / 4, 4), "the odd question has no document"
    assert figures["mcq", "rag", "dur"] == (1.0, 3)
    assert figures["mcq", "rag", "accuracy:entailed"] == (1.0, 3)
    assert figures["mcq", "rag", "gain:entailed"] == (pytest.approx(2 / 3), 3)
    assert ("mcq", "rag", "gain:not_useful") not in figures
    assert "rag in mcq: 1 without a verdict of utility: not of the form that was asked for." in results["notes"]
    assert [figures["mcq", "hyde", cost][0] for cost in ("calls", "searches", "cut")] == [2, 1, 0]
    assert [figures["open", "rag", name] for name in ("em", "cover_em", "f1")] == [(1, 1)] * 3
    assert figures["open", "alone", "em"] == (0, 1)
    tests = {(test["task"], test["system"], test["metric"]): test for test in results["tests"]}
    test = tests["mcq", "rag", "accuracy"]
    assert (test["test"], test["higher"], test["lower"], test["p"]) == ("binomial", 2, 0, 0.25)
    assert {name for task, _, name in tests if task == "open"} == {"em"}, "the other metrics of an answer depend on it"
    assert figures["mcq", "rag/hyde", "shift of all:n"] == (3, 3), "the odd question has no document"
    assert figures["mcq", "rag[k=2]", "accuracy"][1] == 4
    assert "<svg" in (page.parent / "sweep-1.svg").read_text()
    assert results["models"]["judge"]["model"] == "org/m"
    assert results["environments"]["small"]["retriever"]["name"] == "bm25"
    text = page.read_text()
    assert "checks that the machinery works" in text
    assert re.search(r"\| alone +\| 25.0 \(4\)", text)


def test_a_second_run_asks_nothing_and_a_change_only_what_is_different(values, server, tmp_path):
    page, _, first = run(values, tmp_path / "out")
    original, request_count = (page.parent / "eval.jsonl").read_bytes(), len(server.bodies)
    page, _, second = run(values, tmp_path / "out")
    assert len(server.bodies) == request_count
    assert (page.parent / "eval.jsonl").read_bytes() == original
    assert second == first
    with refused(ConfigError, "results.json", "questions.mcq", "--overwrite"):
        run(values, tmp_path / "out", limit=2)
    _, results, _ = run(values, tmp_path / "out", limit=2, overwrite=True)
    assert results["questions"]["mcq"] == {"asked": 2, "skipped": 0, "sample": "2 of 4, drawn with seed 0"}
    assert len(server.bodies) == request_count, "fewer questions are known"
    run(values, tmp_path / "out", overwrite=True)
    assert len(server.bodies) == request_count, "and those that were left out meanwhile still are"
    systems = {**values["systems"], "rag": {"method": "std_rag", "settings": {"k": 3, "answers": False}}}
    run(values, tmp_path / "out", systems=systems, sweeps=[])
    new = [last_user(body) for body in server.bodies[request_count:]]
    assert new
    assert not any("Write the passage" in prompt for prompt in new), "hyde is as it was"
    request_count = len(server.bodies)
    lines(tmp_path / "open.jsonl", [{**OPEN[0], "answers": ["no idea"]}])
    _, _, figures = run(values, tmp_path / "out")
    assert len(server.bodies) == request_count, "other right answers of an unjudged task are scored anew without a call"
    assert figures["open", "alone", "em"] == (1, 1)


def test_some_tasks_and_systems_alone_are_run(values, tmp_path):
    paper = PaperConfig.model_validate(values)
    page = run_paper(paper, tmp_path / "out", only_tasks=["mcq"], only_systems=["rag"])
    arms = {(task, system) for task, system, _ in answers_of(page)}
    assert arms == {("mcq", "rag"), ("mcq", "rag[k=1]"), ("mcq", "rag[k=2]")}
    with refused(ConfigError, "'hydra'", "hyde"):
        run_paper(paper, tmp_path / "out", only_systems=["hydra"])


def test_what_does_not_come_is_counted_and_asked_again(values, server, tmp_path, monkeypatch):
    server.always = lambda body: (400, {}) if "glucose" in last_user(body) else None
    page, results, figures = run(values, tmp_path / "out", sweeps=[])
    assert figures["mcq", "rag", "accuracy"] == (2 / 3, 3)
    assert {"rag in mcq: 1 without an answer: no reply.", "rag in mcq: 1 without a verdict of utility: no reply."} <= {
        *results["notes"]
    }
    lost = answers_of(page)["mcq", "rag", "sugar"]
    assert (lost.answer, lost.metrics) == (None, {"accuracy": None})
    assert figures["mcq", "rag", "calls"] == (0, 3), "the question without a reply is in no mean"
    server.always, request_count = None, len(server.bodies)
    _, _, figures = run(values, tmp_path / "out", sweeps=[])
    assert figures["mcq", "rag", "accuracy"] == (3 / 4, 4)
    assert all("glucose" in last_user(body) for body in server.bodies[request_count:])
    server.always = lambda body: (400, {})
    with refused(EngineUnavailableError):
        run(values, tmp_path / "none", sweeps=[])
    assert not (tmp_path / "none" / "results.json").exists()
    server.always = None
    with monkeypatch.context() as patch:
        patch.setattr(EnvironmentClient, "search", lambda self, plans, with_text=True: [None] * len(plans))
        with refused(EnvironmentUnavailableError, "small"):
            run(values, tmp_path / "away", sweeps=[])
    assert not (tmp_path / "away" / "results.json").exists()
    assert run(values, tmp_path / "away", sweeps=[])[2]["mcq", "rag", "accuracy"] == (3 / 4, 4)


def test_a_method_that_fails_is_no_zero_and_one_that_answers_is_not_read_for(values, server, tmp_path, monkeypatch):
    asked = []

    async def own(question, ask, search, settings):
        asked.append(question.id)
        return Result(failure="unreadable") if question.text < "what m" else Result(answer="B", cut=True)

    monkeypatch.setitem(METHODS, "own", KnownMethod(Section, own))
    options = {**BARE, "systems": {"own": {"method": "own"}}}
    _, results, figures = run(values, tmp_path / "out", **options)
    assert "own in mcq: 2 without an answer: unreadable." in results["notes"]
    assert figures["mcq", "own", "accuracy"] == (0.5, 2)
    assert server.bodies == []
    count = len(asked)
    run(values, tmp_path / "out", **options)
    assert len(asked) == count, "a lasting failure is not asked again"


@pytest.mark.slow
def test_killed_and_started_again(values, server, tmp_path):
    """Generations and answers from before the kill are cached: none is requested again."""
    values["reader"] |= {"cache": str(tmp_path / "cache"), "concurrency": 1}
    values |= {"sweeps": []}
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = ["paper", str(path), "-o", str(tmp_path / "out")]
    first = killed_while_asking(server, 7, tmp_path, *command)
    with (tmp_path / "out" / "store.jsonl").open("a") as file:
        file.write('{"half a li')
    request_count = len(server.bodies)
    assert end(*command) == 0
    assert not set(first) & {last_user(body) for body in server.bodies[request_count:]}
    answers = answers_of(tmp_path / "out" / "results.md")
    assert sum(answers["mcq", "rag", row["_id"]].metrics["accuracy"] for row in CHOICE) == 3


def test_content_questions(values, server, small_environment, tmp_path):
    task = {"kind": "content", "data": small_environment.dataset.path}
    systems = {"rag": {"method": "std_rag", "settings": {"k": 1, "answers": False}}}
    server.answer = lambda body: "I cannot determine the answer to that."
    page, _, figures = run(
        values, tmp_path / "out", tasks={"own": {**task, "judges": ["declined"]}}, systems=systems, **BARE
    )
    right = {"q-head": {"triptan", "aspirin"}, "q-sugar": {"insulin"}, "q-hidden": {"withheld-judgement"}}
    found = {name: right[name] & set(record.documents) for (*_, name), record in answers_of(page).items()}
    assert figures["own", "rag", "exact_recovery"] == (pytest.approx(sum(map(bool, found.values())) / 3), 3)
    assert ("own", "rag", "declined") not in figures, "the judge was off its form"


def test_what_is_missing_or_unknown_is_told_before_anything_is_asked(values, server, tmp_path):
    tasks = {**values["tasks"], "mcq": {"kind": "choice", "data": "nowhere.jsonl", "about": "From there."}}
    with refused(DataError, "'mcq'", "From there.", "tasks.mcq.data"):
        run(values, tmp_path / "out", tasks=tasks)
    for wrong, facts in (
        ({"method": "hydra"}, ["'hydra'", "'hyde'"]),
        ({"method": "rerank"}, ["reranker.model=MODEL"]),
        ({"method": "main_rag", "sources": []}, ["systems.a.sources"]),
        ({"method": "misknow", "settings": {"first": ["small"], "second": ["wiki"]}}, ["wiki", "small"]),
    ):
        with refused(ConfigError, "system 'a'", *facts):
            run(values, tmp_path / "out", systems={**values["systems"], "a": wrong})
    base = {"env": {**NOWHERE, "index": str(tmp_path / "no")}, "about": "From here"}
    with refused(DataError, "environments.small", "nowhere", "From here"):
        run(values, tmp_path / "out", environments={"small": base})
    assert server.bodies == []


def test_answers_are_the_readers_and_all_else_the_writers(values, server, run_app, tmp_path):
    """A reasoning model may judge what is missing while another one answers."""
    writer = ChatServer(
        lambda body: json.dumps({"thought": "?", "judge": True, "missing_knowledge": ["x"], "query": ["statin"]})
    )
    server.answer = lambda body: "no idea"
    with serving(run_app, writer) as url:
        _, results, figures = run(
            values,
            tmp_path / "out",
            writer={"model": "org/reasoner", "base_url": url, "cache": None},
            systems={"m": {"method": "misknow"}, "d": {"method": "direct_gen"}},
            tasks={"open": values["tasks"]["open"]},
            **BARE,
        )
    assert [("First answer" in last_user(body), body["model"]) for body in writer.bodies] == [(True, "org/reasoner")]
    assert len(server.bodies) == 3, "a draft, an answer, and an answer without retrieval"
    assert not any("missing_knowledge" in last_user(body) for body in server.bodies)
    assert results["models"]["writer"]["cost"]["calls"] == 1
    assert figures["open", "m", "calls"] == (3, 1)
