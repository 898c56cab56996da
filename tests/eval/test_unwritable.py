"""A folder that cannot be written, or is in use, is reported before anything is computed."""

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.configs.load import dump_config
from querylect.configs.schema import RunConfig
from querylect.errors import CheckpointError, StorageError
from querylect.eval import run, spec
from querylect.eval.run import evaluate_each
from querylect.eval.spec import evaluate_spec
from querylect.storage import only_command

from ..evaluated import evaluate
from ..raising import refused


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A folder under a file, with everything that would take time made an error."""

    def worked(*_, **__):
        raise AssertionError("something was computed first")

    for module, name in (
        (run, "open_environments"),
        (spec, "SpecEnvironments"),
    ):
        monkeypatch.setattr(module, name, worked)
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "results"


MIX = {"mix": {"environments": {"a": {"env": {"index": "a"}}, "b": {"env": {"index": "b"}}}}}


@pytest.mark.parametrize(
    "command",
    [
        lambda folder: evaluate(RunConfig(), None, folder),
        lambda folder: list(evaluate_each(RunConfig.model_validate(MIX), None, folder)),
        lambda folder: evaluate_spec(
            SpecConfig.model_validate({"datasets": {"hpo": {"path": "hpo"}}, "environments": {"bm25": {}}}), folder
        ),
    ],
    ids=["eval", "eval of a mix", "eval of a plan"],
)
def test_it_is_told_first(command, nowhere):
    with refused(StorageError, nowhere):
        command(nowhere)


@pytest.fixture
def trained(tmp_path):
    """A run folder with two policies, as far as it is looked at before anything is computed."""
    folder = tmp_path / "runs" / "run"
    for name in ("best", "checkpoints/checkpoint-2"):
        (folder / name).mkdir(parents=True)
        (folder / name / "adapter_config.json").touch()
        (folder / name / "adapter_model.safetensors").touch()
    (folder / "config.yaml").write_text(dump_config(RunConfig()))
    return folder


def opens(*_):
    raise RuntimeError("a service would be started now")


def test_a_run_that_is_trained_or_evaluated_takes_no_evaluation(trained, monkeypatch):
    monkeypatch.setattr(run, "open_environments", opens)
    with only_command(trained), refused(StorageError, trained):
        evaluate(RunConfig(), trained, None)
    with pytest.raises(RuntimeError):
        evaluate(RunConfig(), trained, None)
    with only_command(trained), pytest.raises(RuntimeError):
        evaluate(RunConfig(), None, trained.parent / "untrained")


def test_during_training_lasting_checkpoints_are_evaluated_and_best_is_not(trained, monkeypatch):
    """A validation may put another policy into best/ between its hash and its weights."""
    monkeypatch.setattr(run, "open_environments", opens)
    with only_command(trained):
        with refused(CheckpointError, trained / "best", "--checkpoint"):
            evaluate(RunConfig(), trained, trained.parent / "elsewhere")
        with pytest.raises(RuntimeError):
            evaluate(RunConfig(), trained, trained.parent / "elsewhere", checkpoint_name="checkpoint-2")
    with pytest.raises(RuntimeError):
        evaluate(RunConfig(), trained, trained.parent / "elsewhere")
