"""A folder that cannot be written, or is in use, is reported before anything is computed."""

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.configs.schema import RunConfig
from querylect.errors import StorageError
from querylect.eval import spec
from querylect.eval.run import spec_of_run
from querylect.eval.spec import evaluate_spec

from ..raising import refused

SPEC = SpecConfig.model_validate({"datasets": {"hpo": {"path": "hpo"}}, "environments": {"bm25": {}}})


@pytest.mark.parametrize("evaluated", [SPEC, spec_of_run(RunConfig(), None)], ids=["spec", "run"])
def test_it_is_told_first(evaluated, tmp_path, monkeypatch):
    monkeypatch.delattr(spec, "SpecEnvironments")
    (tmp_path / "file").write_text("")
    with refused(StorageError, tmp_path / "file" / "results"):
        evaluate_spec(evaluated, tmp_path / "file" / "results")
