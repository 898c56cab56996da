"""The page of training curves: grouping, means over seeds by hand, torn logs, and a page without external files."""

import base64
import re
from xml.etree import ElementTree

import pytest
from querylect.configs.load import dump_config, load_config
from querylect.configs.section import as_name
from querylect.errors import ConfigError, DataError
from querylect.eval.curves import curve_of, draw_run, grouped, progress, read_run, write_report
from querylect.eval.records import RECORDS, TRAINED, write_records
from querylect.eval.table import Arm
from querylect.eval.text import write_results

from ..jsonl import jsonl, write_jsonl
from ..raising import refused
from .test_table import RAW, evaluated, record


def run(folder, overrides=(), rewards=(0.1, 0.2, 0.3), validation=(), torn="", finished=True, rows=None):
    """A run folder with rewards of turn 2 by step."""
    folder.mkdir(parents=True)
    settings = [f"name={as_name(folder.name)}", "train.steps=8", *overrides]
    (folder / "config.yaml").write_text(dump_config(load_config("hpo", settings)))
    rows = rows or [
        {"step": step, "reward/turn1": 0.5, "reward/turn2": value, "entropy": 2.0, "seconds/step": 4.0}
        for step, value in enumerate(rewards, start=1)
    ]
    (folder / "metrics.jsonl").write_text(jsonl(rows) + torn)
    if validation:
        lines = [{"step": step, "ndcg/turn2": value} for step, value in validation]
        write_jsonl(folder / "validation.jsonl", *lines)
    if finished:
        (folder / "final").mkdir()
    return folder


@pytest.fixture
def several(tmp_path):
    """Two seeds of one configuration, one of them unfinished, and another configuration."""
    return [
        run(tmp_path / "tree-seed0", ["seed=0"], rewards=[0.2, 0.4, 0.6], validation=[(0, 0.3), (2, 0.5)]),
        run(tmp_path / "tree-seed1", ["seed=1"], [0.4, 0.2], torn='{"step": 3, "reward/tu', finished=False),
        run(tmp_path / "flat", ["train.credit=trajectory", "rollout.branching=[16,1]"], rewards=[0.9]),
    ]


def test_seeds_of_one_configuration_are_averaged_where_all_of_them_are(several):
    groups = grouped([read_run(path) for path in several])
    assert {label: len(runs) for label, runs in groups.items()} == {"tree-seed0 and 1 more": 2, "flat": 1}
    tree, flat = ([run.metrics for run in runs] for runs in groups.values())
    curve = curve_of(tree, "reward/turn2")
    assert list(curve.index) == [1, 2]
    assert list(curve["mean"]) == pytest.approx([0.3, 0.3])
    assert (list(curve["low"]), list(curve["high"])) == ([0.2, 0.2], [0.4, 0.4])
    assert list(curve_of(flat, "reward/turn2")["mean"]) == [0.9]
    validated = curve_of([run.validation for run in groups["tree-seed0 and 1 more"]], "ndcg/turn2")
    assert validated["mean"].to_dict() == {0: 0.3, 2: 0.5}, "of the one seed that was validated"


def test_steps_divide_runs_only_where_the_learning_rate_depends_on_them(tmp_path):
    def groups(schedule):
        settings = ([f"seed={n}", f"train.steps={n + 4}", f"train.lr_schedule={schedule}"] for n in range(2))
        runs = [read_run(run(tmp_path / f"{schedule}-{each[0]}", each)) for each in settings]
        return [len(members) for members in grouped(runs).values()]

    assert (groups("constant"), groups("linear")) == ([2], [1, 1])


def page_of(*paths, output):
    return write_report(paths, output / "page.html").read_text()


def images(page):
    """The drawings of a page as SVG."""
    return [base64.b64decode(data).decode() for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)]


def test_validation_is_drawn_by_the_metric_that_a_run_is_rewarded_by(several, tmp_path):
    recall_run = run(tmp_path / "recall", ["reward.metric=recall@100"])
    (recall_run / "validation.jsonl").write_text('{"step": 0, "ndcg/turn2": 0.9, "recall/turn2": 0.25}\n')
    page = page_of(several[0], recall_run, output=tmp_path)
    descriptions = re.findall(r'alt="Validation[^:"]*: ([^"]*)"', page)
    assert descriptions == ["tree-seed0 turn 2 0.3 → 0.5.", "recall turn 2 0.25 → 0.25."]
    assert ["mean ndcg@10" in images(page)[0], "mean recall@100" in images(page)[1]] == [True, True]


def test_the_table_says_how_far_every_run_is(several):
    table = progress([read_run(path) for path in several]).set_index("run")
    assert list(table.loc["tree-seed0"]) == ["0", "3 of 8", "0.500", "0.600", "0.500 at step 2", "4.0"]
    assert list(table.loc["tree-seed1"]) == ["1", "2 of 8, not finished", "0.500", "0.200", "–", "4.0"]


def test_the_page_stands_alone_and_has_the_verdict_of_every_evaluated_run(several, tmp_path):
    hostile = run(tmp_path / "<img src=x onerror=alert(1)>", ["seed=7", "train.learning_rate=0.5"])
    results = evaluated([record(RAW, "q", 0.25)])
    results.headline = "the policy beats nothing"
    write_results(several[0], results)
    page = page_of(*several, hostile, output=tmp_path)
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    assert results.headline in page
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith("data:image/svg+xml;base64,")
    assert re.findall(r'alt="([^:"]*)', page) == ["Validation, greedy", "Reward", "Entropy", "Time of a step"]
    for drawing in images(page):
        ElementTree.fromstring(drawing)
    assert "tree" in images(page)[1], "the legend"


def test_policies_of_two_runs_stand_side_by_side(several, tmp_path):
    for path, words, score in zip(several[1:], ("boat ship", "boat OR ship"), (0.25, 0.75), strict=True):
        records = [record(Arm(TRAINED, 2), f"q{i:02}", score, rewrites=(words,)) for i in range(23)]
        records += [record(Arm(TRAINED, 2), "q23", score if score < 0.5 else None)]
        records += [record(RAW, f"q{i:02}", 0.1) for i in range(23)]
        write_results(path, evaluated(records))
        write_records(path / RECORDS, records)
    page = page_of(*several, output=tmp_path)
    assert "12 of 23 common questions" in page
    assert re.findall(r"<q>(.*?)</q>", page) == ["boat ship", "boat OR ship"] * 12
    assert "+0.500" in page


def test_missing_and_null_values_are_left_out_and_turns_told_apart(tmp_path):
    rows = [{"step": step, "reward/turn1": 0.1, "reward/turn2": 0.2, "kl": 0.1} for step in range(1, 6)]
    rows[2]["reward/turn1"] = None
    rows[3]["reward/turn1"] = float("nan")
    del rows[4]["reward/turn2"]
    rows[0]["kl_extra/turn1"] = 5.0
    drawings = {drawing.title: drawing.caption for drawing in draw_run(run(tmp_path / "gaps", rows=rows))}
    assert drawings == {"Reward": "turn 1 0.1 → 0.1, turn 2 0.2 → 0.2.", "Distance to the reference": "0.1 → 0.1."}


def test_what_is_no_run_and_a_run_without_a_step_are_told(tmp_path):
    with refused(ConfigError, tmp_path / "nothing", "config.yaml"):
        write_report([tmp_path / "nothing"], None)
    started = run(tmp_path / "begun")
    (started / "metrics.jsonl").write_text('{"step": 1, "rew')
    with refused(DataError, started):
        write_report([started], None)
