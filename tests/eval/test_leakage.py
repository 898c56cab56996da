"""Questions that a policy was trained on are found by id and words in its own environment, by words elsewhere."""

import json
from types import SimpleNamespace

import pytest
from querylect.configs.environment import DatasetConfig
from querylect.configs.evaluation import SpecConfig
from querylect.configs.schema import RunConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.errors import DataError
from querylect.eval.environments import SpecEnvironments
from querylect.eval.leakage import LEAKS, TrainedQuestions, write_leaks_file

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


@pytest.fixture
def trained_questions():
    spec = SpecConfig.model_validate(
        {"datasets": {"toy": None}, "environments": {"x": {"urls": {"toy": ["http://one"]}}}}
    )
    return TrainedQuestions(SpecEnvironments(spec), "test")


@pytest.mark.parametrize(
    ("leak", "criterion", "dropped"),
    [(Question("t3", "another text"), "id", "t3"), (Question("r9", "Smelling  PROBLEM"), "text", "t0")],
)
def test_in_the_environment_of_the_training_by_id_and_by_words(trained_questions, tmp_path, leak, criterion, dropped):
    assert trained_questions.find(system(), environment([*TRAIN, leak])) == {dropped}
    write_leaks_file(tmp_path, trained_questions.records)
    (listed,) = (json.loads(line) for line in (tmp_path / LEAKS).read_text().splitlines())
    assert (listed["_id"], listed["criterion"], listed["of"]["_id"], listed["left_out"]) == (
        dropped, criterion, leak.id, True,
    )  # fmt: skip
    assert (listed["dataset"], listed["system"]) == ("toy", "trained")
    write_leaks_file(tmp_path, [])
    assert not (tmp_path / LEAKS).exists()


def test_near_duplicates_are_evaluated_and_listed(trained_questions, tmp_path):
    near = environment([*TRAIN, Question("r9", "smelling problems")])
    for _ in range(2):
        assert trained_questions.find(system(), near) == set()
    write_leaks_file(tmp_path, trained_questions.records)
    (listed,) = (json.loads(line) for line in (tmp_path / LEAKS).read_text().splitlines())
    assert (listed["split"], listed["_id"], listed["left_out"]) == ("test", "t0", False)
    (note,) = trained_questions.notes
    assert "1 questions of test are nearly the same" in note


def test_elsewhere_only_words_count(trained_questions, tmp_path):
    """Equal ids of two collections mean nothing."""
    split = Split([Question("t3", "another"), Question("x", TEST[1].text.upper())], {"x": {"d": 1}, "t3": {"d": 1}})
    save_beir(Dataset("own", (Document("d", "", "x"),), {"train": split}), tmp_path / "own")
    source = DatasetConfig(path=str(tmp_path / "own"))
    run = system(env={"dataset": source.model_dump()}, client={"urls": "local"})
    assert trained_questions.find(run, environment()) == {"t1"}
    gone = system(env={"dataset": {"path": str(tmp_path / "gone")}}, client={"urls": "local"})
    assert trained_questions.find(gone, environment()) == set()
    assert trained_questions.find(system(), environment(urls=["http://other"])) == set()
    peers = [environment([Question("t0", "another"), Question("x", "walking problem")])]
    assert trained_questions.find(system(), environment(urls=["http://other"]), peers) == {"t2"}, "a member of a mix"
    assert all("could not be compared" in note for note in trained_questions.notes)
    assert len(trained_questions.notes) == 2


def test_a_system_that_was_trained_on_most_of_a_dataset_is_refused(trained_questions):
    with refused(DataError, "trained", "toy", "3 of 4", LEAKS):
        trained_questions.find(system(), environment([*TRAIN, *TEST[:3]]))
