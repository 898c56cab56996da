"""The files of training and export: equal from equal runs, without names or folders of the machine."""

import json
import shutil
from pathlib import Path

import pytest
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
            warm = {"questions": 5}
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
