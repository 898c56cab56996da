"""Run folders of other versions: removed settings are ignored and reported, the others are kept."""

import logging

import pytest
from querylect.configs.load import dump_config, load_config
from querylect.configs.run_settings import load_run_config
from querylect.configs.yaml12 import parse_yaml, write_yaml
from querylect.errors import ConfigError

from ..raising import refused


@pytest.fixture
def run(tmp_path):
    """A function that takes changes of a mixed run's YAML and returns the run folder."""

    def write(change):
        values = parse_yaml(dump_config(load_config("mix_bm25_minilm", ["train.steps=7"])))
        change(values)
        (tmp_path / "config.yaml").write_text(write_yaml(values))
        return tmp_path

    return write


def test_settings_that_are_gone_are_left_out_and_named(run, caplog):
    def older(values):
        values["gone"] = 1
        values["train"] |= {"old_rule": "x"}
        values["train"]["guard"] = {"sign": 3}
        values["policy"]["lora"] = {**(values["policy"]["lora"] or {}), "rank": 9}
        values["mix"]["environments"]["bm25"]["rewriter"] = {"tone": "kind"}

    folder = run(older)
    with refused(ConfigError, "gone"):
        load_config(str(folder / "config.yaml"))
    with caplog.at_level(logging.WARNING):
        config = load_run_config(folder, ["seed=5"])
    assert (config.train.steps, config.seed) == (7, 5)
    assert list(config.mix.environments) == ["bm25", "minilm"]
    ignored = {"gone", "train.old_rule", "train.guard.sign", "policy.lora.rank", "mix.environments.bm25.rewriter.tone"}
    assert set(caplog.text.partition("left out: ")[2].strip().split(", ")) == ignored


@pytest.mark.parametrize("removed", [{}, {"keep_rewrites_weight": 0.0}])
def test_settings_of_this_version_or_removed_ones_without_effect_are_read_silently(run, removed, caplog):
    folder = run(lambda values: values["rollout"].update(removed))
    with caplog.at_level(logging.WARNING):
        assert load_run_config(folder) == load_config(str(folder / "config.yaml"))
    assert not caplog.records
    assert "keep_rewrites_weight" not in dump_config(load_run_config(folder))


@pytest.mark.parametrize("load", [load_run_config, lambda folder: load_config(str(folder / "config.yaml"))])
def test_a_removed_setting_with_an_effect_is_refused(run, load):
    folder = run(lambda values: values["rollout"].update(keep_rewrites_weight=0.6))
    with refused(ConfigError, "rollout.keep_rewrites_weight was removed", "0.0", folder):
        load(folder)


def test_an_override_is_checked_as_always(run):
    with refused(ConfigError, "train.stepz"):
        load_run_config(run(lambda values: None), ["train.stepz=1"])
    with refused(ConfigError, "rollout.keep_rewrites_weight was removed"):
        load_config("demo", ["rollout.keep_rewrites_weight=0"])
