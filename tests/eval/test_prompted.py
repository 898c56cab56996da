"""Systems that ask a language model over HTTP: a real server of the protocol, real searches, plans carried out."""

import json
from pathlib import Path

import pytest
from querylect.eval.records import read_records

from .. import evaluated
from ..chat_server import ChatServer, last_user, serving
from ..lessons import ASKED

pytestmark = pytest.mark.model

RIGHT = {
    "my head hurts": "triptan migraine headache",
    "too much sugar": "insulin glucose",
    "bleeding gums": "vitamin scurvy",
    "fat in the blood": "statin cholesterol",
    "common pills": "aspirin statin",
}


def tagged(body):
    """The right rewrite of the question, in the format of the prompt."""
    prompt = last_user(body)
    words = next(words for question, words in RIGHT.items() if question in prompt)
    again = " again" if "brought up these documents" in prompt else ""
    return f"<think>so{again}</think><rewrite>{words}</rewrite>"


@pytest.fixture
def endpoint(run_app):
    server = ChatServer(tagged)
    with serving(run_app, server) as url:
        server.url = url
        yield server


@pytest.fixture
def values(lessons, lesson_url, endpoint, tmp_path):
    llm = {"model": "m", "base_url": endpoint.url, "cache": str(tmp_path / "replies.sqlite"), "deadline": 120.0}
    return {
        **evaluated.plan_values(lessons, lesson_url, "no model", tmp_path),
        "training_free": [],
        "rewriter": {"name": "explore"},
        "rollout": {"max_new_tokens": 20, "documents": 2, "document_tokens": 4},
        "systems": {"asked": {"llm": llm, "turns": 2}},
    }


def carry_out(values, **changes):
    return evaluated.carry_out(values, overwrite=True, **changes)


def with_system(values, name="asked", **changes):
    return {**values, "systems": {name: {**values["systems"]["asked"], **changes}}}


def row(results, system, turn):
    return next(entry for entry in results["scores"] if (entry["system"], entry["turn"]) == (system, turn))


def rows_of(folder: Path):
    return evaluated.records_of(folder, "asked")


def test_an_endpoint_rewrites_turn_by_turn_and_its_tokens_and_calls_are_counted(values, endpoint):
    folder, results, failed = carry_out(values)
    assert failed is None
    assert len(endpoint.bodies) == 10
    first = endpoint.bodies[0]
    later = [body for body in endpoint.bodies if len(body["messages"]) == 3]
    second = next(body for body in later if "my head hurts" in last_user(body))
    assert (first["model"], first["max_tokens"], first["temperature"]) == ("m", 20, 0.0)
    assert second["messages"][1] == {"role": "assistant", "content": tagged({"messages": second["messages"][:1]})}
    document_lines = [line for line in second["messages"][2]["content"].splitlines() if line.startswith("[")]
    assert len(document_lines) == 2
    assert all(line.startswith(f"[{rank}] About ") for rank, line in enumerate(document_lines, start=1))
    assert all(len(line.split()) == 1 + 4 for line in document_lines), "a document is cut at 4 words"
    records = rows_of(folder)
    assert [(record.question_id, record.turn) for record in records] == [
        (f"t-{name}", turn) for name in ASKED for turn in (1, 2)
    ]
    assert [record.rewrites for record in records if record.turn == 2] == [(words,) for words in RIGHT.values()]
    assert {record.think for record in records} == {"so", "so again"}
    costs = {(record.turn, record.prompt_tokens, record.tokens, record.searches) for record in records}
    assert costs == {(1, 7, 3, 1), (2, 7, 6, 2)}
    assert all(record.seconds > 0 and record.plan and len(record.scores) == len(record.ranking) for record in records)
    cost = row(results, "asked", 2)
    assert (cost["calls"], cost["prompt_tokens"], cost["tokens"], cost["searches"]) == (2, 7.0, 6.0, 2.0)
    assert row(results, "asked", 2)["metrics"]["ndcg@10"] > 0.9


def test_nothing_is_asked_twice_and_what_changes_an_answer_asks_anew(values, endpoint, tmp_path):
    carry_out(values)
    endpoint.bodies.clear()
    carry_out(values)
    llm = values["systems"]["asked"]["llm"]
    carry_out(with_system(values, "renamed", llm={**llm, "concurrency": 2, "deadline": 90.0}), limit=2)
    assert endpoint.bodies == []
    no_cache = {**llm, "cache": None}
    carry_out(with_system(values, llm=no_cache))
    assert endpoint.bodies == []
    changes = (
        {"llm": {**no_cache, "model": "other"}},
        {"llm": {**no_cache, "extra": {"seed": None}}},
        {"llm": no_cache, "turns": 1},
        {"llm": no_cache, "rewriter": {"name": "general"}},
        {"llm": no_cache, "rollout": {**values["rollout"], "max_new_tokens": 21}},
        {"llm": no_cache, "rollout": {**values["rollout"], "document_tokens": 3}},
        {"llm": no_cache, "samples": 1},
        {"llm": no_cache, "samples": 1, "temperature": 0.5},
    )
    systems = {f"changed-{number}": {**values["systems"]["asked"], **change} for number, change in enumerate(changes)}
    carry_out(values, systems=systems)
    assert len(endpoint.bodies) == 5 * (2 * len(changes) - 1), "each asks all of its own"


@pytest.mark.usefixtures("impatient")
def test_an_answer_that_never_comes_is_told_with_its_reason_and_asked_for_again(values, endpoint):
    deeds = {"bleeding gums": (500, {}), "fat in the blood": "garbage", "too much sugar": (429, {})}
    reasons = {"t-gums": "HTTP 500", "t-fat": "no completion: not JSON", "t-sugar": "HTTP 429"}
    endpoint.always = lambda body: next((deed for phrase, deed in deeds.items() if phrase in last_user(body)), None)
    folder, results, failed = carry_out(values)
    assert failed is None
    assert {record.question_id for record in rows_of(folder)} == {"t-head", "t-pills"}
    for turn in (1, 2):
        score = row(results, "asked", turn)
        assert (score["n"], score["of"]) == (2, 5)
    note = "asked in bm25 on lessons: 3 answers never came and are counted nowhere: HTTP 429 (1), HTTP 500 (1), "
    assert note in (folder / "tables.md").read_text()
    lost = [record for record in read_records(folder / "store.jsonl") if record.failure]
    assert {(record.question_id, record.turn, record.failure) for record in lost} == {
        (question, 1, reason) for question, reason in reasons.items()
    }
    endpoint.always = None
    endpoint.bodies.clear()
    folder, results, _ = carry_out(values)
    assert len(endpoint.bodies) == 2 * 3
    assert "never came" not in (folder / "tables.md").read_text()
    assert row(results, "asked", 2)["n"] == 5


def test_a_local_model_is_asked_through_the_same_door(values, endpoint, tiny_policy, tmp_path):
    llm = {"model": str(tiny_policy), "dtype": "float32", "cache": str(tmp_path / "replies.sqlite")}
    folder, _, failed = carry_out(with_system(values, llm=llm, rewriter={"name": "hyde"}))
    assert failed is None
    assert endpoint.bodies == []
    records = rows_of(folder)
    assert len(records) == 10
    assert all(record.prompt_tokens > 7 and record.tokens > 0 for record in records)


def test_a_rewriter_of_two_stages_asks_the_same_model_before(values, endpoint):
    def answer(body):
        prompt = str(body["messages"])
        if "Analyze the question" in prompt:
            parts = {"discriminating_features": ["a"], "reasoning": "b", "confirming_evidence": ["c"]}
            return "who knows" if "bleeding gums" in prompt else json.dumps({**parts, "best_guess": "guessed"})
        assert "Best guess at the answer: guessed" in prompt
        words = next(words for question, words in RIGHT.items() if question in prompt)
        return f"Query 1: {words}\nQuery 2: {words}\nQuery 3: {words}"

    endpoint.answer = answer
    folder, results, failed = carry_out(with_system(values, turns=1, rewriter={"name": "hcqr"}))
    assert failed is None
    assert len(endpoint.bodies) == 5 + 1 + 4, "hypotheses, a repair, queries"
    score = row(results, "asked", 1)
    assert (score["n"], score["of"]) == (4, 5)
    assert score["metrics"]["ndcg@10"] > 0.9
    assert "counted nowhere: not of the form that was asked for (1)" in (folder / "tables.md").read_text()
    assert {record.question_id for record in rows_of(folder)} == {f"t-{name}" for name in ASKED} - {"t-gums"}
    cost = row(results, "asked", 1)
    assert (cost["calls"], cost["prompt_tokens"], cost["tokens"]) == (2, 14.0, 6.0), "hypothesis and queries"
    folder, results, failed = carry_out(with_system(values, turns=1, rewriter={"name": "hcqr"}))
    assert failed is None, "where only questions whose first stage failed are left"
    assert row(results, "asked", 1)["n"] == 4
    folder, results, _ = carry_out(with_system(values, turns=1, rewriter={"name": "hcqr"}, samples=2))
    cost = row(results, "asked", 1)
    assert (cost["calls"], cost["prompt_tokens"], cost["tokens"]) == (1.5, 10.5, 4.5), "samples share a hypothesis"
    assert {(record.sample, record.calls, record.tokens) for record in rows_of(folder)} == {(0, 2, 6), (1, 1, 3)}


def test_a_stop_before_any_search_scores_0_and_the_table_says_so(values, endpoint):
    """One of five questions stops in turn 1, one in turn 2, which keeps its ranking."""

    def answer(body):
        if "from general knowledge" in last_user(body):
            return "<stop/>" if "fat in the blood" in last_user(body) else tagged(body)
        return "<stop/>" if "head" in last_user(body) else tagged(body)

    endpoint.answer = answer
    folder, results, failed = carry_out({**values, "rewriter": {"name": "explore", "stop": "answer"}})
    assert failed is None
    unsearched = [record for record in rows_of(folder) if record.unsearched]
    assert [(record.question_id, record.turn, record.searches) for record in unsearched] == [
        ("t-fat", 1, 0),
        ("t-fat", 2, 0),
    ]
    assert all((record.ranking, record.metrics["ndcg@10"], record.format_ok) == ((), 0, True) for record in unsearched)
    assert [record.searches for record in rows_of(folder) if record.question_id == "t-head"] == [1, 1]
    assert row(results, "asked", 1)["searches"] == 4 / 5
    assert [note["count"] for note in results["notes"] if note["kind"] == "unsearched"] == [0.2, 0.2]
    for body in endpoint.bodies:
        assert not (len(body["messages"]) > 1 and "fat in the blood" in body["messages"][0]["content"])
