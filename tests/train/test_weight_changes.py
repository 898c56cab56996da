"""The share of trained weights that a step changes: by hand, against a full comparison, and in real runs."""

import pytest
from querylect.train.run import train
from querylect.train.trainer import TreeTrainer

from ..lessons import change, records

pytestmark = pytest.mark.model


@pytest.mark.parametrize("lora", [None, {"r": 4, "alpha": 8.0}], ids=["full", "lora"])
def test_a_run_logs_what_comparing_all_of_its_trained_weights_gives(settings, monkeypatch, lora):
    """Also after a resume; the weights are few, so the sample is all of them."""
    snapshots = []
    inner = TreeTrainer.training_step

    def look(trainer, *args, **kwargs):
        weights = [weight for weight in trainer.model.parameters() if weight.requires_grad]
        if trainer._step % trainer.args.gradient_accumulation_steps == 0:
            snapshots.append([weight.detach().clone() for weight in weights])
            look.weights = weights
        return inner(trainer, *args, **kwargs)

    monkeypatch.setattr(TreeTrainer, "training_step", look)
    monkeypatch.setattr("querylect.train.metrics_callback.SAMPLED", 10**9)
    config = change(settings, **{"policy.lora": lora, "train.steps": 1, "train.save_steps": 1})
    train(config)
    folder = train(change(config, **{"train.steps": 2}), resume=True)
    after = [*snapshots[1:], [weight.detach() for weight in look.weights]]
    shares = []
    for before, now in zip(snapshots, after, strict=True):
        equal = [(old == new).sum() for old, new in zip(before, now, strict=True)]
        shares.append(1 - int(sum(equal)) / sum(old.numel() for old in before))
    logged = [row["changed_weights"] for row in records(folder / "metrics.jsonl")]
    assert logged == pytest.approx(shares, abs=1e-4)
    assert 0 < logged[0] <= 1
