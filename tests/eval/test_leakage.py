"""Questions that a policy was trained on are found by id and words in its own environment, by words elsewhere."""

from types import SimpleNamespace

import pytest
from querylect.configs.environment import DatasetConfig
from querylect.configs.evaluation import SpecConfig
from querylect.configs.schema import RunConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError
from querylect.eval.environments import SpecEnvironments
from querylect.eval.leakage import trained_questions

from ..raising import refused

TEST = [Question(f"t{i}", f"{word} problem") for i, word in enumerate(("smelling", "bleeding", "walking", "falling"))]
TRAIN = [Question("r0", "sore throat")]


def system(**env):
    run = RunConfig.model_validate({"client": {"urls": ["http://one"]}, **env})
    return SimpleNamespace(name="trained", training_environments=[run])


def environment(train=TRAIN, urls=("http://one",), dataset=None):
    return SimpleNamespace(
        dataset="toy", questions=TEST, train=list(train),
        client_config=SimpleNamespace(urls=list(urls)), env=SimpleNamespace(dataset=dataset),
    )  # fmt: skip


def found(system, environment, peers=()):
    values = {"datasets": {"toy": None}, "environments": {"x": {"urls": {"toy": ["http://one"]}}}}
    ids, notes = trained_questions(system, environment, SpecEnvironments(SpecConfig.model_validate(values)), peers)
    return set(ids), len(notes)


@pytest.mark.parametrize(
    ("leak", "dropped"), [(Question("t3", "another text"), "t3"), (Question("r9", "Smelling  PROBLEM"), "t0")]
)
def test_in_the_environment_of_the_training_by_id_and_by_words(leak, dropped):
    assert found(system(), environment([*TRAIN, leak])) == ({dropped}, 0)


def test_elsewhere_only_words_count(tmp_path):
    """Equal ids of two collections mean nothing."""
    split = Split([Question("t3", "another"), Question("x", TEST[1].text.upper())], {"x": {"d": 1}, "t3": {"d": 1}})
    save_beir(Dataset("own", (Document("d", "", "x"),), {"train": split}), tmp_path / "own")
    source = DatasetConfig(path=str(tmp_path / "own"))
    run = system(env={"dataset": source.model_dump()}, client={"urls": "local"})
    assert found(run, environment()) == ({"t1"}, 0)
    gone = system(env={"dataset": {"path": str(tmp_path / "gone")}}, client={"urls": "local"})
    assert found(gone, environment()) == (set(), 1)
    assert found(system(), environment(urls=["http://other"])) == (set(), 1)
    peers = [environment([Question("t0", "another"), Question("x", "walking problem")])]
    assert found(system(), environment(urls=["http://other"]), peers) == ({"t2"}, 0), "a member of a mix"


def test_a_system_that_was_trained_on_most_of_a_dataset_is_refused():
    with refused(DataError, "trained", "toy", "3 of 4"):
        found(system(), environment([*TRAIN, *TEST[:3]]))
