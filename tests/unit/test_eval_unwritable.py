"""A place that cannot be written is told before anything is computed, not after it."""

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.configs.schema import RunConfig
from querylect.errors import StorageError
from querylect.eval import run, spec
from querylect.eval.answers import run as answers
from querylect.eval.answers.run import answer_questions
from querylect.eval.drift import run as drift
from querylect.eval.drift.results import DriftSettings
from querylect.eval.drift.run import write_drift
from querylect.eval.run import evaluate, evaluate_each
from querylect.eval.spec import evaluate_spec

from ..raising import refused


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """A folder under a file, with everything that would take time made an error."""

    def worked(*_, **__):
        raise AssertionError("something was computed first")

    for module, name in (
        (answers, "open_environment"),
        (answers, "gold_answers"),
        (run, "open_environments"),
        (drift, "read_system"),
        (drift, "open_encoder"),
        (spec, "SpecEnvironments"),
    ):
        monkeypatch.setattr(module, name, worked)
    (tmp_path / "file").write_text("")
    return tmp_path / "file" / "results"


MIX = {"mix": {"environments": {"a": {"env": {"index": "a"}}, "b": {"env": {"index": "b"}}}}}


@pytest.mark.parametrize(
    "command",
    [
        lambda place: write_drift({"a": place, "b": place}, DriftSettings(), place),
        lambda place: answer_questions(RunConfig(), None, place),
        lambda place: evaluate(RunConfig(), None, place),
        lambda place: list(evaluate_each(RunConfig.model_validate(MIX), None, place)),
        lambda place: evaluate_spec(
            SpecConfig.model_validate({"datasets": {"hpo": {"kind": "hpo"}}, "environments": {"bm25": {}}}), place
        ),
    ],
    ids=["drift", "answers", "eval", "eval of a mix", "eval of a plan"],
)
def test_it_is_told_first(command, nowhere):
    with refused(StorageError, "unwritable-folder", nowhere, nowhere.parent, "--output"):
        command(nowhere)
