"""The sampler and the trained model: weights worked out by hand, equality with TRL's own, and runs that log them."""

import math
from itertools import chain
from pathlib import Path

import pytest
import torch
from querylect.configs.schema import RunConfig
from querylect.errors import EngineUnavailableError
from querylect.train import loss as policy_loss
from querylect.train.loss import StepFigures, importance_weights
from querylect.train.run import train

from ..lessons import change, records
from ..raising import refused
from ..vllm_doubles import serving
from .credited import Credited
from .test_trl import losses_and_gradients, ready, step_inputs, with_trainer

pytestmark = pytest.mark.model

RATIO = "sampling/importance_sampling_ratio"
APART = "sampling/sampling_logp_difference"


def weigh(figures, trainer, sampler, leaves):
    weights, differences = importance_weights(torch.tensor(trainer), torch.tensor(sampler))
    figures.add_sampling(differences, weights, torch.tensor(leaves))
    return weights.tolist()


def read(figures, *others):
    return figures.read(lambda ours: [ours, *others])


def test_only_tokens_with_a_recorded_probability_are_corrected():
    figures = StepFigures()
    weights = weigh(figures, [-1.0, -2.0, 500.0], [-1.5, math.nan, -1.0], [1.0, 1.0, 1.0])
    assert weights == pytest.approx([math.exp(0.5), 1, policy_loss.LARGEST_WEIGHT])
    assert math.isnan(weigh(figures, [math.nan], [-1.0], [1.0])[0]), "what is broken is not hidden"


def test_the_figures_of_a_step_by_hand():
    """Ratios 2, ½ and 4 (cut to 3) over two micro-batches, the last with two leaves; one token counts for nothing."""
    figures, log = StepFigures(), math.log
    assert weigh(figures, [log(2), log(0.5), log(9)], [0.0] * 3, [1.0, 1.0, 0.0]) == pytest.approx([2, 0.5, 3])
    assert weigh(figures, [log(4)], [0.0], [2.0]) == [3]
    assert read(figures) == pytest.approx(
        {
            f"{RATIO}/min": 0.5,
            f"{RATIO}/mean": 10.5 / 4,
            f"{RATIO}/max": 4.0,
            f"{APART}/mean": (log(2) + log(2) + 2 * log(4)) / 4,
            f"{APART}/max": log(4),
            "sampling/kl": ((2 - 1 - log(2)) + (0.5 - 1 + log(2)) + 2 * (4 - 1 - log(4))) / 4,
            "sampling/clipped": 2 / 4,
        },
        rel=1e-5,
    )
    nothing = StepFigures()
    weigh(nothing, [0.0, 0.0], [0.0, 0.0], [0.0, 0.0])
    assert read(nothing) == {}, "no token, no figure"


def disturb(trainer):
    """The sampler's copy of the weights is not that of the trainer, and stays so."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        head = trainer.tree_sampler.policy.engine.model.get_output_embeddings()
        head.weight.data.add_(0.05 * torch.randn_like(head.weight))
    trainer.step_trees.weight_sync.refresh = lambda: None


def by_hand(trainer):
    """For each sampled token of each row: ratio from plain forward passes, advantage, whether its turn has signal."""
    credit = Credited(trainer.trees, "turn", [0.5, 1.0], "none")
    samples = []
    for tree in trainer.trees:
        for node in chain.from_iterable(tree.paths()):
            with torch.no_grad():
                logits = trainer.model(torch.tensor([node.prompt_ids + node.completion_ids])).logits[0]
            taught = torch.log_softmax(logits[len(node.prompt_ids) - 1 : -1], -1)
            for token, recorded, row in zip(node.completion_ids, node.logprobs, taught, strict=True):
                samples.append((math.exp(float(row[token]) - recorded), credit.of(node), credit.has_signal(node)))
    ratios, advantages, signal = map(torch.tensor, zip(*samples, strict=True))
    return ratios, advantages, signal


@pytest.mark.parametrize(("maximum", "packing"), [(1.2, True), (3.0, False)])
def test_a_disturbed_sampler_is_corrected_by_the_weights_that_follow(settings, monkeypatch, maximum, packing):
    monkeypatch.setattr(policy_loss, "LARGEST_WEIGHT", maximum)

    def act(trainer):
        ready(trainer)
        disturb(trainer)
        inputs = step_inputs(trainer)
        losses, _ = losses_and_gradients(trainer, inputs, packing)
        return float(losses.sum()), by_hand(trainer), trainer.figures.read(lambda ours: [ours])

    loss, (ratios, advantages, signal), figures = with_trainer(settings, monkeypatch, act)
    assert ratios.max() > 1.3
    assert ratios.min() < 0.8
    outside, weights = ratios > maximum, ratios.clamp(max=maximum)
    assert loss == pytest.approx(float(-(weights * advantages).mean()), rel=1e-3, abs=1e-6)
    assert abs(loss + float(advantages.mean())) > 3e-4, "the correction is not nothing"
    ratios, outside = ratios[signal], outside[signal]
    assert figures[f"{RATIO}/mean"] == pytest.approx(float(ratios.mean()), rel=1e-3)
    assert figures[f"{RATIO}/max"] == pytest.approx(float(ratios.max()), rel=1e-3)
    assert figures["sampling/clipped"] == pytest.approx(float(outside.float().mean()))
    assert figures["sampling/kl"] == pytest.approx(float((ratios - 1 - ratios.log()).mean()), rel=1e-2)


@pytest.fixture(params=["vllm", "vllm_server"])
def served(request, settings, vllm, run_app, monkeypatch, speaking) -> RunConfig:
    with serving(run_app, monkeypatch, speaking) as (url, server):
        yield change(settings, **{"rollout.engine": request.param, "rollout.server.base_url": url}), server


def test_a_run_samples_from_the_weights_that_it_has_just_trained(served, vllm):
    """At a learning rate of 0.05 weights of the step before would show: only those of now give a ratio of 1."""
    config, server = served
    config = change(config, **{"train.steps": 3, "train.learning_rate": 0.05, "rollout.vllm.enable_sleep_mode": True})
    folder = train(config)
    taught = [line for line in records(folder / "metrics.jsonl") if line["grad_norm"] > 0]
    assert len(taught) >= 2
    for line in taught:
        assert line[f"{RATIO}/min"] == pytest.approx(1.0, abs=1e-3)
        assert line[f"{RATIO}/max"] == pytest.approx(1.0, abs=1e-3)
    loads = vllm[0].answers.loaded if config.rollout.engine == "vllm" else server.answers.loaded
    assert len(loads) == 3
    if config.rollout.engine == "vllm":
        assert vllm[0].events[-1] == "sleep", "training has the memory to itself"


@pytest.mark.parametrize("served", ["vllm_server"], indirect=True)
def test_a_server_that_dies_leaves_a_checkpoint(served, monkeypatch):
    config, server = served
    from querylect.rollouts.engines.vllm_server import VllmServerEngine

    inner = VllmServerEngine.refresh

    def refresh(self):
        inner(self)
        server.down = len(server.answers.loaded) == 3

    monkeypatch.setattr(VllmServerEngine, "refresh", refresh)
    with refused(EngineUnavailableError, "--resume"):
        train(change(config, **{"train.save_steps": 9}))
    checkpoints = Path(config.output) / config.name / "checkpoints"
    assert [path.name for path in checkpoints.iterdir()] == ["checkpoint-2"]
