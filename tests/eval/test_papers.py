"""A whole paper in miniature over a real BM25 service and a scripted endpoint: figures, files, failures."""

import json

import pytest
import yaml
from querylect.configs.methods import DirectGenConfig, PromptConfig
from querylect.configs.paper import PaperConfig
from querylect.errors import ConfigError, DataError, EngineUnavailableError, EnvironmentUnavailableError
from querylect.eval.papers.run import run_paper
from querylect.methods.method import Result, StageError
from querylect.methods.methods import METHODS, KnownMethod
from querylect.rewriters.retriever_info import RetrieverInfo

from ..chat_server import ChatServer, killed_while_asking, last_user, serving
from ..command import end
from ..method_doubles import Shelf
from ..raising import logged, refused

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
        "sweeps": [{"systems": {"rag": "k"}, "values": [1, 2], "task": "mcq", "beside": ["alone"]}],
    }


BARE = {"baseline": "", "alone": "", "shifts": [], "sweeps": []}
"""A paper that compares nothing."""


def run(values, folder, overwrite=False, **changes):
    paper = PaperConfig.model_validate({**values, **changes})
    page = run_paper(paper, folder, overwrite=overwrite)
    return page, json.loads((page.parent / "results.json").read_text())


def question_records(page):
    return [json.loads(line) for line in (page.parent / "questions.jsonl").read_text().splitlines()]


def row(results, task, system):
    return next(entry for entry in results["rows"] if (entry["task"], entry["system"]) == (task, system))


def test_a_whole_paper(values, server, tmp_path):
    page, results = run(values, tmp_path / "out")
    alone, rag, hyde = (row(results, "mcq", name) for name in ("alone", "rag", "hyde"))
    assert alone["means"]["accuracy"] == {"value": 1 / 4, "n": 4}, "alone it always says A"
    assert rag["means"]["accuracy"]["value"] == 3 / 4, "the odd question has no document"
    assert rag["means"]["dur"] == {"value": 1.0, "n": 3}
    assert (rag["off_format"], alone["off_format"]) == ({"utility": 1}, {})
    assert rag["means"]["accuracy:entailed"] == {"value": 1.0, "n": 3}
    assert rag["means"]["gain:entailed"] == {"value": pytest.approx(2 / 3), "n": 3}
    assert rag["means"]["gain:not_useful"] == {"value": None, "n": 0}
    assert (rag["means"]["calls"]["value"], rag["means"]["searches"]["value"]) == (0, 1)
    assert (hyde["means"]["calls"]["value"], hyde["means"]["searches"]["value"]) == (2, 1), "each sample is a call"
    open_row = row(results, "open", "rag")
    assert {name: open_row["means"][name]["value"] for name in ("em", "cover_em", "f1")} == {
        "em": 1,
        "cover_em": 1,
        "f1": 1,
    }
    assert row(results, "open", "alone")["means"]["em"]["value"] == 0
    comparisons = {(entry["task"], entry["system"], entry["metric"]): entry for entry in results["comparisons"]}
    test = comparisons["mcq", "rag", "accuracy"]["test"]
    assert (test["test"], test["higher"], test["lower"], test["p"]) == ("binomial", 2, 0, 0.25)
    shift = {entry["only"]: entry["shift"] for entry in results["shifts"] if entry["task"] == "mcq"}
    assert (shift["all"]["n"], shift["all"]["empty"]) == (3, 1), "the odd question has no document"
    assert shift["right"]["n"] == sum(
        a["scores"]["accuracy"] == 1 and b["scores"]["accuracy"] == 0
        for a, b in zip(
            *[[r for r in question_records(page) if (r["task"], r["system"]) == ("mcq", s)] for s in ("rag", "hyde")],
            strict=True,
        )
    )
    assert row(results, "mcq", "rag[k=2]")["questions"] == 4
    assert "<svg" in (page.parent / "sweep-1.svg").read_text()
    assert results["reader"] == {"endpoint": server.url, "model": "org/m", "extra": {}}
    assert (results["judges"], results["generator"]) == ({"utility": "utility-2"}, "generator-1")
    text = page.read_text()
    for part in (
        "mcq n = 4, open n = 1",
        "checks that the machinery works",
        "| alone | 25.0 (4) | – | – | – | – |",
        "utility-2",
    ):
        assert part in text
    assert results["environments"]["small"]["retriever"] == "bm25"


def test_a_second_run_asks_nothing_and_a_change_only_what_is_different(values, server, tmp_path):
    page, first = run(values, tmp_path / "out")
    original, request_count = (page.parent / "questions.jsonl").read_bytes(), len(server.bodies)
    page, second = run(values, tmp_path / "out")
    assert len(server.bodies) == request_count
    assert (page.parent / "questions.jsonl").read_bytes() == original
    assert second["rows"] == first["rows"]
    with refused(ConfigError, "results.json", "questions.mcq", "--overwrite"):
        run(values, tmp_path / "out", limit=2)
    run(values, tmp_path / "out", limit=2, overwrite=True)
    assert len(server.bodies) == request_count, "fewer questions are known"
    run(values, tmp_path / "out", overwrite=True)
    assert len(server.bodies) == request_count, "and those that were left out meanwhile still are"
    alone = {"method": "direct_gen", "settings": {"answers": False, "max_tokens": DirectGenConfig().max_tokens}}
    run(values, tmp_path / "out", systems={**values["systems"], "alone": alone})
    assert len(server.bodies) == request_count, "a default that is named is no other setting"
    systems = {**values["systems"], "rag": {"method": "std_rag", "settings": {"k": 3, "answers": False}}}
    run(values, tmp_path / "out", systems=systems, sweeps=[])
    new = [last_user(body) for body in server.bodies[request_count:]]
    assert new
    assert not any("Write the passage" in prompt for prompt in new), "hyde is as it was"
    request_count = len(server.bodies)
    lines(tmp_path / "open.jsonl", [{**OPEN[0], "answers": ["no idea"]}])
    _, results = run(values, tmp_path / "out")
    assert len(server.bodies) == request_count, "other right answers of an unjudged task are scored anew without a call"
    assert row(results, "open", "alone")["means"]["em"]["value"] == 1


def test_no_answer_to_a_method_is_longer_than_the_paper_allows(values, server, tmp_path):
    systems = {
        "short": {"method": "hyde", "settings": {"passages": 1, "max_tokens": 5}},
        "long": {"method": "query2doc", "settings": {"max_tokens": 99}},
    }
    values["tasks"]["mcq"]["judges"] = []
    options = {**BARE, "limit": 1}
    run(values, tmp_path / "out", systems=systems, method_max_tokens=9, max_tokens=50, **options)
    lengths = {("passage" in last_user(body), body["max_tokens"]) for body in server.bodies}
    assert lengths == {(True, 5), (True, 9), (False, 50)}
    request_count = len(server.bodies)
    run(values, tmp_path / "out", systems=systems, max_tokens=50, **options)
    assert {body["max_tokens"] for body in server.bodies[request_count:]} >= {99}, "other lengths are other records"


def test_texts_that_were_cut_are_a_share_of_every_system_that_writes(values, server, tmp_path):
    server.always = lambda body: "cut" if "glucose" in last_user(body) and "passage" in last_user(body) else None
    systems = {**values["systems"], "csqe": {"method": "csqe"}}
    options = {"sweeps": [], "tasks": {"mcq": {**values["tasks"]["mcq"], "judges": []}}}
    page, results = run(values, tmp_path / "out", systems=systems, **options)
    shares = {entry["system"]: (entry["means"]["cut_at_limit"], entry["cut"]) for entry in results["rows"]}
    none, quarter = {"value": 0.0, "n": 4}, {"value": 0.25, "n": 4}
    assert shares == {"alone": (none, 0), "rag": (none, 0), "hyde": (quarter, 0), "csqe": (quarter, 0)}
    warnings = [line for line in page.read_text().splitlines() if "unfinished text" in line]
    assert [line.partition(" of its answers")[0] for line in warnings] == [
        "- hyde in mcq: 25.0%",
        "- csqe in mcq: 25.0%",
    ]
    server.always = lambda body: "cut" if "Documents:" in last_user(body) else None
    _, results = run(values, tmp_path / "reader", systems=systems, **options)
    assert row(results, "mcq", "rag")["means"]["cut_at_limit"]["value"] == row(results, "mcq", "rag")["cut"] / 4 > 0


def test_limit_draws_questions_of_every_task(values, tmp_path):
    page, results = run(values, tmp_path / "out", limit=1)
    ids = {record["question_id"] for record in question_records(page)}
    assert ids == {"odd", "o1"}, "the first of the draw, not of the file"
    sample = {"size": 1, "of": 4, "seed": 0}
    assert results["questions"]["mcq"] == {"asked": 1, "skipped": 0, "sample": sample}
    assert "mcq n = 1 of 4, drawn with seed 0" in page.read_text()


def test_what_does_not_come_is_counted_and_asked_again(values, server, tmp_path):
    server.always = lambda body: (400, {}) if "glucose" in last_user(body) else None
    page, results = run(values, tmp_path / "out", sweeps=[])
    rag = row(results, "mcq", "rag")
    assert (rag["answered"], rag["reasons"], rag["means"]["accuracy"]) == (3, {"no reply": 1}, {"value": 2 / 3, "n": 3})
    assert rag["means"]["accuracy:all"] == {"value": 2 / 4, "n": 4}, "the same with failures as wrong answers"
    assert "| rag | 66.7 (3; 50.0 of 4) |" in page.read_text()
    assert rag["unjudged"] == {"utility": 1}
    key = ("rag", "sugar")
    lost = next(r for r in question_records(page) if (r["system"], r["question_id"]) == key)
    assert (lost["answer"], lost["scores"]) == (None, {"accuracy": None})
    assert "no reply: 1" in page.read_text()
    server.always, request_count = None, len(server.bodies)
    _, results = run(values, tmp_path / "out", sweeps=[])
    assert row(results, "mcq", "rag")["means"]["accuracy"] == {"value": 3 / 4, "n": 4}
    assert all("glucose" in last_user(body) for body in server.bodies[request_count:])
    server.always = lambda body: (400, {})
    with refused(EngineUnavailableError):
        run(values, tmp_path / "none", sweeps=[])
    assert not (tmp_path / "none" / "results.json").exists()


class Away:
    """An environment that becomes unavailable after it was opened."""

    retriever = RetrieverInfo("bm25", "bm25")
    facts: dict = {}  # noqa: RUF012
    client = Shelf({}, down=True)


def test_an_environment_that_is_away_ends_a_paper_with_its_reason(values, server, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("querylect.eval.papers.run.open_bases", lambda *_: {"small": Away()})
    with refused(EnvironmentUnavailableError):
        run(values, tmp_path / "out", sweeps=[])
    unranked = [(plans, str(error)) for _, plans, error in logged(caplog, "methods.runner")]
    assert (4, "nobody is there") in unranked
    assert not (tmp_path / "out" / "results.json").exists()


@pytest.mark.parametrize("silent", [False, True])
def test_a_cost_is_of_replies_and_unknown_where_an_endpoint_does_not_count(values, server, tmp_path, silent):
    server.always = lambda body: (400, {}) if "glucose" in last_user(body) else None
    server.usage = not silent
    systems = {"rag": values["systems"]["rag"], "hyde": {"method": "hyde", "settings": {"k": 1, "passages": 1}}}
    tasks = {"mcq": {**values["tasks"]["mcq"], "judges": []}}
    _, results = run(values, tmp_path / "out", systems=systems, tasks=tasks, **BARE)
    rag, hyde = (row(results, "mcq", name)["means"] for name in ("rag", "hyde"))
    assert rag["calls"] == {"value": 0, "n": 3}, "the question without a reply is in no mean"
    for cost in (rag["reader_tokens"], rag["reader_prompt_tokens"], hyde["tokens"], hyde["prompt_tokens"]):
        assert (cost["n"], bool(cost["value"])) == ((0, False) if silent else (3, True))


async def refusing(question, ask, search, settings):
    """Fails on every second question, and answers the others without the reader."""
    if question.text < "what m":
        raise StageError("unreadable")
    return Result(answer="B", cut=True)


def test_a_method_that_fails_is_no_zero_and_one_that_answers_is_not_read_for(values, server, tmp_path, monkeypatch):
    paper = PaperConfig.model_validate({**values, **BARE, "systems": {"own": {"method": "own"}}})
    monkeypatch.setitem(METHODS, "own", KnownMethod(PromptConfig, refusing))
    page = run_paper(paper, tmp_path / "out")
    result = row(json.loads((page.parent / "results.json").read_text()), "mcq", "own")
    assert result["reasons"] == {"unreadable": 2}
    assert result["means"]["accuracy"] == {"value": 0.5, "n": 2}
    assert result["cut"] == 2, "of an answer that the method wrote, too"
    assert server.bodies == []
    questions = []

    async def counting(question, ask, search, settings):
        questions.append(question)
        return await refusing(question, ask, search, settings)

    monkeypatch.setitem(METHODS, "own", KnownMethod(PromptConfig, counting))
    run_paper(paper, tmp_path / "out")
    assert questions == []
    prompt = tmp_path / "own.j2"
    prompt.write_text("other prompts")
    own = {"own": {"method": "own", "settings": {"prompt": str(prompt)}}}
    changed = PaperConfig.model_validate({**values, **BARE, "systems": own})
    run_paper(changed, tmp_path / "out")
    run_paper(changed, tmp_path / "out")
    assert len(questions) == 5, "a record is known of the same prompts alone"


@pytest.mark.slow
def test_killed_and_started_again(values, server, tmp_path):
    """Generations and answers from before the kill are cached: none is requested again."""
    values["reader"] |= {"cache": str(tmp_path / "cache"), "concurrency": 1}
    values |= {"sweeps": []}
    path = tmp_path / "paper.yaml"
    path.write_text(yaml.safe_dump(values), encoding="utf-8")
    command = ["paper", str(path), "-o", str(tmp_path / "out")]
    first = killed_while_asking(server, 7, tmp_path, *command)
    with (tmp_path / "out" / "questions.jsonl").open("a") as file:
        file.write('{"half a li')
    request_count = len(server.bodies)
    assert end(*command) == 0
    assert not set(first) & {last_user(body) for body in server.bodies[request_count:]}
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert row(results, "mcq", "rag")["means"]["accuracy"]["value"] == 3 / 4


def test_content_questions(values, server, small_environment, tmp_path):
    task = {"kind": "content", "data": small_environment.dataset.path}
    systems = {"rag": {"method": "std_rag", "settings": {"k": 1, "answers": False}}}
    server.answer = lambda body: "I cannot determine the answer to that."
    page, results = run(
        values, tmp_path / "out", tasks={"own": {**task, "judges": ["declined"]}}, systems=systems, **BARE
    )
    right = {"q-head": {"triptan", "aspirin"}, "q-sugar": {"insulin"}, "q-hidden": {"withheld-judgement"}}
    records = {record["question_id"]: record for record in question_records(page)}
    recovered = {name: record["scores"]["exact_recovery"] for name, record in records.items()}
    assert recovered == {name: float(bool(right[name] & set(record["documents"]))) for name, record in records.items()}
    assert set(recovered.values()) == {0, 1}
    result = row(results, "own", "rag")
    assert result["means"]["exact_recovery"] == {"value": pytest.approx(sum(recovered.values()) / 3), "n": 3}
    assert (result["off_format"], result["means"]["declined"]["value"]) == ({"declined": 3}, None)


def test_what_is_missing_or_unknown_is_told_before_anything_is_asked(values, server, tmp_path):
    tasks = {**values["tasks"], "mcq": {"kind": "choice", "data": "nowhere.jsonl", "about": "From there."}}
    with refused(DataError, "'mcq'", "From there.", "tasks.mcq.data"):
        run(values, tmp_path / "out", tasks=tasks)
    for wrong, facts in (
        ({"method": "hydra"}, ["'hydra'", "'hyde'"]),
        ({"method": "std_rag", "settings": {"source": ["w"]}}, ["'std_rag'", "no setting source;", "sources"]),
    ):
        with refused(ConfigError, "system 'a'", *facts):
            run(values, tmp_path / "out", systems={**values["systems"], "a": wrong})
    base = {
        "env": {"dataset": {"path": "nowhere"}, "index": str(tmp_path / "no")},
        "about": "From here",
    }
    with refused(DataError, "'small'", "nowhere", "From here."):
        run(values, tmp_path / "out", environments={"small": base})
    for changes, facts in (
        ({"systems": {"r": {"method": "rerank"}}}, ["'r'", "reranker.model=MODEL"]),
        ({"systems": {"m": {"method": "main_rag", "sources": []}}}, ["'m'", "systems.m.sources"]),
        (
            {"systems": {"n": {"method": "misknow", "settings": {"first": ["small"], "second": ["wiki"]}}}},
            ["'n'", "'wiki'", "'small'"],
        ),
    ):
        with refused(ConfigError, *facts):
            run(values, tmp_path / "out", **BARE, **changes)
    assert server.bodies == []


def test_answers_are_the_readers_and_all_else_the_writers(values, server, run_app, tmp_path):
    """A reasoning model may judge what is missing while another one answers."""
    writer = ChatServer(
        lambda body: json.dumps({"thought": "?", "judge": True, "missing_knowledge": ["x"], "query": ["statin"]})
    )
    server.answer = lambda body: "no idea"
    with serving(run_app, writer) as url:
        _, results = run(
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
    assert results["writer"]["model"] == "org/reasoner"
    assert results["cost"]["writer"]["calls"] == 1
    assert row(results, "open", "m")["means"]["calls"]["value"] == 3
