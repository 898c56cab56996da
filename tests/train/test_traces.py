"""The files of training and export: equal from equal runs, without names or folders of the machine."""

import json
import shutil
from pathlib import Path

import pytest
from querylect.export.export import export_to_folder
from querylect.train.run import train

from ..exported import copied, evaluated_run  # noqa: F401 (fixtures)
from ..lessons import change, contents
from .test_validation import ASKED, served  # noqa: F401 (a fixture)

pytestmark = pytest.mark.model


def mentions(folder, *texts):
    """Files below a folder that hold one of the texts."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return [(path.name, text) for path in paths for text in texts if text.encode() in path.read_bytes()]


@pytest.mark.parametrize("lora", [{"r": 4, "alpha": 8}, None])
def test_equal_runs_leave_equal_policies_without_traces_of_the_machine(lora, settings, served, tmp_path):  # noqa: F811
    left = []
    with served(ASKED) as url:
        for name in ("one", "other"):
            model = Path(shutil.copytree(settings.policy.model, tmp_path / name / "base"))
            warm = {"questions": 5, "questions_per_step": 5}
            config = change(
                settings,
                output=str(tmp_path / name),
                **{"policy.model": str(model), "policy.lora": lora, "client.urls": [url], "train.warm_start": warm},
                **{"train.steps": 1, "train.validate_steps": 1, "train.save_steps": 1},
            )
            run = train(config)
            policies = [run / "final", run / "best", run / "warm_start", *(run / "checkpoints").iterdir()]
            assert len(policies) == 4
            assert not [mention for policy in policies for mention in mentions(policy, str(tmp_path))]
            assert not list(run.rglob("training_args.bin"))
            if lora:
                values = json.loads((run / "final" / "adapter_config.json").read_text())
                assert values["target_modules"] == sorted(values["target_modules"])
                assert values["base_model_name_or_path"] == "base"
            left.append({path.name: contents(path) for path in policies[:3]})
    assert left[0] == left[1]


@pytest.mark.parametrize("merge", [True, False])
def test_two_exports_of_a_checkpoint_are_equal_and_hold_no_state_of_a_repository(merge, copied, tmp_path):  # noqa: F811
    state = {"commit": "c0ffee", "branch": "secret-branch", "dirty": True}
    started = {"starts": [{"step": 0, "git": state}]}
    (copied / "provenance.json").write_text(json.dumps(started), encoding="utf-8")
    wishes = {"merge_lora": merge, "base_model": None if merge else "acme/base", "example": "my head hurts"}
    folders = [Path(export_to_folder(copied, tmp_path / name, **wishes)) for name in ("one", "other")]
    assert contents(folders[0]) == contents(folders[1])
    assert not mentions(folders[0], str(tmp_path), "secret-branch", "dirty")
