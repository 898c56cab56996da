"""A run as a spec of four systems: which ones, where it is written, and a whole evaluation of real policies."""

import json
import shutil
from dataclasses import replace

import pytest
from querylect.configs.evaluation import BEST_FREE, SpecConfig
from querylect.configs.load import dump_config, write_yaml
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError
from querylect.eval.records import METRICS, EvalRecord, read_records
from querylect.eval.results import EvalResults, read_results
from querylect.eval.run import results_folder, spec_of_run, with_run_baselines
from querylect.eval.summary import add_best_free, table_spec, verdict
from querylect.eval.table import Arm, frame_of, tabulate
from querylect.eval.training_free import Tuned

from ..evaluated import evaluate
from ..lessons import change
from ..raising import refused
from ..used import add_id

SYSTEMS = ["first_titles", "rm3", "weighted_words", "hyde", "untrained", "warm-start", "trained"]


def policy(folder):
    """As far as a checkpoint is looked at before it is loaded."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text("{}")
    (folder / "adapter_model.safetensors").touch()


@pytest.fixture
def trained(tmp_path):
    """A run folder with a warm start and two policies."""
    folder = tmp_path / "runs" / "run"
    for name in ("best", "warm_start", "checkpoints/checkpoint-2"):
        policy(folder / name)
    (folder / "config.yaml").write_text(dump_config(RunConfig()))
    return folder


def test_a_run_is_a_spec_of_its_policies_and_of_hyde_at_equal_cost(trained):
    settings = {"rollout": {"max_new_tokens": 24}, "eval": {"turns": 3}, "reward": {"metric": "f3@1000"}}
    config = RunConfig.model_validate(settings)
    spec = spec_of_run(config, trained)
    assert list(spec.systems) == SYSTEMS
    assert (spec.metrics, spec.depth) == (["ndcg@10", "recall@10", "mrr@10", "f3@1000"], 1000)
    hyde = spec.systems["hyde"]
    assert (hyde.rewriter.name, hyde.rollout.max_new_tokens, hyde.turns) == ("hyde", 3 * 24, 1)
    checkpoints = [spec.systems[name].checkpoint for name in SYSTEMS[3:]]
    assert checkpoints == ["untrained", "untrained", "warm_start", "best"]
    assert with_run_baselines(spec) == spec
    assert list(spec_of_run(config, None).systems) == [*SYSTEMS[:3], "hyde", "untrained"]
    shutil.rmtree(trained / "warm_start")
    without = RunConfig.model_validate({"eval": {"run_baselines": [], "training_free": []}})
    assert list(spec_of_run(without, trained).systems) == ["untrained", "trained"]
    itself = RunConfig.model_validate({"rewriter": {"name": "hyde"}})
    assert "hyde" not in spec_of_run(itself, None).systems


def test_runs_in_a_spec_bring_their_baselines_once(trained):
    """Not where the spec has them, leaves them out, or their settings cannot be read."""
    run = {"run": str(trained), "turns": 2}

    def added(systems, **changes):
        values = {"datasets": {"d": None}, "environments": {"x": {}}, "training_free": [], "systems": systems}
        spec = SpecConfig.model_validate({**values, **changes})
        complete = with_run_baselines(spec)
        assert with_run_baselines(complete) == complete
        return [name for name in complete.systems if name not in systems]

    every = ["mine-untrained", "mine-hyde", "mine-warm-start"]
    assert added({"mine": run}) == every
    assert added({"mine": run, "twin": run}) == every, "equal rows are shared"
    assert added({"mine": run, "before": {**run, "checkpoint": "untrained"}}) == every[1:], "the spec has that row"
    assert added({"mine": {**run, "rewriter": {"name": "hyde"}}}) == ["mine-untrained", "mine-warm-start"]
    assert added({"mine": run}, run_baselines=["hyde"]) == ["mine-hyde"]
    assert added({"mine": {"run": str(trained / "nowhere")}}) == []


def test_a_mix_is_one_evaluation_of_all_its_environments():
    members = {
        "words": {"env": {"index": "a"}},
        "dense": {"env": {"index": "b", "retriever": "contriever"}},
        "far": {"env": {"dataset": {"path": "/data/far"}}, "client": {"urls": ["http://127.0.0.1:1"]}},
    }
    mix = RunConfig.model_validate({"env": {"dataset": {"path": "/data/one"}}, "mix": {"environments": members}})
    spec = spec_of_run(mix, None)
    assert {name: place.datasets for name, place in spec.environments.items()} == {
        "words": ["one"], "dense": ["one"], "far": ["far"],
    }  # fmt: skip
    assert (spec.datasets["one"].path, spec.datasets["far"]) == ("/data/one", None)
    assert list(spec_of_run(mix, None, environment="dense").environments) == ["dense"]
    with refused(ConfigError, "--env", "'minilm'", "words, dense, far"):
        spec_of_run(mix, None, environment="minilm")


@pytest.mark.parametrize(
    ("changes", "checkpoint", "own"),
    [
        ({}, None, True),
        ({"bootstrap": 7, "permutations": 7}, None, True),
        ({"limit": 9}, None, False),
        ({}, "checkpoint-2", False),
    ],
)
def test_the_run_folder_is_for_the_settings_of_the_run(trained, changes, checkpoint, own):
    """A quick look does not take the place of the run's own evaluation; each has one place."""
    config = RunConfig.model_validate({"eval": changes})
    folder = results_folder(spec_of_run(config, trained, checkpoint), config, trained)
    assert (folder == trained) == own
    assert own or folder.parent == trained / "evaluations"
    assert results_folder(spec_of_run(config, trained, checkpoint), config, trained) == folder
    assert results_folder(spec_of_run(config, None), config, None).name.endswith("-untrained")


def record(system, turn, question, score, *, rewrites=("new",), format_ok=True, cut=False):
    return EvalRecord(
        system, turn, question, f"Text of {question}", "", rewrites, (), dict.fromkeys(METRICS, score), 1, 1, 1,
        format_ok, cut=cut if turn else None,
    )  # fmt: skip


def test_the_headline_names_what_is_beaten_the_best_baseline_and_the_warm_start_too():
    scores = {("raw", 0): 0.2, ("rm3", 0): 0.3, ("weighted_words", 0): 0.1, ("hyde", 1): 0.0, ("untrained", 1): 0.1,
              ("warm-start", 1): 0.9, ("trained", 1): 0.9}  # fmt: skip
    rows = [record(*arm, f"q{n}", score) for arm, score in scores.items() for n in range(30)]
    placed = [replace(row, dataset="d", environment="x") for row in rows]
    frame = frame_of(placed, {"d": [f"q{n}" for n in range(30)]}, METRICS)
    tuned = {
        ("d", "x", "rm3"): Tuned("rm3", {}, 0.1),
        ("d", "x", "weighted_words"): Tuned("weighted_words", {}, 0.4),
    }
    trained = {name: {} for name in ("hyde", "untrained", "warm-start", "trained")}
    values = {"datasets": {"d": None}, "environments": {"x": {}}, "systems": trained, "permutations": 500}
    spec = SpecConfig.model_validate({**values, "bootstrap": 50, "training_free": ["rm3", "weighted_words"]})
    frame, _ = add_best_free(frame, tuned, METRICS[0])
    table = tabulate(frame, table_spec(spec, of_run=True))
    results = EvalResults(
        name="x", split="test", metrics=list(METRICS), scores=table.scores, comparisons=table.comparisons
    )
    systems = [system for system, _ in scores]
    assert [score.system for score in table.scores] == [*systems[:3], BEST_FREE, *systems[3:]]
    assert verdict(spec, results, of_run=True) == (
        "At turn 1, the trained policy beats the untrained policy, the raw question, the best training-free baseline "
        "and HyDE, but does not beat its warm start."
    )
    against = {row.against for row in table.comparisons if row.system == "trained"}
    assert against == {"raw", "untrained", "warm-start", BEST_FREE, "hyde"}


@pytest.fixture
def run(settings, speaking, tmp_path):
    """A run folder with a warm start of another policy, and its settings."""
    quick = {"rollout.branching": [2], "eval.turns": 1, "eval.permutations": 50, "eval.bootstrap": 50}
    config = change(settings, **quick, output=str(tmp_path), name="run")
    for part in ("final", "warm_start"):
        shutil.copytree(speaking, tmp_path / "run" / part)
    (tmp_path / "run" / "config.yaml").write_text(write_yaml(config.model_dump(mode="json")))
    add_id(tmp_path / "run")
    return config, tmp_path / "run"


@pytest.mark.model
@pytest.mark.server
def test_a_run_is_compared_with_its_warm_start_hyde_and_the_baselines(run):
    config, folder = run
    report = evaluate(config, folder)
    assert report == folder / "report.html"
    results = read_results(folder)
    assert list(dict.fromkeys(score.system for score in results.scores if score.system != "best_training_free")) == [
        "raw", *SYSTEMS,
    ]  # fmt: skip
    assert results.score(Arm("warm-start", 1)).metrics == results.score(Arm("trained", 1)).metrics, "copies"
    against = {row.against for row in results.comparisons if row.system == "trained"}
    assert against == {"raw", "untrained", "warm-start", "hyde", "best_training_free"}
    assert results.headline.startswith("At turn 1, the trained policy")
    page = report.read_text()
    for phrase in (results.headline, "warm-start", "no validation split"):
        assert phrase in page
    raw = [
        record for record in read_records(folder / "eval.jsonl") if record.system == "raw" and len(record.ranking) > 1
    ]
    ranked = [line.split() for line in (folder / "trec" / "data" / "bm25.raw.run").read_text().splitlines()]
    for record in raw:
        scores = [float(fields[4]) for fields in ranked if fields[0] == record.question_id]
        assert scores == pytest.approx(record.scores), "those of the retriever, not ranks"
    assert raw
    before = (folder / "eval.jsonl").read_bytes()
    evaluate(config, folder)
    assert (folder / "eval.jsonl").read_bytes() == before, "nothing is asked twice"
    shutil.copy(folder / "warm_start" / "config.json", folder / "final" / "more.json")
    with refused(ConfigError, folder / "results.json", "checkpoint", "--overwrite"):
        evaluate(config, folder)


@pytest.mark.model
@pytest.mark.server
def test_the_verdict_is_about_the_turn_that_won_on_validation(run):
    config, folder = run
    config = change(
        config, **{"rollout.branching": [2, 1], "eval.turns": 2, "eval.training_free": [], "eval.run_baselines": []}
    )
    record = {"step": 9, "ndcg/turn1": 0.5, "ndcg/turn2": 0.4}
    (folder / "validation.jsonl").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text('{"step": 8, "reward/turn1": 0.1}\n{"step": 9, "reward/turn1": 0.5}\n')
    page = evaluate(config, folder, folder / "one").read_text()
    results = read_results(folder / "one")
    assert results.turn == 1
    assert results.headline.startswith("At turn 1, the trained policy")
    assert "Reward" in page, "its training curves"
    (folder / "validation.jsonl").unlink()
    evaluate(config, folder, folder / "one")
    assert read_results(folder / "one").headline.startswith("At turn 2, the trained policy")
