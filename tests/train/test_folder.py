"""The run folder on disk: the files that resuming needs, and that a checkpoint is complete before its rename."""

import json

import pytest
from querylect.errors import CheckpointError
from querylect.train.run_folder import RunFolder

from ..raising import refused

pytestmark = pytest.mark.model

ENVIRONMENT = ("retriever", "corpus_hash", "index_hash", "settings_hash")


@pytest.mark.parametrize("name", ENVIRONMENT)
def test_a_run_started_on_another_environment_is_refused(tmp_path, name):
    """Each of these changes what a reward is; the address of a service does not."""
    folder, current = RunFolder(tmp_path), dict.fromkeys((*ENVIRONMENT, "url"), "a")
    folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({**current, "url": "b"}))
    folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({**current, name: "b"}))
    with refused(CheckpointError, f"{name}: 'b' → 'a'"):
        folder.same_environment(current)
    (tmp_path / "environment.json").write_text(json.dumps({key: current[key] for key in current if key != name}))
    with refused(CheckpointError, f"{name}: None → 'a'"):
        folder.same_environment(current)
