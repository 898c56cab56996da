"""Which queries are taken from an evaluation and from a file, and errors for sources without queries."""

import pytest
from querylect.errors import ConfigError, DataError
from querylect.eval.drift.queries import read_system, success_of
from querylect.eval.records import EvalRecord, write_records

from ..jsonl import write_jsonl
from ..raising import refused


def record(question, rewrites, score, system="trained", turn=2, format_ok=True):
    text, metrics = f"what is {question}?", dict.fromkeys(("ndcg@10", "recall@10", "mrr@10"), score)
    return EvalRecord(system, turn, question, text, "", tuple(rewrites), (), metrics, 0, 0, 1, format_ok)


ANSWERS = [
    ("better", "better words", 0.4, 0.9, True),
    ("same", "same words", 0.5, 0.5, True),
    ("lost", "lost words", 0.0, 0.0, True),
    ("worse", "worse words", 0.8, 0.6, True),
    ("broken", "", 0.4, 0.0, False),
    ("outage", "outage words", 0.4, None, True),
    ("raw-outage", "other words", None, 1.0, True),
]
"""Question, rewrite at turn 2, score of the raw question and of the rewrite, format."""


def evaluation(folder, answers=ANSWERS):
    records = []
    for question, rewrite, raw, score, format_ok in answers:
        records += [
            record(question, [f"what is {question}?"], raw, "raw", 0),
            record(question, ["first try"], 1.0, turn=1),
            record(question, [rewrite], score, format_ok=format_ok),
            record(question, ["untrained"], 1.0, "untrained"),
        ]
    write_records(folder / "eval.jsonl", records)
    return folder


@pytest.mark.parametrize(
    ("success", "taken"),
    [
        ("gain", ["better words"]),
        ("keep", ["better words", "same words"]),
        ("0.6", ["better words", "other words", "worse words"]),
        ("all", ["better words", "lost words", "other words", "same words", "worse words"]),
    ],
)
def test_success_decides_which_rewrites_are_taken(tmp_path, success, taken):
    system_queries = read_system("bm25", evaluation(tmp_path), success_of(success))
    assert sorted(query.text for query in system_queries.queries) == taken
    assert (system_queries.answers, system_queries.wrong_format, system_queries.successful) == (7, 1, len(taken))
    assert system_queries.failed_searches == (2 if success in ("gain", "keep") else 1)
    assert system_queries.said == "trained, turn 2"
    assert {query.question for query in system_queries.queries} <= {f"what is {answer[0]}?" for answer in ANSWERS}


def test_a_system_and_a_turn_can_be_chosen(tmp_path):
    run = evaluation(tmp_path)
    first = read_system("a", run / "eval.jsonl", success_of("all"), turn=1)
    assert {query.text for query in first.queries} == {"first try"}
    untrained = read_system("a", run, success_of("all"), system="untrained")
    assert {query.text for query in untrained.queries} == {"untrained"}


GAIN, HARD = success_of("gain"), {"success": success_of("1.0"), "answers": ANSWERS[:2]}


@pytest.mark.parametrize(
    ("arguments", "error", "facts"),
    [
        ({"system": "best"}, DataError, ["'best'", "raw, trained, untrained"]),
        ({"turn": 3}, DataError, [3, "1, 2"]),
        (HARD, DataError, ["2 answers", "0 without a score", "2 scored"]),
        ({"system": "raw", "success": GAIN}, ConfigError, ["--success gain", "raw"]),
    ],
)
def test_an_evaluation_without_what_is_asked_for_is_named(tmp_path, arguments, error, facts):
    run = evaluation(tmp_path, arguments.pop("answers", ANSWERS))
    with refused(error, *facts):
        read_system("bm25", run, **{"success": success_of("all"), **arguments})


def test_a_cell_finds_its_raw_questions_beside_it(tmp_path):
    """A file of one system alone, whose name has a dot, and the raw questions of its environment and of another."""
    records = [record(f"q{n}", [f"words {n}"], 0.5, "qwen.v2") for n in range(4)]
    write_records(tmp_path / "hpo.bm25.qwen.v2.jsonl", records)
    for retriever, step in (("bm25", 0.2), ("dense", 0.0)):
        raw = [record(f"q{n}", ["q"], step * n, "raw", 0) for n in range(4)]
        write_records(tmp_path / f"hpo.{retriever}.raw.jsonl", raw)
    system_queries = read_system("bm25", tmp_path / "hpo.bm25.qwen.v2.jsonl", success_of("gain"))
    assert [query.text for query in system_queries.queries] == ["words 0", "words 1", "words 2"]
    assert system_queries.said == "qwen.v2, turn 2"


def test_of_several_systems_none_is_guessed(tmp_path):
    write_records(tmp_path / "eval.jsonl", [record("q", ["words"], 1.0, system) for system in ("raw", "hyde", "chr")])
    with refused(DataError, "raw, hyde, chr", "--system"):
        read_system("bm25", tmp_path, success_of("all"))


def test_gain_needs_the_scores_of_the_raw_questions(tmp_path):
    write_records(tmp_path / "eval.jsonl", [record("q", ["words"], 1.0)])
    with refused(DataError, "--success gain"):
        read_system("bm25", tmp_path, success_of("gain"))


@pytest.mark.parametrize("name", ["better", "0", "1.5", "nan", ""])
def test_an_unknown_definition_of_success_is_named(name):
    with refused(ConfigError, repr(name), "gain", "keep", "all"):
        success_of(name)


def test_files_of_queries_are_taken_whole(tmp_path):
    text = tmp_path / "queries.txt"
    text.write_text("liver disease\n\n  what ails me? \nliver disease\n")
    rows = [
        "a string",
        {"text": "a text", "_id": "1"},
        {"query": "a query", "question_id": 7},
        {"question": "why?", "rewrites": ["one", "two"], "think": ""},
    ]
    lines = write_jsonl(tmp_path / "queries.jsonl", *rows)
    success = success_of("gain")
    taken = [query.text for query in read_system("t", text, success).queries]
    assert taken == ["liver disease", "liver disease", "what ails me?"]
    file_queries = read_system("l", lines, success)
    assert {query.text for query in file_queries.queries} == {"a string", "a text", "a query", "one", "two"}
    assert file_queries.questions == 4, "both rewrites of one question are one"
    assert file_queries.answers is None


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("empty.txt", "\n \n", []),
        ("none.jsonl", "", []),
        ("number.jsonl", '"fine"\n7\n', ["line 2", 7]),
        ("keys.jsonl", '{"title": "x"}\n', ["line 1", '{"title": "x"}']),
        ("torn.jsonl", '{"query": "x"\n', ["line 1"]),
        ("blank.jsonl", '{"query": "x"}\n{"query": " "}\n', ["line 2"]),
        ("half.jsonl", '{"query": "\\ud800"}\n', ["line 1", "'query'", "Unicode"]),
    ],
)
def test_a_file_that_holds_no_queries_is_named(tmp_path, name, content, facts):
    (tmp_path / name).write_text(content)
    with refused(DataError, tmp_path / name, *facts):
        read_system("bm25", tmp_path / name, success_of("all"))
