"""Plans carried out with real models, indexes and services: killed, changed, cut, and with parts that fail."""

import json
import shutil
from csv import DictReader
from io import StringIO
from pathlib import Path

import pytest
import pytrec_eval
from querylect.configs.evaluation import BEST_FREE, SpecConfig
from querylect.configs.load import write_yaml
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import ConfigError, IncompleteError
from querylect.eval import environments as under_test
from querylect.eval import systems as asked
from querylect.eval.spec import evaluate_spec
from querylect.rollouts.engines import open as engines

from ..evaluated import carry_out, plan_values, records_of
from ..forked import Forked
from ..lessons import TEXTS
from ..raising import refused
from ..used import add_id
from ..waiting import until

pytestmark = pytest.mark.model

NAMES = ("first_titles", "rm3", "weighted_words")
ROLLOUT = {"max_new_tokens": 6, "documents": 2, "document_tokens": 8}


@pytest.fixture
def values(lessons, lesson_url, speaking, tmp_path, monkeypatch):
    """A plan of one served environment and one prompted system of two turns, with two questions in a batch."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(asked, "ANSWERED_AT_ONCE", 2)
    plan = plan_values(lessons, lesson_url, speaking, tmp_path)
    systems = {"prompted": {"turns": 2}}
    return {**plan, "training_free": [], "systems": systems}


@pytest.fixture
def engine_calls(monkeypatch):
    """Every generation and every model load of this process."""
    calls = {"prompts": 0, "loads": 0}
    load = engines.load_engine

    def counting(*settings):
        engine = load(*settings)
        calls["loads"] += 1
        generate = engine.generate

        def generate_and_count(prompts, n, sampling):
            calls["prompts"] += len(prompts)
            return generate(prompts, n, sampling)

        engine.generate = generate_and_count
        return engine

    monkeypatch.setattr(engines, "load_engine", counting)
    return calls


def score(results, system, turn, environment="bm25", dataset="", part=""):
    rows = [row for row in results["scores"] if (row["system"], row["turn"], row["part"]) == (system, turn, part)]
    return next(row for row in rows if row["environment"] == environment and row["dataset"].startswith(dataset))


def measured_by_pytrec(trec, name, metrics, **options):
    """The judgements of a folder, and pytrec_eval's metrics of a run in it by question."""
    with (trec / "qrels.txt").open() as judged, (trec / f"{name}.run").open() as ranked:
        qrels, run = pytrec_eval.parse_qrel(judged), pytrec_eval.parse_run(ranked)
    return qrels, pytrec_eval.RelevanceEvaluator(qrels, metrics, **options).evaluate(run)


def test_a_plan_writes_all_its_files_and_asks_nothing_when_given_again(values, engine_calls):
    folder, results, incomplete = carry_out(values)
    assert incomplete is None
    assert engine_calls == {"prompts": 10, "loads": 1}
    assert sorted(path.name for path in folder.iterdir()) == [
        "comparisons.csv", "eval.jsonl", "plan.yaml", "report.html", "results.json", "scores.csv", "store.jsonl",
        "tables.md", "tables.tex", "trec",
    ]  # fmt: skip
    rows = records_of(folder, "prompted")
    assert [(row.question_id, row.turn) for row in rows[:3]] == [("t-head", 1), ("t-head", 2), ("t-sugar", 1)]
    assert all((row.plan is not None) == row.format_ok for row in rows)
    assert all(row.seconds > 0 for row in rows)
    assert len(rows) == 10
    assert all(len(row.scores) == len(row.ranking) for row in rows)
    for name, system, turn in (("bm25.raw", "raw", 0), ("bm25.prompted-turn2", "prompted", 2)):
        qrels, per_question = measured_by_pytrec(folder / "trec" / "lessons", name, {"ndcg_cut.10"})
        mean = sum(measures["ndcg_cut_10"] for measures in per_question.values()) / len(qrels)
        assert mean == pytest.approx(score(results, system, turn)["metrics"]["ndcg@10"], abs=1e-9)
    original = (folder / "eval.jsonl").read_bytes()
    again, repeated, _ = carry_out(values)
    assert engine_calls == {"prompts": 10, "loads": 1}
    assert (again / "eval.jsonl").read_bytes() == original
    assert repeated["scores"] == results["scores"]


def test_metrics_by_name_are_those_of_pytrec_eval_on_the_exported_files(values, tmp_path):
    """With grade 2 as the least relevant one, a kept grade 0, and a question that finds nothing."""
    corpus = [Document(name, "", text) for name, text in TEXTS.items()]
    questions = [Question("q1", "headache migraine"), Question("q2", "blood"), Question("q3", "xyzzy")]
    qrels = {"q1": {"aspirin": 1, "triptan": 2, "statin": 0}, "q2": {"statin": 2, "insulin": 0}, "q3": {"citrus": 3}}
    graded = Dataset("graded", corpus, {"test": Split(questions, qrels)}, relevance_level=2)
    save_beir(graded, tmp_path / "graded")
    theirs = {"ndcg@10": "ndcg_cut.10", "map": "map", "map@1": "map_cut.1", "p@2": "P.2", "r-precision": "Rprec"}
    theirs |= {"success@1": "success.1", "mrr": "recip_rank", "recall@1": "recall.1"}
    folder, results, _ = carry_out(
        values,
        datasets={"graded": {"path": str(tmp_path / "graded")}},
        environments={"bm25": {}},
        systems={},
        metrics=[*theirs, "judged@10"],
    )
    trec = folder / "trec" / "graded"
    exported, per_question = measured_by_pytrec(trec, "bm25.raw", set(theirs.values()), relevance_level=2)
    assert exported == qrels
    assert per_question.keys() == qrels.keys(), "trec_eval averages over the questions of the run, without -c too"
    measured = score(results, "raw", 0)["metrics"]
    for name, of_library in theirs.items():
        mean = sum(values[of_library.replace(".", "_")] for values in per_question.values()) / len(per_question)
        assert measured[name] == pytest.approx(mean, abs=1e-9), name
    assert measured["judged@10"] == pytest.approx((1 + 1 + 0) / 3)
    assert json.loads((trec / "export.json").read_text())["relevance_level"] == 2
    page = (folder / "tables.md").read_text()
    assert "Binary metrics of graded: count grades of 2 or more" in page


def test_a_changed_plan_asks_only_what_changed(values, engine_calls):
    carry_out(values)
    systems = {**values["systems"], "other": {"rollout": {**ROLLOUT, "documents": 1}, "turns": 2}}
    _, results, _ = carry_out(values, systems=systems)
    assert engine_calls == {"prompts": 20, "loads": 2}
    carry_out(values, systems={"renamed": {"turns": 2}}, permutations=60)
    assert engine_calls["prompts"] == 20
    earlier = Path(values["output"]) / values["name"] / "results.json"
    with refused(ConfigError, earlier, "questions.lessons: ", "--overwrite"):
        carry_out(values, limit=2)
    folder, results_of_two, _ = carry_out(values, limit=2, overwrite=True)
    assert engine_calls["prompts"] == 20
    assert results_of_two["samples"] == {"lessons": {"size": 2, "of": 5, "seed": 0}}
    assert "Sample of lessons: 2 of 5 questions, drawn with seed 0" in (folder / "tables.md").read_text()
    assert "lessons with bm25 (lessons: 2 of 5, drawn with seed 0)" in (folder / "tables.tex").read_text()
    assert len(records_of(folder, "prompted")) == 4
    prompt = Path(values["rewriter"]["prompt"])
    prompt.write_text(prompt.read_text().replace("Name the medicine", "Say the medicine"))
    carry_out(values, overwrite=True)
    assert engine_calls["prompts"] == 30
    assert score(results, "other", 2)["n"] == 5


def test_samples_are_seeded_and_counted_by_their_mean(values, engine_calls, monkeypatch):
    systems = {"sampled": {"samples": 3, "temperature": 0.9, "turns": 2}}
    folder, results, _ = carry_out(values, systems=systems)
    assert engine_calls["prompts"] == 5 + 15
    rows = records_of(folder, "sampled")
    assert {row.sample for row in rows} == {0, 1, 2}
    last = [row.metrics["ndcg@10"] for row in rows if row.turn == 2]
    assert score(results, "sampled", 2)["metrics"]["ndcg@10"] == pytest.approx(sum(last) / 15)
    assert len({row.rewrites for row in rows if row.question_id == "t-head" and row.turn == 1}) > 1
    monkeypatch.setattr(asked, "ANSWERED_AT_ONCE", 1)
    again, _, _ = carry_out(values, name="again", systems=systems)
    repeated = records_of(again, "sampled")
    assert [row.rewrites for row in repeated] == [row.rewrites for row in rows]


def test_a_plan_has_the_baselines_and_the_best_of_them_as_rows(values):
    folder, table, _ = carry_out(values, training_free=list(NAMES), systems={"prompted": {}})
    rows = {row["system"]: row for row in table["scores"]}
    assert list(rows) == ["raw", *NAMES, BEST_FREE, "prompted"]
    assert [rows[name]["calls"] for name in (*NAMES, "prompted")] == [0, 0, 0, 1]
    against = {(row["system"], row["against"]) for row in table["comparisons"]}
    assert against == {*((name, "raw") for name in (*NAMES, "prompted")), ("prompted", BEST_FREE)}
    (best,) = [note["text"] for note in table["notes"] if note["kind"] == "best_free"]
    assert rows[BEST_FREE]["metrics"] == rows[best.split()[3]]["metrics"]
    assert sum("no validation split" in note["text"] for note in table["notes"]) == 3
    records = records_of(folder, "prompted")
    shares = rows["prompted"]
    assert shares["cut"] == sum(bool(record.cut) for record in records) / 5
    assert shares["format_ok"] == sum(record.format_ok for record in records) / 5
    assert rows["raw"]["repeats"] is None
    for text in ("tables.md", "report.html"):
        assert "cut at limit" in (folder / text).read_text()
    lines = list(DictReader(StringIO((folder / "scores.csv").read_text())))
    assert list(dict.fromkeys(line["system"] for line in lines)) == list(rows)
    figures = next(line for line in lines if line["system"] == "prompted")
    assert float(figures["with_fall_back"]) == pytest.approx(shares["with_fall_back"])
    assert float(figures["cut"]) == shares["cut"]


def test_what_fails_is_told_and_the_others_go_on(values, engine_calls, tmp_path):
    systems = {
        "gone": {"policy": {"model": str(tmp_path / "gone")}},
        "run": {"run": str(tmp_path)},
        **values["systems"],
    }
    environments = {
        **values["environments"],
        "dead": {"env": {"retriever": f"python:{tmp_path / 'gone.py'}"}},
    }
    folder, results, incomplete = carry_out(values, systems=systems, environments=environments)
    failed = {(row["system"], row["environment"]): row["error"] for row in results["failed"]}
    assert failed.keys() == {
        *((name, "dead") for name in ("raw", "gone", "run", "prompted")), ("gone", "bm25"), ("run", "bm25"),
    }  # fmt: skip
    assert (failed["gone", "bm25"], failed["run", "bm25"]) == ("ModelError", "ConfigError")
    assert isinstance(incomplete, IncompleteError)
    assert "6 of 8" in str(incomplete)
    assert score(results, "prompted", 2)["n"] == 5
    assert "gone in bm25 on lessons failed: ModelError" in (folder / "tables.md").read_text()


def test_a_service_that_dies_leaves_none_and_the_next_command_asks_the_rest(values, engine_calls, monkeypatch):
    opened = under_test.open_unserved

    class Dying:
        """Answers the first `answered` requests."""

        answered = 0

        def __init__(self, client):
            self.client, self.left = client, self.answered

        def __getattr__(self, name):
            return getattr(self.client, name)

        last_failure = "it died"

        def step(self, steps, **options):
            self.left -= 1
            return self.client.step(steps, **options) if self.left >= 0 else [None] * len(steps)

    class Opened:
        def __init__(self, *arguments):
            self.context = opened(*arguments)

        def __enter__(self):
            return Dying(self.context.__enter__())

        def __exit__(self, *error):
            return self.context.__exit__(*error)

    monkeypatch.setattr(under_test, "open_unserved", Opened)
    _, results, incomplete = carry_out(values, systems={})
    assert [row["error"] for row in results["failed"]] == ["EnvironmentUnavailableError"]
    assert "none of 2 questions" in results["failed"][0]["message"]
    assert incomplete is not None
    Dying.answered = 1
    _, results, _ = carry_out(values, systems={})
    assert "none of 1 questions" in results["failed"][0]["message"], "two batches in a row without a score"
    folder, results, incomplete = carry_out(values, systems={})
    partial = score(results, "raw", 0)
    assert (partial["n"], partial["of"]) == (4, 5)
    assert results["failed"] == [], "a question without a score is asked again, and fails no cell"
    monkeypatch.setattr(under_test, "open_unserved", opened)
    _, results, incomplete = carry_out(values, systems={})
    assert incomplete is None
    assert score(results, "raw", 0)["n"] == 5
    assert all(row.metrics["ndcg@10"] is not None for row in records_of(folder, "raw"))


def test_an_index_that_is_missing_is_built_and_parts_are_averaged(values, tmp_path):
    corpus = [Document(f"d{number}", "", f"word{number} text") for number in range(4)]
    questions = [Question(f"{part}/{number}", f"word{number}") for part in ("a", "b") for number in range(2)]
    qrels = {question.id: {f"d{question.id[-1]}": 1} for question in questions}
    save_beir(Dataset("parted", corpus, {"test": Split(questions, qrels)}), tmp_path / "parted")
    datasets = {**values["datasets"], "parted": {"path": str(tmp_path / "parted")}}
    environments = {"bm25": {}, "slow": {"env": {"engine": "rank_bm25"}, "datasets": ["parted"]}}
    everywhere = {"datasets": datasets, "environments": environments, "systems": {}, "parts": ["parted"]}
    folder, results, incomplete = carry_out(values, **everywhere)
    assert incomplete is None
    built = sorted(path.name.rsplit("-", 1)[0] for path in (tmp_path / "indexes").iterdir() if path.is_dir())
    assert built == ["lessons", "parted", "parted-bm25"]
    tables = [(row["dataset"], row["part"]) for row in results["scores"] if row["environment"] == "bm25"]
    assert tables == [("lessons", ""), ("parted", "a"), ("parted", "b"), ("parted", ""), ("mean", "")]
    names = ("lessons", "parted", "mean")
    first, parts, every = (score(results, "raw", 0, "bm25", name)["metrics"]["ndcg@10"] for name in names)
    assert parts == 1.0
    assert every == pytest.approx((first + parts) / 2)
    assert (folder / "trec" / "parted" / "slow.raw.run").is_file()
    _, results, _ = carry_out(values, **everywhere, limit=1, overwrite=True)
    assert [row["of"] for row in results["scores"] if row["environment"] == "bm25"] == [1, 1, 1, 2, 3]


@pytest.mark.parametrize(
    ("trained", "count"),
    [
        (Question("other", "PLEASE:  my head hurts"), 1),
        (Question("t-head", "what the question of that id is in another collection"), 0),
    ],
)
def test_questions_that_a_run_was_trained_on_are_left_out_for_all(values, lessons, speaking, tmp_path, trained, count):
    """By their words. Ids of two collections may be equal by chance."""
    school = {"path": str(tmp_path / "school")}
    trained_on = Split([trained], {trained.id: {"aspirin": 1}})
    save_beir(Dataset("school", [Document("aspirin", "", "headache")], {"train": trained_on}), tmp_path / "school")
    run = tmp_path / "run"
    run.mkdir()
    env = {**lessons.model_dump(), "dataset": school}
    settings = {"env": env, "policy": values["policy"], "rewriter": values["rewriter"]}
    (run / "config.yaml").write_text(write_yaml({**settings, "rollout": {**ROLLOUT, "branching": [1, 1]}}))
    add_id(run)
    shutil.copytree(speaking, run / "final")
    systems = {"trained": {"run": str(run)}, "before": {"run": str(run), "checkpoint": "untrained"}}
    _, results, _ = carry_out(values, systems=systems)
    assert results["failed"] == []
    assert score(results, "before", 1)["n"] == score(results, "trained", 1)["n"] == 5 - count
    assert (
        any(f"{count} of 5 questions of lessons are left out for all systems" in n["text"] for n in results["notes"])
        == count
    )


@pytest.mark.slow
def test_a_killed_evaluation_goes_on_and_asks_nothing_twice(values, tmp_path):
    """`kill -9` in the middle of a process; the service is a child of the killed process and dies with it."""
    questions = [Question(f"q{number}", f"how much blood {number}") for number in range(20)]
    qrels = {question.id: {"statin": 1} for question in questions}
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    save_beir(Dataset("many", corpus, {"test": Split(questions, qrels)}), tmp_path / "many")
    plan = {
        **values,
        "datasets": {"many": {"path": str(tmp_path / "many")}},
        "environments": {"bm25": {}},
        "systems": {"prompted": {"turns": 4}},
    }
    path = tmp_path / "plan.yaml"
    path.write_text(write_yaml(plan))
    journal = Path(plan["output"]) / "plan" / "store.jsonl"

    def lines():
        return journal.read_bytes().splitlines(keepends=True) if journal.exists() else []

    def prompted(lines):
        return [record for line in lines if (record := json.loads(line))["system"] == "prompted"]

    code = "from querylect import cli; from querylect.eval import systems; systems.ANSWERED_AT_ONCE = 1; cli.main()"
    process = Forked(["eval", str(path)], tmp_path / "stdout", tmp_path / "stderr", code=code)
    try:
        until(lambda: process.poll() is not None or len(lines()) >= 20 + 8)
    finally:
        process.kill()
        process.wait(60)
    complete = [line for line in lines() if line.endswith(b"\n")]
    assert 8 <= len(prompted(complete)) < 80, (tmp_path / "stderr").read_text()
    journal.write_bytes(b"".join(complete)[:-20])  # as a kill in the middle of a write leaves it
    before = prompted(complete[:-1])
    _, failed = evaluate_spec(SpecConfig.model_validate(plan))
    assert failed is None
    after = prompted((journal.parent / "eval.jsonl").read_bytes().splitlines())
    assert len(after) == 80
    whole = [record for record in before if sum(record["question_id"] == other["question_id"] for other in before) == 4]
    assert whole
    assert all(record in after for record in whole), "finished answers are not asked again"
    results = json.loads((journal.parent / "results.json").read_text())
    assert score(results, "prompted", 4)["n"] == 20
