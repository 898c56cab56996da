"""Full RAG over a real environment and a real chat endpoint: documents, scores, what is missing, and a kill."""

import json

import pytest
import yaml
from querylect.configs.schema import RunConfig
from querylect.envs.plan import SearchPlan
from querylect.errors import ConfigError, DataError, EngineUnavailableError
from querylect.eval.answers import answer_questions
from querylect.eval.records import NO_RAG, read_records
from querylect.eval.results import read_results
from querylect.eval.table import Arm

from ..chat_server import ChatServer, killed_while_asking, last_user, serving
from ..command import end
from ..raising import refused

pytestmark = pytest.mark.model

GOLD = {"q-head": ["triptan"], "q-sugar": ["insulin", "the insulin"], "q-hidden": ["nothing"], "q-other": ["x"]}
QUESTIONS = {"q-head": "what helps when my head hurts", "q-sugar": "too much sugar in the blood", "q-hidden": "hidden"}


def knows(body):
    """Answers with the first medicine that is named in the prompt's documents."""
    return next((name.title() + "." for name in ("triptan", "insulin") if f"About {name}" in last_user(body)), "a pill")


def row(system, turn, question, query, ranking=(), score=0.5, **more):
    plan = SearchPlan.of(query, k=2).model_dump(mode="json") if query else None
    return {
        "system": system,
        "turn": turn,
        "question_id": question,
        "question": QUESTIONS[question],
        "think": "",
        "rewrites": [query] if query else [],
        "ranking": list(ranking),
        "tokens": 0,
        "prompt_tokens": 0,
        "searches": 1,
        "metrics": {"ndcg@10": score},
        "format_ok": query is not None,
        "plan": plan,
        **more,
    }


ROWS = [
    *(row("raw", 0, question, text) for question, text in QUESTIONS.items()),
    *(row("trained", 1, question, "scurvy") for question in QUESTIONS),
    row("trained", 2, "q-head", "migraine", ["triptan"]),
    row("trained", 2, "q-sugar", "insulin glucose", ["statin"]),
    row("trained", 2, "q-hidden", None),
    row("trained", 2, "q-head", "statin", sample=1),
]


def lines(path, rows):
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows), encoding="utf-8")
    return path


@pytest.fixture
def server(run_app):
    server = ChatServer(knows)
    with serving(run_app, server) as server.url:
        yield server


@pytest.fixture
def config(url, small_environment, server, tmp_path):
    gold = lines(tmp_path / "gold.jsonl", [{"_id": name, "answers": answers} for name, answers in GOLD.items()])

    def make(**answers):
        reader = {"model": "org/m", "base_url": server.url, "cache": None, **answers.pop("reader", {})}
        return RunConfig.model_validate(
            {
                "env": small_environment.model_dump(mode="json"),
                "client": {"urls": [url]},
                "eval": {"permutations": 99, "bootstrap": 50},
                "answers": {"gold": str(gold), "top": [1, 2], "reader": reader, **answers},
            }
        )

    return make


@pytest.fixture
def records(tmp_path):
    (tmp_path / "run").mkdir()
    return lines(tmp_path / "run" / "eval.jsonl", ROWS)


def read_answers(page):
    """The answers by system, turn, number of documents and question."""
    records = read_records(page.parent / "eval.jsonl")
    return {(record.system, record.turn, record.top, record.question_id): record for record in records}


def score(page, system, turn, top=1):
    return read_results(page.parent).score(Arm(system, turn), environment=f"top {top}")


def test_every_system_reads_what_it_found(config, records, server):
    page = answer_questions(config(), records)
    assert page == records.parent / "answers" / "m" / "tables.md"
    answers = read_answers(page)
    arms = {(NO_RAG, 0), ("raw", 0), ("trained", 2)}
    assert {key[:3] for key in answers} == {(*arm, top) for arm in arms for top in (1, 2)}
    assert len(answers) == 3 * 2 * 3
    best = answers["trained", 2, 2, "q-head"]
    assert best.documents[0] == "triptan"
    assert (best.answer, best.metrics) == ("Triptan.", {"f1": 1.0, "cover_em": 1.0, "em": 1.0, "ndcg@10": 0.5})
    assert answers[NO_RAG, 0, 1, "q-head"].answer == "a pill"
    assert answers["trained", 2, 1, "q-hidden"].documents == (), "a wrong format reads no document"
    assert all(len(record.documents) <= record.top for record in answers.values())
    trained, alone = score(page, "trained", 2), score(page, NO_RAG, 0)
    assert (trained.n, trained.metrics["cover_em"], alone.metrics["cover_em"]) == (3, pytest.approx(2 / 3), 0)
    results = read_results(page.parent)
    assert '"model": "org/m"' in results.facts["reader"]
    assert [note.text for note in results.notes if note.kind == "answers"] == [
        "1 questions were read without documents, as nothing was searched (wrong format, or stopped)."
    ]
    assert {(row.system, row.environment, row.against) for row in results.comparisons} == {
        (system, f"top {top}", baseline) for system, baseline in (("raw", NO_RAG), ("trained", "raw")) for top in (1, 2)
    }
    assert "| trained, turn 2 | top 1 | 0.667 (" in page.read_text()
    assert "| system | environment | F1 | cover EM | EM | nDCG@10 | n |" in page.read_text()
    prompts = {last_user(body) for body in server.bodies}
    assert len(prompts) == len(server.bodies), "equal prompts are asked once"


@pytest.mark.slow
def test_killed_and_started_again(config, records, server, tmp_path):
    """Replies from before the kill are cached: none is requested again."""
    settings = config(reader={"cache": str(tmp_path / "cache"), "concurrency": 1}).model_dump(mode="json")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings), encoding="utf-8")
    command = ["answers", str(records), "--config", str(path), "-o", str(tmp_path / "o")]
    first = killed_while_asking(server, 3, tmp_path, *command)
    request_count = len(server.bodies)
    assert end(*command) == 0
    again = [last_user(body) for body in server.bodies[request_count:]]
    assert not set(first) & set(again)
    assert all(record.answer is not None for record in read_answers(tmp_path / "o" / "tables.md").values())


def test_multiple_choice(config, records, server, tmp_path):
    options = {"A": "a pill", "B": "insulin", "C": "triptan"}
    lines(tmp_path / "gold.jsonl", [{"_id": "q-head", "options": options, "answer": "C"}])
    server.answer = lambda body: "The answer is C." if "About triptan" in last_user(body) else "perhaps"
    page = answer_questions(config(), records)
    assert score(page, "trained", 2).metrics == {"accuracy": 1, "ndcg@10": 0.5}
    assert score(page, NO_RAG, 0).metrics == {"accuracy": 0, "ndcg@10": None}
    answers = read_answers(page)
    assert (answers["trained", 2, 1, "q-head"].chosen, answers[NO_RAG, 0, 1, "q-head"].chosen) == ("C", "")
    assert any("name no option" in note.text for note in read_results(page.parent).notes)
    assert all("A. a pill\nB. insulin\nC. triptan" in last_user(body) for body in server.bodies)


def test_what_ends_a_run(config, records, server, tmp_path):
    with refused(DataError, 3, "'q-head'", "'other'"):
        answer_questions(config(gold=str(lines(tmp_path / "g", [{"_id": "other", "answer": "x"}]))), records)
    server.always = lambda body: (400, {})
    with refused(EngineUnavailableError):
        answer_questions(config(), records)
    assert not (records.parent / "answers" / "m" / "results.json").exists()


def test_missing_answers_are_left_out_and_asked_again(config, records, server, tmp_path):
    settings = config(reader={"cache": str(tmp_path / "cache")})
    server.always = lambda body: (400, {}) if "About insulin" in last_user(body) else None
    page = answer_questions(settings, records)
    lost = [record for record in read_answers(page).values() if record.answer is None]
    assert {record.question_id for record in lost} == {"q-sugar"}
    assert all(record.failure == "no reply" and record.metrics["f1"] is None for record in lost)
    trained = score(page, "trained", 2)
    assert (trained.n, trained.of, trained.metrics["cover_em"]) == (2, 3, 0.5)
    server.always, request_count = None, len(server.bodies)
    answer_questions(settings, records)
    assert all(record.answer for record in read_answers(page).values())
    again = [last_user(body) for body in server.bodies[request_count:]]
    assert again
    assert all("About insulin" in prompt for prompt in again)
    request_count = len(server.bodies)
    lines(tmp_path / "gold.jsonl", [{"_id": "q-head", "answers": ["a pill"]}])
    with refused(ConfigError, "results.json", "questions"):
        answer_questions(settings, records)
    answer_questions(settings, records, overwrite=True)
    assert len(server.bodies) == request_count, "other right answers are scored without a call"
    assert read_answers(page)[NO_RAG, 0, 1, "q-head"].metrics["em"] == 1.0


def test_without_a_search_there_are_no_documents_and_the_conversation_is_read(config, tmp_path, server):
    history = [{"role": "user", "text": "What is triptan?"}, {"role": "assistant", "text": "A medicine."}]
    rows = [
        row("raw", 0, "q-head", "migraine", history=history),
        row("trained", 1, "q-head", None, score=0.0, searches=0, format_ok=True, history=history),
    ]
    page = answer_questions(config(top=[1]), lines(tmp_path / "eval.jsonl", rows), tmp_path / "out")
    answers = {key[0]: record for key, record in read_answers(page).items()}
    assert (answers["trained"].documents, answers["trained"].answer) == ((), "a pill")
    assert answers["trained"].metrics["ndcg@10"] == 0.0
    assert answers["raw"].documents == ("triptan",)
    texts = [note.text for note in read_results(page.parent).notes]
    assert "1 questions were read without documents, as nothing was searched (wrong format, or stopped)." in texts
    assert len(server.bodies) == 2, "the reader alone has the same prompt"
    expected = f"User: What is triptan?\nAssistant: A medicine.\n\nQuestion: {QUESTIONS['q-head']}"
    assert all(expected in last_user(body) for body in server.bodies)
