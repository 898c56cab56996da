"""A run folder of `querylect optimize` in use: evaluated, beside GRPO, in Python, exported, trained from."""

import json
import shutil

import pytest
import yaml
from querylect.configs.evaluation import SpecConfig
from querylect.eval.learning_cost import learning_cost
from querylect.eval.spec import evaluate_spec
from querylect.export.export import ExportOptions, export_to_folder
from querylect.inference.rewriter import Rewriter
from querylect.optimize.run import optimize
from querylect.rollouts.checkpoints import find_checkpoint, optimized_prompt
from querylect.train.run import train

from ..chat_server import ChatServer, serving
from ..evaluated import evaluate
from ..lessons import change, records
from ..suggestible import BETTER, prompting


@pytest.fixture(scope="module")
def optimized(world, world_url, suggestible, tmp_path_factory, run_app):
    """The settings and the evaluated folder of a run whose prompt makes the policy search with `blood`."""
    config = prompting.__wrapped__(world, world_url, suggestible, tmp_path_factory.mktemp("optimized"))
    with serving(run_app, ChatServer(lambda body: f"```\n{BETTER}\n```")) as url:
        config = change(config, **{"optimize.reflection.base_url": url, "optimize.proposals": 1})
        folder = optimize(config)
    evaluate(config, folder, None)
    return config, folder


def test_it_is_evaluated_beside_the_prompt_that_it_started_from(optimized):
    _, folder = optimized
    rewrites = {row["system"]: {*row["rewrites"]} for row in records(folder / "eval.jsonl") if row["turn"]}
    assert rewrites == {"trained": {"blood"}, "untrained": {"scurvy"}}
    results = json.loads((folder / "results.json").read_text())
    assert results["provenance"]["checkpoint"].endswith("best")


def test_python_and_an_export_rewrite_with_the_prompt(optimized, tmp_path):
    _, folder = optimized
    assert optimized_prompt(find_checkpoint(folder)) == folder / "best" / "prompt.yaml"
    assert Rewriter.from_pretrained(folder).rewrite("my head hurts").text == "blood"
    target = tmp_path / "export"
    export_to_folder(folder, target, ExportOptions(licence="mit"))
    assert Rewriter.from_pretrained(target).rewrite("my head hurts").text == "blood"
    card, exported = (target / "README.md").read_text(), json.loads((target / "querylect.json").read_text())
    assert "GEPA" in card
    assert "GRPO" not in card.partition("## What was measured")[0]
    assert exported["lora"] is False
    assert exported["run"]["step"] == 1
    assert exported["training"]["optimize"]["minibatch"] == 5


@pytest.fixture(scope="module")
def grpo(optimized):
    """GRPO that starts with the optimised prompt."""
    config, folder = optimized
    changes = {"rewriter.prompt": str(folder / "best" / "prompt.yaml")}
    return train(change(config, name="grpo", **changes, **{"train.validate_steps": 2, "train.validation_questions": 3}))


def test_training_starts_from_an_optimised_prompt(grpo):
    assert {rewrite for row in records(grpo / "rollouts.jsonl") for turn in row["turns"]
            for rewrite in turn["rewrites"]} == {"blood"}  # fmt: skip


def test_a_spec_shows_what_grpo_and_a_prompt_gained_and_cost(optimized, grpo, world, world_url, tmp_path):
    _, folder = optimized
    spec = SpecConfig.model_validate(
        {
            "name": "both", "output": str(tmp_path), "permutations": 50, "bootstrap": 50, "trec": False,
            "training_free": [], "run_baselines": ["untrained"],
            "datasets": {"world": world.dataset.model_dump()},
            "environments": {"bm25": {"urls": {"world": [world_url]}}},
            "systems": {"grpo": {"run": str(grpo)}, "prompt": {"run": str(folder)}},
        }
    )  # fmt: skip
    path, incomplete = evaluate_spec(spec)
    assert incomplete is None
    assert set(yaml.safe_load((path.parent / "plan.yaml").read_text())["systems"]) == {
        "grpo-untrained",
        "prompt-untrained",
        "grpo",
        "prompt",
    }
    text = path.read_text()
    rows = [line.split("|") for line in text.partition("## What learning gained")[2].splitlines() if "GEPA" in line]
    _, name, learned, gain, searches, tokens, minutes, per_thousand, *_ = (cell.strip() for cell in rows[0])
    assert (name, learned) == ("prompt", "prompt (GEPA)")
    assert float(gain) > 0
    evaluations = records(folder / "evaluations.jsonl")
    assert int(searches) == sum(row["searches"] for row in evaluations) == 25
    assert int(tokens) == sum(row["tokens"] for row in evaluations) + 3
    assert float(per_thousand) == pytest.approx(float(gain) / 0.025, rel=0.01)
    assert minutes
    assert "weights (GRPO)" in text
    assert "What learning gained" in (path.parent / "tables.html").read_text()


def test_the_cost_of_training_is_that_of_its_steps_and_validations(grpo, tmp_path):
    steps, validations = records(grpo / "metrics.jsonl"), records(grpo / "validation.jsonl")
    cost = learning_cost(grpo)
    searched = [bool(turn["rewrites"]) for row in records(grpo / "rollouts.jsonl") for turn in row["turns"]]
    assert len(searched) == 2 * 4
    assert sum(row["searches"] for row in steps) == sum(searched), "an answer of another form is not searched"
    assert [row["searches"] for row in validations] == [3, 3]
    assert cost.searches == sum(searched) + 2 * 3
    assert cost.tokens == sum(row["tokens/sampled"] for row in [*steps, *validations])
    seconds = sum(row["seconds/step"] for row in steps) + sum(row["seconds"] for row in validations)
    assert cost.minutes == pytest.approx(seconds / 60)
    assert not cost.prompt
    earlier = tmp_path / "earlier"
    shutil.copytree(grpo, earlier)
    (earlier / "metrics.jsonl").write_text('{"step": 1, "seconds/step": 6}\n{"step": 2, "sec')
    assert learning_cost(earlier).searches is None, "an earlier version did not count them"
    assert learning_cost(grpo.parent) is None
