"""A whole evaluation on a small synthetic environment, and what it refuses."""

import json
from csv import DictReader
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from querylect.configs.load import dump_config
from querylect.configs.schema import RunConfig
from querylect.data.beir import save_beir
from querylect.data.leakage import read_left_out
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, Step, StepResult
from querylect.errors import CheckpointError, ConfigError, DataError, EnvironmentUnavailableError
from querylect.eval import run as under_test
from querylect.eval.answering import Answered, Asking
from querylect.eval.leakage import (
    LEAKS,
    HeldOut,
    without_trained_by_run,
    without_trained_elsewhere,
    write_leaks_file,
)
from querylect.eval.placement import Placement
from querylect.eval.records import METRICS, read_records, records_of_trees
from querylect.eval.run import RunEnvironment, evaluate_systems, place_results
from querylect.eval.systems import System
from querylect.rewriters.base import Rewrite
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.rollouts.tree import Hit, Node, Tree

from ..evaluated import environment_info, evaluate
from ..raising import refused

pytestmark = pytest.mark.model

TERMS = {
    "anosmia": "loss of smell",
    "epistaxis": "bleeding nose",
    "alopecia": "hair falls out",
    "ataxia": "clumsy walk",
}
TEST = [Question(f"t{i:02}", f"{lay} {i}") for i, lay in enumerate(list(TERMS.values()) * 5)]
TRAIN = [Question("r00", "sore throat"), Question("r01", "itchy skin")]


class Toy(System):
    """A system that grows its trees with a function; `question_count` counts the questions."""

    metrics, depth = METRICS, 10

    def __init__(self, name, grow, turns=2, identity=""):
        self.name, self.grow, self.turns = name, grow, turns
        self.kind, self.question_count = identity, 0

    @property
    def asking(self):
        return Asking(self.turns, METRICS)

    def identity(self, environment):
        return {"toy": self.name, "kind": self.kind}

    def answer(self, pending, engine):
        for part in pending.parts():
            self.question_count += len(part)
            yield Answered(len(part), records_of_trees(self.name, self.grow(part)))


class Environment:
    """Answers as the environment client does: a query finds the term that it contains, at rank 1."""

    last_failure = "it is down"
    validation = ()

    def __init__(self, test=TEST, train=TRAIN, down=(), sets=None):
        self.test, self.train, self.down = list(test), list(train), set(down)
        self.sets = {"train": len(train), "test": len(test)} if sets is None else sets

    def info(self):
        return environment_info(splits=self.sets)

    def questions(self, split):
        return {"test": self.test, "train": self.train, "validation": self.validation}[split]

    def step(self, steps, with_text=False, metrics=()):
        return [self.answer(step.question_id, step.plan) for step in steps]

    def answer(self, question_id, plan):
        if question_id in self.down:
            return None
        query_text = " ".join(term.text for probe in plan.probes for term in probe.terms)
        question = next(question for question in (*self.test, *self.validation) if question.id == question_id)
        gold = next((term for term, lay in TERMS.items() if question.text.startswith(lay)), "")
        matches = [term for term in TERMS if term in query_text]
        score = float(bool(gold) and gold in matches)
        metrics = {"ndcg@10": score, "recall@10": score, "mrr@10": score}
        hits = [HitBody(id=term, score=1.0, title=term, text="") for term in matches]
        return StepResult(question_id=question_id, ranking=hits, reward=score, metrics=metrics)


def policy(environment, knows):
    """A system of two turns; its second turn has the right term for the first `knows` kinds of question."""

    def grow(questions):
        trees = []
        for question in questions:
            gold = next(term for term, lay in TERMS.items() if question.text.startswith(lay))
            right = list(TERMS).index(gold) < knows
            first, second = (
                turn(environment, question, n, text) for n, text in ((1, "hm"), (2, gold if right else "hm"))
            )
            first.children.append(second)
            trees.append(Tree(question, [first]))
        return trees

    return grow


def turn(environment, question, number, text):
    plan = SearchPlan.of(text)
    result = environment.answer(question.id, plan)
    ranking = [Hit(Document(hit.id, hit.id, ""), hit.score) for hit in result.ranking] if result else []
    rewrite = Rewrite(plan, "because", (text,))
    metrics = result.metrics if result else {}
    return Node(number, [0] * 9, [0] * 3, [], True, text, rewrite, ranking, metrics, result.reward if result else None)


def remote(**settings):
    quick = {"permutations": 500, "bootstrap": 200, **settings}
    return RunConfig.model_validate({"name": "toy", "client": {"urls": ["http://127.0.0.1:1"]}, "eval": quick})


def run(folder, environment=None, config=None, systems=None, **more):
    environment = environment or Environment()
    systems = systems or {"untrained": policy(environment, 1), "trained": policy(environment, 3)}
    toys = [Toy(name, grow) for name, grow in systems.items()]
    return evaluate_systems(RunEnvironment(config or remote(), environment), toys, folder, **more)


def test_an_evaluation_writes_records_results_and_report(tmp_path):
    report = run(tmp_path / "out")
    assert report == tmp_path / "out" / "report.html"
    assert sorted(path.name for path in report.parent.iterdir()) == [
        "cells", "comparisons.csv", "eval.jsonl", "report.html", "results.json", "scores.csv",
        "tables.md", "tables.tex",
    ]  # fmt: skip
    rows = read_records(report.parent / "eval.jsonl")
    assert len(rows) == 20 * (5 + 3)
    results = json.loads((report.parent / "results.json").read_text())
    means = {(row["system"], row["turn"]): row["metrics"]["ndcg@10"] for row in results["scores"]}
    assert means == {
        ("raw", 0): 0.0,
        ("first_titles", 0): 0.0,
        ("rm3", 0): 0.0,
        ("weighted_words", 0): 0.0,
        ("best_training_free", 0): 0.0,
        ("untrained", 1): 0.0,
        ("untrained", 2): 0.25,
        ("trained", 1): 0.0,
        ("trained", 2): 0.75,
    }
    decisive = next(
        row
        for row in results["comparisons"]
        if (row["system"], row["turn"]) == ("trained", 2) and row["against"] == "untrained"
    )
    assert (decisive["wins"], decisive["ties"], decisive["losses"]) == (10, 10, 0)
    assert decisive["p_holm"] < 0.05
    assert results["headline"] == (
        "At turn 2, the trained policy beats the untrained policy, the raw question and the best training-free "
        "baseline."
    )
    assert results["headline"] in report.read_text()
    scores = list(DictReader((report.parent / "scores.csv").open()))
    csv_means = {(row["system"], int(row["turn"])): float(row["mean"]) for row in scores if row["metric"] == "ndcg@10"}
    assert csv_means == means
    assert {row["dataset"] for row in scores} == {results["provenance"]["environment"]["name"]}
    tested = list(DictReader((report.parent / "comparisons.csv").open()))
    assert [float(row["p_holm"]) for row in tested] == [row["p_holm"] for row in results["comparisons"]]
    assert "Trained, turn 2 & \\textbf{0.750}$^{\\dagger}$$^{\\ddagger}$" in (report.parent / "tables.tex").read_text()
    assert results["provenance"]["environment"]["index_hash"] == "a" * 64


def test_a_stopped_evaluation_resumes_and_asks_nothing_twice(tmp_path):
    environment = Environment()
    answered = policy(environment, 3)

    def stops(questions):
        raise MemoryError("no room")

    toys = [Toy("untrained", policy(environment, 1)), Toy("trained", stops)]
    with pytest.raises(MemoryError):
        evaluate_systems(RunEnvironment(remote(), environment), toys, tmp_path)
    assert toys[0].question_count == 20
    assert not (tmp_path / "results.json").exists()
    again = [Toy("untrained", stops), Toy("trained", answered)]
    evaluate_systems(RunEnvironment(remote(), environment), again, tmp_path)
    assert (again[0].question_count, again[1].question_count) == (0, 20)
    uninterrupted = run(tmp_path / "whole", environment)

    def records(folder):
        return [replace(record, seconds=0.0) for record in read_records(folder / "eval.jsonl")]

    assert records(tmp_path) == records(uninterrupted.parent)
    changed = Toy("trained", answered, identity="other weights")
    evaluate_systems(RunEnvironment(remote(), environment), [again[0], changed], Placement(tmp_path, overwrite=True))
    assert changed.question_count == 20


def test_answers_of_another_version_are_not_reused(tmp_path, monkeypatch):
    environment = Environment()
    for version, expected in (("1", 20), ("1", 0), ("2", 20)):
        monkeypatch.setattr("querylect.eval.identity.__version__", version)
        toy = Toy("untrained", policy(environment, 1))
        evaluate_systems(RunEnvironment(remote(), environment), [toy], tmp_path)
        assert toy.question_count == expected


def test_answers_that_a_model_did_not_give_are_reported_as_such(tmp_path):
    environment = Environment()

    class Silent(Toy):
        def answer(self, pending, engine):
            lost, *remaining = pending.questions
            yield Answered(1, [], {(lost.id, 1, 0): "no reply"})
            yield Answered(len(remaining), records_of_trees(self.name, self.grow(remaining)))

    evaluate_systems(RunEnvironment(remote(), environment), [Silent("trained", policy(environment, 3))], tmp_path)
    results = json.loads((tmp_path / "results.json").read_text())
    (note,) = [note["text"] for note in results["notes"] if "never came" in note["text"]]
    assert note.startswith("trained in toy: 1 answers never came and are counted nowhere: no reply (1).")


def test_an_outage_on_some_questions_is_counted_and_not_scored_zero(tmp_path):
    for _ in range(2):  # nor does it stop the rerun, which asks these two again
        report = run(tmp_path, Environment(down=["t02", "t06"]))
        results = json.loads((report.parent / "results.json").read_text())
        last = results["scores"][-1]
        assert (last["n"], last["of"]) == (18, 20)
    assert last["metrics"]["ndcg@10"] == pytest.approx(13 / 18)
    assert "has a score for 18 of 20 questions" in report.read_text()


def test_an_outage_on_every_question_stops_and_writes_nothing(tmp_path):
    with refused(EnvironmentUnavailableError, 20):
        run(tmp_path / "out", Environment(down=[q.id for q in TEST]))
    assert not list((tmp_path / "out").glob("*.*"))


@pytest.mark.parametrize(
    ("leak", "criterion", "dropped"),
    [(Question("t03", "another text"), "id", "t03"), (Question("r09", f" {TEST[0].text.upper()}"), "text", "t00")],
)
def test_trained_questions_are_left_out_and_listed_by_id_and_by_text(tmp_path, leak, criterion, dropped):
    environment = Environment(train=[*TRAIN, leak])
    report = run(tmp_path / "out", environment)
    results = json.loads((report.parent / "results.json").read_text())
    question_ids = {record.question_id for record in read_records(report.parent / "eval.jsonl")}
    assert question_ids == {question.id for question in TEST} - {dropped}
    assert {row["n"] for row in results["scores"]} == {len(TEST) - 1}
    line, *near = (report.parent / "leaks.jsonl").read_text().splitlines()
    listed = json.loads(line)
    assert not any(json.loads(entry)["left_out"] for entry in near), "nearly the same questions are evaluated"
    assert (listed["split"], listed["_id"], listed["criterion"], listed["of"]["_id"]) == (
        "test", dropped, criterion, leak.id,
    )  # fmt: skip
    assert f"1 of {len(TEST)} test questions are left out" in report.read_text()


def test_near_duplicates_of_trained_questions_are_evaluated_and_listed(tmp_path):
    near = Question("r09", TEST[0].text + "s")
    report = run(tmp_path, Environment(train=[*TRAIN, near]))
    results = json.loads((report.parent / "results.json").read_text())
    assert {row["n"] for row in results["scores"]} == {len(TEST)}
    listed = [json.loads(line) for line in (report.parent / "leaks.jsonl").read_text().splitlines()]
    assert [(entry["_id"], entry["criterion"], entry["of"]["_id"], entry["left_out"]) for entry in listed] == [
        (TEST[0].id, "near", "r09", False)
    ]
    assert f"1 of {len(TEST)} test questions are nearly the same as a training question" in report.read_text()
    with refused(DataError, "train", "test"):
        run(tmp_path / "none", Environment(train=TEST))


def test_what_a_run_was_trained_on_in_another_environment_is_left_out(tmp_path):
    split = Split([Question("x", TEST[0].text.upper())], {"x": {"d": 1}})
    save_beir(Dataset("own", (Document("d", "", "x"),), {"train": split}), tmp_path / "own")
    trained = beir(str(tmp_path / "own"))
    held_out = without_trained_by_run(trained, remote(), "other", HeldOut(TEST))
    assert held_out.questions == TEST[1:]
    assert [leak.question for leak in held_out.leaks] == TEST[:1]
    assert without_trained_by_run(trained, trained, "own", HeldOut(TEST)).questions == TEST


def test_the_training_split_and_one_that_is_not_there_are_refused(tmp_path):
    config = remote()
    config = config.model_copy(update={"eval": config.eval.model_copy(update={"split": "train"})})
    with refused(ConfigError, "eval.split", "'train'"):
        run(tmp_path, config=config)
    with refused(ConfigError, "eval.split", "'train'"):
        evaluate(config, None, tmp_path)
    with refused(ConfigError, "'validation'"):
        run(tmp_path, config=remote(split="validation"))


def test_the_limit_draws_a_sample_and_every_page_says_so(tmp_path):
    page = run(tmp_path, config=remote(limit=3)).read_text()
    assert {row.question_id for row in read_records(tmp_path / "eval.jsonl")} == {"t04", "t17", "t19"}
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["samples"] == {"toy": {"size": 3, "of": 20, "seed": 0}}
    assert "3 of 20, drawn with seed 0" in page
    assert "3 of 20, drawn with seed 0" in (tmp_path / "tables.tex").read_text()


def beir_folder(folder):
    (folder / "qrels").mkdir(parents=True)
    documents = [{"_id": term, "title": f"Title of {term}", "text": TERMS[term]} for term in TERMS]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": q.id, "text": q.text}) + "\n" for q in TEST))
    judged = "".join(f"{q.id}\t{list(TERMS)[i % 4]}\t1\n" for i, q in enumerate(TEST))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return str(folder)


def beir(folder, **client):
    return RunConfig.model_validate(
        {
            "env": {"dataset": {"path": folder}, "index": f"{folder}/index"},
            "eval": {"permutations": 50, "bootstrap": 50},
            "client": client,
        }
    )


def test_a_local_environment_is_started_asked_and_stopped(tmp_path, monkeypatch):
    """Against the real service in its child process: a system that repeats the question scores what raw scores."""
    config = beir(beir_folder(tmp_path / "beir"))
    build_index(config.env)
    services, earlier_children = [], psutil.Process().children()

    class Repeating(Toy):
        def answer(self, pending, engine):
            services.extend(child for child in psutil.Process().children() if child not in earlier_children)
            self.grow = lambda questions: [repeat(pending.client, question) for question in questions]
            yield from super().answer(pending, engine)

    def systems(config, checkpoint, warm_start):
        assert (checkpoint, warm_start) == (None, None)
        return [Repeating("untrained", None, turns=1)]

    monkeypatch.setattr(under_test, "systems_of_run", systems)
    report = evaluate(config, None, tmp_path / "out")
    results = json.loads((report.parent / "results.json").read_text())
    raw, *_, untrained = results["scores"]
    assert raw["metrics"] == untrained["metrics"]
    assert raw["metrics"]["ndcg@10"] == 1.0
    assert (raw["n"], results["comparisons"][0]["p"]) == (20, 1.0)
    assert services
    assert not any(service.is_running() for service in services)


def repeat(client, question):
    plan = SearchPlan.of(question.text)
    (result,) = client.step([Step(question_id=question.id, plan=plan)], with_text=True, metrics=METRICS)
    ranking = [Hit(hit.document, hit.score) for hit in result.ranking]
    rewrite = Rewrite(plan, "", (question.text,))
    return Tree(question, [Node(1, [0], [0], [], True, "", rewrite, ranking, result.metrics, result.reward)])


def checkpoint(folder, name, marker="adapter_config.json"):
    (folder / name).mkdir(parents=True)
    (folder / name / marker).write_text("{}")
    (folder / name / "model.safetensors").write_text("")


def test_the_checkpoint_is_the_best_then_the_final_then_the_newest(tmp_path):
    checkpoint(tmp_path, "checkpoint-9")
    checkpoint(tmp_path, "checkpoint-10", "config.json")
    checkpoint(tmp_path, "checkpoint-11")
    (tmp_path / "checkpoint-11" / "model.safetensors").unlink()
    assert find_checkpoint(tmp_path).name == "checkpoint-10"
    checkpoint(tmp_path / "checkpoints", "final")
    assert find_checkpoint(tmp_path).name == "final"
    checkpoint(tmp_path, "best")
    assert find_checkpoint(tmp_path).name == "best"


def test_a_run_without_a_checkpoint_is_named(tmp_path):
    with refused(CheckpointError, tmp_path, "querylect train"):
        find_checkpoint(tmp_path)
    with refused(CheckpointError, tmp_path / "absent"):
        evaluate(remote(), Path(tmp_path / "absent"), None)


def test_another_evaluation_is_not_replaced_in_silence(tmp_path):
    run(tmp_path)
    original = (tmp_path / "results.json").read_bytes()
    run(tmp_path)
    again = json.loads((tmp_path / "results.json").read_text())
    original = json.loads(original)
    assert again["identity"] == original["identity"], "the same evaluation is written in place"
    figures = [[{**row, "seconds": 0} for row in results["scores"]] for results in (again, original)]
    assert figures[0] == figures[1], "the same seed gives the same results"
    assert again["comparisons"] == original["comparisons"]
    run(tmp_path, config=remote(permutations=50, bootstrap=60))  # what changes no answer
    environment = Environment()
    variants = {
        "limit": {"config": remote(limit=3)},
        "systems": {"systems": {"untrained": policy(environment, 1)}},
        "questions": {"environment": Environment(test=[*TEST[:-1], Question("t19", f"{TEST[19].text} really")])},
    }
    for name, more in variants.items():
        with refused(ConfigError, tmp_path / "results.json", "-o", "--overwrite"):
            run(tmp_path, **more)
        aside = run(Placement(tmp_path, aside=True), **more).parent
        assert aside.parent == tmp_path / "evaluations", name
    assert len(list((tmp_path / "evaluations").iterdir())) == len(variants)
    assert json.loads((tmp_path / "results.json").read_text())["identity"] == again["identity"]
    aside = run(Placement(tmp_path, aside=True), config=remote(limit=3)).parent
    assert aside.name.startswith("test-3-untrained-")
    assert len(list((tmp_path / "evaluations").iterdir())) == len(variants), "each has one place"
    run(Placement(tmp_path, overwrite=True), config=remote(limit=3))
    assert json.loads((tmp_path / "results.json").read_text())["scores"][0]["of"] == 3


def test_the_run_folder_is_for_the_settings_of_the_run(tmp_path):
    """The first evaluation of a run may be a quick look: it does not take the place of the run's own."""
    (tmp_path / "final").mkdir()
    (tmp_path / "final" / "config.json").write_text("{}")
    (tmp_path / "final" / "model.safetensors").touch()
    (tmp_path / "config.yaml").write_text(dump_config(remote(limit=9)))
    final = find_checkpoint(tmp_path)
    assert place_results(remote(limit=9, bootstrap=7), tmp_path, None, final, False).is_default
    for config in (
        remote(),
        remote(limit=9, turns=3),
        remote(limit=9, split="validation"),
    ):
        assert not place_results(config, tmp_path, None, final, False).is_default
    assert not place_results(
        remote(limit=9), tmp_path, None, tmp_path / "checkpoints" / "checkpoint-3", False
    ).is_default
    assert not place_results(remote(), tmp_path, tmp_path / "out", final, False).aside


def test_the_verdict_is_about_the_turn_that_is_used(tmp_path):
    folder = tmp_path / "run"
    (folder / "final").mkdir(parents=True)
    (folder / "config.yaml").write_text(dump_config(remote()))
    row = {"step": 9, "ndcg/turn1": 0.5, "ndcg/turn2": 0.4}
    (folder / "validation.jsonl").write_text(json.dumps(row))
    (folder / "metrics.jsonl").write_text('{"step": 8, "reward/turn1": 0.1}\n{"step": 9, "reward/turn1": 0.5}\n')
    assert "<h3>Reward</h3>" in run(folder, run=folder, checkpoint=folder / "final").read_text(), "its curves"
    results = json.loads((folder / "results.json").read_text())
    assert results["turn"] == 1
    assert results["headline"].startswith("At turn 1, the trained policy")
    (folder / "validation.jsonl").unlink()
    run(folder, run=folder, checkpoint=folder / "final")
    assert json.loads((folder / "results.json").read_text())["headline"].startswith("At turn 2, the trained policy")


def test_questions_that_another_member_of_a_mix_trains_on_are_left_out(tmp_path):
    """By text; equal ids of two members mean nothing. The listed ids are those of the dataset."""
    questions = [Question("1", "hair falls out"), Question("2", "clumsy walk"), Question("3", "bleeding nose")]
    peers = {
        "bm25": Environment(test=questions, train=questions),
        "dense": Environment(
            train=[Question("9", "Clumsy  WALK"), Question("1", "another"), Question("8", "bleeding nose!")]
        ),
        "none": Environment(train=[]),
    }
    held_out = without_trained_elsewhere("bm25", HeldOut(questions), "test", peers)
    assert [question.id for question in held_out.questions] == ["1", "3"]
    (leak,) = held_out.leaks
    assert (leak.criterion, leak.question.id, leak.other.id) == ("text", "2", "dense/9")
    assert [(near.question.id, near.other.id) for near in held_out.near] == [("3", "dense/8")]
    write_leaks_file(tmp_path, held_out.records())
    assert read_left_out(tmp_path / LEAKS) == {("test", "2"), ("test", "3")}
    with refused(DataError, "bm25 with dense"):
        without_trained_elsewhere("bm25", HeldOut(questions[1:2]), "test", peers)
