"""A run folder of `querylect optimize` in use: evaluated, beside GRPO, in Python, exported, trained from."""

import json

import pytest
import yaml
from querylect.configs.evaluation import SpecConfig
from querylect.eval.spec import evaluate_spec
from querylect.export.export import export_to_folder
from querylect.inference.rewriter import Rewriter
from querylect.optimize.run import optimize
from querylect.rollouts.checkpoints import find_checkpoint, optimized_prompt
from querylect.train.run import train

from ..chat_server import ChatServer, serving
from ..evaluated import evaluate
from ..lessons import change, records
from .suggestible import BETTER, prompting

pytestmark = pytest.mark.model


@pytest.fixture(scope="module")
def optimized(world, world_url, suggestible, tmp_path_factory, run_app):
    """The settings and the evaluated folder of a run whose prompt makes the policy search with `blood`."""
    config = prompting.__wrapped__(world, world_url, suggestible, tmp_path_factory.mktemp("optimized"))
    with serving(run_app, ChatServer(lambda body: f"```\n{BETTER}\n```")) as url:
        config = change(config, **{"optimize.reflection.base_url": url, "optimize.searches": 15})
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
    export_to_folder(folder, target, licence="mit")
    assert Rewriter.from_pretrained(target).rewrite("my head hurts").text == "blood"
    card, exported = (target / "README.md").read_text(), json.loads((target / "querylect.json").read_text())
    assert "GEPA" in card
    assert "GRPO" not in card.partition("## What was measured")[0]
    assert exported["lora"] is False
    assert exported["run"]["step"] == 1
    assert exported["config"]["optimize"]["searches"] == 15


@pytest.fixture(scope="module")
def grpo(optimized):
    """GRPO that starts with the optimised prompt."""
    config, folder = optimized
    changes = {"rewriter.prompt": str(folder / "best" / "prompt.yaml")}
    return train(change(config, name="grpo", **changes, **{"train.validate_steps": 2, "train.validation_questions": 3}))


def test_a_spec_has_the_untrained_policies_of_grpo_and_of_a_prompt(optimized, grpo, world, world_url, tmp_path):
    _, folder = optimized
    rewrites = {text for row in records(grpo / "rollouts.jsonl") for turn in row["turns"] for text in turn["rewrites"]}
    assert rewrites == {"blood"}, "the prompt that it starts from"
    spec = SpecConfig.model_validate(
        {
            "name": "both", "output": str(tmp_path), "permutations": 50, "bootstrap": 50,
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
