"""The collapse guard on logs made by hand, and on a real run that it warns of."""

import logging
import math

import pytest
from querylect.train import metrics_callback as guards
from querylect.train.metrics_callback import CollapseGuard
from querylect.train.run import train

from ..lessons import change

pytestmark = pytest.mark.model


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Windows of two steps."""
    monkeypatch.setattr(guards, "WINDOW", 2)


def log(**figures):
    """Records of steps 1, 2, …: figures by name, each a list by step, or one number for all."""
    steps = max(len(values) for values in figures.values() if isinstance(values, list))
    return [
        {"step": step + 1}
        | {name: values[step] if isinstance(values, list) else values for name, values in figures.items()}
        for step in range(steps)
    ]


def signs(rows, logp=math.inf, learning_rate=1e-6):
    """The (step, finding) of each new sign."""
    guard = CollapseGuard(logp, learning_rate)
    return [(row["step"], finding) for row in rows for finding in guard.look(row)]


def test_a_drop_is_measured_against_the_best_window_of_the_last_turn():
    """Windows of two: .3 .5 .5 .35 .2 .2 .2 .2; half of .5 is .25, so the fifth window is below it."""
    rewards = [0.2, 0.4, 0.6, 0.4, 0.3, 0.1, 0.3, 0.1, 0.3]
    ((step, finding),) = signs(log(**{"reward/turn1": 0.9, "reward/turn2": rewards}))
    assert step == 6
    assert "0.200; it was 0.500" in finding


@pytest.mark.parametrize(
    ("name", "bad", "good"), [("entropy", 0.001, 0.5), ("copy", 1.0, 0.3), ("zero_variance", 1, 0)]
)
def test_every_turn_has_to_show_it(name, bad, good):
    both = {f"{name}/turn1": [bad] * 6, f"{name}/turn2": [bad] * 6}
    assert [step for step, _ in signs(log(**both))] == [2]
    assert signs(log(**both | {f"{name}/turn2": [good] * 6})) == []


def test_a_run_warns_once_and_a_resumed_one_does_not_again(settings, caplog, monkeypatch):
    """The limit of entropy is so high that every step is a collapse, which the first full window shows."""
    monkeypatch.setattr(guards, "LEAST_ENTROPY", 50.0)
    config = change(settings, **{"train.steps": 3, "train.save_steps": 3})
    with caplog.at_level(logging.WARNING):
        train(config)
        train(change(config, **{"train.steps": 5}), resume=True)
    assert caplog.text.count("no turn's entropy") == caplog.text.count("step 2: no turn's entropy") == 1
