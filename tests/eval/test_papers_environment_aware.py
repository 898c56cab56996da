"""The paper that is an evaluation: its cells, one model for all prompted systems, figures beside the paper's."""

import json
import re

import pytest
from querylect.cli import main
from querylect.configs.evaluation import chosen_cells, load_spec, prompted_by
from querylect.configs.paper import ENVIRONMENT_AWARE
from querylect.data.published import published
from querylect.errors import ConfigError
from querylect.eval.paper import results_page
from querylect.eval.results import EvalResults
from querylect.eval.summary import table_spec
from querylect.eval.table import Arm, Note, frame_of, tabulate
from querylect.eval.tasks.reader import reader_name

from ..chat_server import ChatServer, serving
from ..raising import refused
from .test_table import RAW, record

pytestmark = pytest.mark.model


def test_every_figure_has_its_dataset_and_retriever_in_the_spec():
    spec = load_spec(ENVIRONMENT_AWARE)
    for figure in published(ENVIRONMENT_AWARE).figures:
        dataset = figure.task.partition("/")[0]
        assert dataset in (spec.environments[figure.generator].datasets or spec.datasets)
        assert figure.metric == spec.metrics[0]


def test_cells_are_chosen_by_name():
    spec = load_spec(ENVIRONMENT_AWARE)
    chosen = chosen_cells(spec, ["scifact"])
    assert (list(chosen.datasets), list(chosen.environments), chosen.parts) == (["scifact"], ["contriever"], [])
    selected = chosen_cells(spec, ["scifact"], ["bm25", "minilm"])
    assert [environment.datasets for environment in selected.environments.values()] == [None, None]
    assert selected.systems["direct"].environments == ["bm25"]
    assert list(chosen_cells(spec, [], ["minilm"]).systems) == ["general"], "the others have no prompt for MiniLM"
    with refused(ConfigError, "explore"):
        chosen_cells(spec, [], ["minilm"], ["explore"])
    assert list(chosen_cells(spec, [], [], ["explore"]).systems) == ["explore"]
    for names in ((["scifcat"], [], []), ([], ["bm52"], []), ([], [], ["explor"])):
        with refused(ConfigError, *(repr(name) for part in names for name in part)):
            chosen_cells(spec, *names)


def test_a_model_is_that_of_every_system_without_its_own():
    spec = load_spec(ENVIRONMENT_AWARE, ["systems.explore.run=runs/x"])
    prompted = prompted_by(spec, "org/m", "http://h/v1")
    assert {name: system.llm and system.llm.model for name, system in prompted.systems.items()} == {
        "general": "org/m", "direct": "org/m", "explore": None,
    }  # fmt: skip
    assert prompted_by(spec, None, None) == spec
    with refused(ConfigError, "http://h/v1", "--reader"):
        prompted_by(spec, None, "http://h/v1")


def test_the_page_has_our_rows_and_the_papers_by_retriever():
    spec = load_spec(ENVIRONMENT_AWARE, ["bootstrap=50", "permutations=50"])
    spec = chosen_cells(spec, ["ragbench", "scifact"], [], ["general"])
    parts = {"covidqa/1": 0.5, "covidqa/2": 0.25, "techqa/1": None, "techqa/2": 1.0}
    rows = [
        record(RAW, name, parts[name], "ragbench", environment) for environment in spec.environments for name in parts
    ]
    rows += [record(Arm("general", turn), name, 0.75, "ragbench") for turn in (1, 2) for name in parts]
    rows.append(record(RAW, "1", 0.125, "scifact", "contriever"))
    frame = frame_of(rows, {"ragbench": list(parts), "scifact": ["1"]}, spec.metrics, parts=["ragbench"])
    table = tabulate(frame, table_spec(spec))
    results = EvalResults(
        name="x", split="test", metrics=list(spec.metrics), scores=table.scores, comparisons=table.comparisons,
        notes=[Note("x", 1, "a note")],
    )  # fmt: skip
    page = re.sub(" +", " ", results_page(spec, results, published(ENVIRONMENT_AWARE)))
    assert "Models: general: Qwen/Qwen3-8B." in page
    bm25 = page.partition("## ragbench: ndcg@10, bm25")[2].partition("## ")[0].strip().splitlines()
    assert bm25[0] == "| | system | covidqa | techqa | average |"
    assert bm25[2:] == [
        "| here | raw question | 37.5 (2) | 100.0 (1) | 68.8 (3) |",
        "| here | general, turn 1 | 75.0 (2) | 75.0 (2) | 75.0 (4) |",
        "| here | general, turn 2 | 75.0 (2) | 75.0 (2) | 75.0 (4) |",
        "| paper | raw question | 30.8 | 44 | 45 |",
        "| paper | general | 37.6 | 49.7 | 53.1 |",
        "| paper | direct | 40.2 | 50.1 | 56.2 |",
        "| paper | explore | 40.5 | 53.7 | 56.9 |",
    ]
    scifact = page.partition("## scifact: ndcg@10, contriever")[2]
    assert "| here | raw question | 12.5 (1) |" in scifact
    assert "| paper | trained | 64.54 |" in scifact
    assert "- a note" in page


def test_the_command_asks_one_endpoint_and_n_is_equal_for_all_systems(lessons, lesson_url, run_app, tmp_path, capsys):
    server = ChatServer(lambda body: "<think>so</think><rewrite>triptan aspirin</rewrite>")
    server.always = lambda body: "cut"
    changes = [
        f"datasets.scifact.path={lessons.dataset.path}",
        f"environments.bm25.urls={{scifact: ['{lesson_url}']}}",
        "permutations=50",
        "bootstrap=50",
        f"output={tmp_path}",
    ]
    flags = ["--task", "scifact", "--environment", "bm25", "--limit", "4"]
    with serving(run_app, server) as url, pytest.raises(SystemExit) as ended:
        main(["paper", ENVIRONMENT_AWARE, *changes, *flags, "--reader", "org/m", "--endpoint", url])
    assert not ended.value.code
    page = tmp_path / f"{load_spec(ENVIRONMENT_AWARE, []).name}-{reader_name('org/m')}" / "results.md"
    assert capsys.readouterr().out.strip() == str(page)
    rows = [line for line in page.read_text().splitlines() if line.startswith("| here")]
    assert [row.split(" | ")[1].strip() for row in rows] == [
        "raw question", "general, turn 1", "general, turn 2", "direct, turn 1", "direct, turn 2", "explore",
    ]  # fmt: skip
    assert all("(4)" in row for row in rows)
    assert "- direct, turn 2 on scifact in bm25: 100.0% of its answers were cut" in page.read_text()
    assert {body["model"] for body in server.bodies} == {"org/m"}
    assert json.loads((page.parent / "results.json").read_text())["failed"] == []
    assert (page.parent / "tables.tex").is_file()
