"""Training-free baselines in evaluations: tuned on validation alone, rows of every table, shares beside scores."""

import json
import shutil
from csv import DictReader
from dataclasses import replace
from io import StringIO

import pytest
from querylect.configs.evaluation import BEST_FREE, SpecConfig
from querylect.configs.schema import RunConfig
from querylect.configs.spec_files import load_spec
from querylect.configs.yaml12 import write_yaml
from querylect.data.types import Question
from querylect.envs.schemas import HitBody, StepResult
from querylect.errors import EnvironmentUnavailableError
from querylect.eval.frame import frame_of
from querylect.eval.records import EvalRecord, read_records
from querylect.eval.results import Results
from querylect.eval.run import hyde_config, systems_of_run
from querylect.eval.run_baselines import with_run_baselines
from querylect.eval.run_table import table_spec, verdict
from querylect.eval.spec_tables import add_best_free
from querylect.eval.table import tabulate
from querylect.eval.training_free import GRIDS, Tuned, Tuning, best_by_validation, tune
from querylect.rollouts.checkpoints import find_warm_start
from querylect.rollouts.engines import open as engines
from safetensors.torch import load_file, save_file

from .. import evaluated
from ..evaluated import environment_info, evaluate
from ..lessons import change
from ..raising import refused
from ..used import add_id

pytestmark = pytest.mark.model

NAMES = ("first_titles", "rm3", "weighted_words")
METRICS = ("ndcg@10", "recall@10", "mrr@10")
VALIDATION = [Question(f"v{number}", f"validation text {number}") for number in range(6)]
TEST = [Question("t0", "test text zero"), Question("t1", "Validation text 5!")]


class Client:
    """Refuses every question but those of the validation split; `worth` gives the score of a plan."""

    def __init__(self, worth, splits=None):
        self.worth, self.splits = worth, {"validation": 6, "test": 2} if splits is None else splits
        self.steps, self.question_ids = 0, set()

    def info(self):
        card = {"name": "bm25", "kind": "bm25", "frequent_terms": ["common"]}
        return environment_info(retriever=card, splits=self.splits)

    def questions(self, split):
        assert split == "validation", "no other split is asked for"
        return VALIDATION

    def step(self, steps, with_text=False, metrics=()):
        assert all(step.question_id.startswith("v") for step in steps), "a test question was searched"
        self.steps += len(steps)
        self.question_ids |= {step.question_id for step in steps}
        return [self.answer(step) for step in steps]

    def answer(self, step):
        value = self.worth(step.plan.probes[0].terms)
        if value is None:
            return None
        hits = [HitBody(id="d", score=1.0, title="Title", text="some words")]
        return StepResult(question_id=step.question_id, ranking=hits, reward=value, metrics={"ndcg@10": value})


def tuning(**changes):
    return replace(Tuning("test", 300, METRICS, 0), **changes)


def test_weights_are_chosen_on_validation_questions_and_never_on_evaluated_ones():
    client = Client(lambda terms: 0.8 if len(terms) == 2 and terms[1].weight == 0.3 else 0.5)
    titles, words = (tune(name, client, TEST, tuning()) for name in ("first_titles", "weighted_words"))
    assert (titles.weights, words.weights) == ({"n": 1, "weight": 0.3}, {"n": 1, "weight": 0.3})
    assert (titles.questions, titles.score, titles.raw, titles.tried) == (5, pytest.approx(0.8), pytest.approx(0.5), 15)
    assert client.question_ids == {"v0", "v1", "v2", "v3", "v4"}, "v5 says what a test question says"
    assert "on 5 validation questions: 0.800 there (raw 0.500)" in titles.sentence


def test_of_equal_weights_the_mildest_is_taken():
    chosen = [tune(name, Client(lambda terms: 0.5), TEST, tuning()) for name in NAMES]
    assert [choice.weights for choice in chosen] == [GRIDS[name][0] for name in NAMES]


@pytest.mark.parametrize(
    ("splits", "changes", "reason"),
    [
        ({"test": 2}, {}, "no validation split"),
        (None, {"split": "validation"}, "the validation questions are what is evaluated"),
        (None, {"questions": 0}, "no questions were to be used"),
    ],
)
def test_without_validation_questions_the_defaults_are_used_and_told(splits, changes, reason):
    client = Client(lambda terms: 0.5, splits)
    chosen = [tune(name, client, TEST, tuning(**changes)) for name in NAMES]
    assert client.steps == 0
    assert chosen[1].weights == {"fb_docs": 10, "fb_terms": 10, "original_query_weight": 0.5}
    assert all(reason in choice.sentence and choice.score is None for choice in chosen)
    assert best_by_validation(chosen) is None


def test_a_question_without_a_score_under_some_weights_counts_under_none():
    class Flaky(Client):
        def answer(self, step):
            lost = step.question_id == "v0" and len(step.plan.probes[0].terms) > 1
            return None if lost else super().answer(step)

    chosen = tune("weighted_words", Flaky(lambda terms: 0.5), [], tuning())
    assert chosen.questions == 5
    with refused(EnvironmentUnavailableError, 6, "training_free"):
        tune("weighted_words", Client(lambda terms: None), [], tuning())


def record(system, turn, question, score, *, rewrites=("new",), format_ok=True, cut=False):
    return EvalRecord(
        system, turn, question, f"Text of {question}", "", rewrites, (), dict.fromkeys(METRICS, score), 1, 1, 1,
        format_ok, cut=cut if turn else None,
    )  # fmt: skip


def test_the_headline_names_what_is_beaten_the_best_baseline_and_the_warm_start_too():
    scores = {("raw", 0): 0.2, ("rm3", 0): 0.3, ("weighted_words", 0): 0.1, ("hyde", 1): 0.0, ("untrained", 1): 0.1,
              ("warm start", 1): 0.9, ("trained", 1): 0.9}  # fmt: skip
    rows = [record(*arm, f"q{n}", score) for arm, score in scores.items() for n in range(30)]
    frame = frame_of(rows, {"": [f"q{n}" for n in range(30)]}, METRICS)
    tuned = {
        ("", "", "rm3"): Tuned("rm3", {}, 9, 0.1, 0.1),
        ("", "", "weighted_words"): Tuned("weighted_words", {}, 9, 0.4),
    }
    frame, _ = add_best_free(frame, tuned, METRICS[0])
    table = tabulate(frame, table_spec([system for system, _ in scores], "", 50, 500, 0))
    results = Results(name="x", split="test", metrics=list(METRICS), scores=table.scores, comparisons=table.comparisons)
    systems = [system for system, _ in scores]
    assert [score.system for score in table.scores] == [*systems[:3], BEST_FREE, *systems[3:]]
    assert verdict(results, None, judged=True) == (
        "At turn 1, the trained policy beats the untrained policy, the raw question, the best training-free baseline "
        "and HyDE at equal cost, but does not beat its warm start."
    )
    against = {row.against for row in table.comparisons if row.system == "trained"}
    assert against == {"raw", "untrained", "warm start", BEST_FREE, "hyde"}
    assert "no relevant documents" in verdict(results, None, judged=False)


def test_hyde_costs_what_the_rewriter_may_cost_and_stands_in_once():
    config = RunConfig.model_validate({"rollout": {"max_new_tokens": 24}, "eval": {"turns": 3}})
    hyde = hyde_config(config)
    assert (hyde.rewriter.name, hyde.rollout.max_new_tokens, hyde.eval.turns) == ("hyde", 3 * 24, 1)
    assert [system.name for system in systems_of_run(config, None)] == ["untrained", "hyde"]
    without = RunConfig.model_validate({"eval": {"hyde": False}})
    assert [system.name for system in systems_of_run(without, None)] == ["untrained"]
    itself = RunConfig.model_validate({"rewriter": {"name": "hyde"}})
    assert [system.name for system in systems_of_run(itself, None)] == ["untrained"]


@pytest.fixture
def run(settings, speaking, tmp_path):
    """A run folder with a warm start, and its settings."""
    quick = {"rollout.branching": [2], "eval.turns": 1, "eval.permutations": 50, "eval.bootstrap": 50}
    config = change(settings, **quick)
    for part in ("final", "warm_start"):
        shutil.copytree(speaking, tmp_path / "run" / part)
    return config, tmp_path / "run"


def test_a_run_is_compared_with_its_warm_start_hyde_and_the_baselines(run):
    config, folder = run
    assert find_warm_start(folder) == folder / "warm_start"
    report = evaluate(config, folder, None)
    results = json.loads((folder / "results.json").read_text())
    rows = {row["system"]: row for row in results["scores"]}
    assert list(rows) == ["raw", *NAMES, BEST_FREE, "hyde", "untrained", "warm start", "trained"]
    assert rows["warm start"]["metrics"] == rows["trained"]["metrics"], "copies of one policy"
    assert [note["count"] for note in results["notes"] if note["kind"] == "tuned"] == [0, 0, 0], "no validation split"
    assert rows["trained"]["cut"] is not None
    trained_records = [entry for entry in read_records(folder / "eval.jsonl") if entry.system == "trained"]
    assert rows["trained"]["cut"] == sum(bool(entry.cut) for entry in trained_records) / len(trained_records)
    page = report.read_text()
    for phrase in (
        "Warm start, turn 1",
        "HyDE at equal cost",
        "repeats the question",
        "with fall-back",
        "RM3",
        "no validation",
    ):
        assert phrase in page
    compared = {row["against"] for row in results["comparisons"] if row["system"] == "trained"}
    assert compared == {"raw", "untrained", "warm start", "hyde", BEST_FREE}
    tables = (folder / "tables.md").read_text()
    assert results["headline"] in tables
    assert "| Warm start, turn 1 |" in tables
    (folder / "warm_start" / "model.safetensors").unlink()
    assert find_warm_start(folder) is None


def configure(folder, config):
    """Make the folder one of the user's own runs."""
    (folder / "config.yaml").write_text(write_yaml(config.model_dump(mode="json")))
    add_id(folder)


@pytest.fixture
def plan(run):
    """A plan of one environment and one prompted system."""
    config, folder = run
    return {
        "output": str(folder / "grids"), "permutations": 50, "bootstrap": 50,
        "datasets": {"lessons": config.env.dataset.model_dump()},
        "environments": {"bm25": {"urls": {"lessons": config.client.urls}}},
        "policy": config.policy.model_dump(), "rewriter": config.rewriter.model_dump(),
        "rollout": {"max_new_tokens": 6, "documents": 2},
        "systems": {"prompted": {}},
    }  # fmt: skip


def carry_out(values, **changes):
    folder, results, failed = evaluated.carry_out(values, overwrite=True, **changes)
    assert failed is None
    return folder, results


def test_a_plan_has_the_baselines_and_the_best_of_them_as_rows(plan):
    folder, table = carry_out(plan)
    rows = {row["system"]: row for row in table["scores"]}
    assert list(rows) == ["raw", *NAMES, BEST_FREE, "prompted"]
    assert [rows[name]["calls"] for name in (*NAMES, "prompted")] == [0, 0, 0, 1]
    against = {(row["system"], row["against"]) for row in table["comparisons"]}
    assert against == {*((name, "raw") for name in (*NAMES, "prompted")), ("prompted", BEST_FREE)}
    (best,) = [note["text"] for note in table["notes"] if note["kind"] == "best_free"]
    assert rows[BEST_FREE]["metrics"] == rows[best.split()[3]]["metrics"]
    assert sum("no validation split" in note["text"] for note in table["notes"]) == 3
    records = read_records(folder / "questions" / "lessons.bm25.prompted.jsonl")
    shares = rows["prompted"]
    assert shares["cut"] == sum(bool(record.cut) for record in records) / 5
    assert shares["format_ok"] == sum(record.format_ok for record in records) / 5
    assert rows["raw"]["repeats"] is None
    for text in ("tables.md", "report.html"):
        assert "cut at limit" in (folder / text).read_text()
    lines = list(DictReader(StringIO((folder / "scores.csv").read_text())))
    assert list(dict.fromkeys(line["system"] for line in lines)) == list(rows)
    figures = {line["metric"]: float(line["mean"]) for line in lines if line["system"] == "prompted"}
    assert figures["ndcg@10 with fall-back"] == pytest.approx(shares["with_fall_back"])
    assert figures["cut at limit"] == shares["cut"]


def test_a_run_in_a_plan_has_its_warm_start_as_a_row(run, plan, monkeypatch):
    """Once, before the first system of that run, with the answers of the policy of that folder."""
    config, folder = run
    configure(folder, config)
    weights = load_file(folder / "warm_start" / "model.safetensors")
    weights["lm_head.weight"] *= 1.001
    save_file(weights, folder / "warm_start" / "model.safetensors", {"format": "pt"})
    loaded, load = [], engines.load_engine

    def note_and_load(policy, rollout, seed, checkpoint):
        loaded.append(checkpoint)
        return load(policy, rollout, seed, checkpoint)

    monkeypatch.setattr(engines, "load_engine", note_and_load)
    run_system = {"run": str(folder)}
    checkpoints = {"last": "final", "before": "untrained"}
    systems = {"mine": run_system}
    systems |= {name: {**run_system, "checkpoint": checkpoint} for name, checkpoint in checkpoints.items()}
    plan = {**plan, "run_baselines": ["warm_start"]}
    out, table = carry_out(plan, training_free=[], systems=systems)
    labels = {row["system"]: row["label"] for row in table["scores"]}
    assert list(labels) == ["raw", "mine-warm-start", "mine", "last", "before"]
    assert folder / "warm_start" in loaded
    assert "| mine-warm-start |" in (out / "tables.md").read_text()
    saved_spec = load_spec(str(out / "plan.yaml"))
    assert saved_spec.systems["mine-warm-start"].checkpoint == "warm_start"
    assert with_run_baselines(saved_spec) == saved_spec
    load_count = len(loaded)
    (folder / "warm_start" / "model.safetensors").unlink()
    _, table = carry_out(plan, training_free=[], systems=systems)
    assert [row["system"] for row in table["scores"]] == ["raw", "mine", "last", "before"]
    assert len(loaded) == load_count


def test_a_run_in_a_plan_has_its_untrained_policy_and_hyde_as_rows(run, plan):
    """Once for all runs that would have the same; not where the plan has them, or leaves them out."""
    config, folder = run
    configure(folder, config)
    shutil.rmtree(folder / "warm_start")
    run_system = {"run": str(folder), "turns": 2}
    systems = {"other": {"rewriter": {"name": "hyde"}}, "mine": run_system, "twin": run_system}
    out, table = carry_out(plan, training_free=[], systems=systems)
    labels = {row["system"]: row["label"] for row in table["scores"]}
    assert list(labels) == ["raw", "other", "mine-untrained", "mine-hyde", "mine", "twin"]
    assert "| mine-untrained, turn 2 |" in (out / "tables.md").read_text()
    saved_spec = load_spec(str(out / "plan.yaml"))
    assert with_run_baselines(saved_spec) == saved_spec
    untrained, hyde = saved_spec.systems["mine-untrained"], saved_spec.systems["mine-hyde"]
    assert (untrained.checkpoint, untrained.turns, untrained.rewriter) == ("untrained", 2, None)
    assert (hyde.checkpoint, hyde.turns, hyde.rewriter.name, hyde.rollout.max_new_tokens) == (
        "untrained",
        1,
        "hyde",
        12,
    )
    passages = read_records(out / "questions" / "lessons.bm25.mine-hyde.jsonl")
    assert len(passages) == 5
    assert all(0 < record.tokens <= 12 for record in passages)

    def added(**changes):
        spec = SpecConfig.model_validate({**plan, "training_free": [], **changes})
        return with_run_baselines(spec).systems.keys() - spec.systems.keys()

    prompted = {"turns": 2, "rollout": config.rollout.model_dump()}
    assert added(systems={"prompted": prompted, "mine": run_system}) == {"mine-hyde"}
    assert added(systems={"mine": {**run_system, "rewriter": {"name": "hyde"}}}) == {"mine-untrained"}
    assert added(systems={"mine": run_system}, run_baselines=["hyde"]) == {"mine-hyde"}
    assert added(systems={"mine": run_system}, run_baselines=[]) == set()
    assert added(systems={"mine": {"run": str(folder / "nowhere")}}) == set()
