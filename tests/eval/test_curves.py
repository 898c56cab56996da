"""The page of training curves: grouping, means over seeds by hand, torn logs, and a page without external files."""

import base64
import re
from xml.etree import ElementTree

import pytest
from querylect.configs.load import dump_config, load_config
from querylect.configs.section import as_name
from querylect.errors import ConfigError, DataError
from querylect.eval.report.curves import (
    curves_of,
    draw_run,
    grouped,
    read_metrics,
    read_run,
    render_curves,
    write_curves,
)
from querylect.eval.report.figures import smooth

from ..jsonl import jsonl, write_jsonl
from ..raising import refused


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


ONE_CURVE = [{"step": step, "reward/turn1": step / 10} for step in (1, 2, 3)]
"""Where it does not matter what is drawn."""


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
    assert [(group.label, len(group.runs)) for group in groups] == [("tree-seed0 and 1 more", 2), ("flat", 1)]
    tree, flat = [curve for curve in curves_of(groups, "reward", "metrics") if curve.turn == 2]
    assert (tree.steps, tree.seeds) == ([1, 2], 2)
    assert tree.mean == pytest.approx([0.3, 0.3])
    assert (tree.low, tree.high) == ([0.2, 0.2], [0.4, 0.4])
    assert (flat.steps, flat.mean, flat.group) == ([1], [0.9], 1)
    (validated,) = curves_of(groups, "ndcg", "validation")
    assert (validated.steps, validated.mean, validated.seeds) == ([0, 2], [0.3, 0.5], 1)


def test_steps_divide_runs_only_where_the_learning_rate_depends_on_them(tmp_path):
    def groups(schedule):
        settings = ([f"seed={n}", f"train.steps={n + 4}", f"train.lr_schedule={schedule}"] for n in range(2))
        return grouped(
            [read_run(run(tmp_path / f"{schedule}-{run_settings[0]}", run_settings)) for run_settings in settings]
        )

    assert [len(group.runs) for group in groups("constant")] == [2]
    by_steps = groups("linear")
    assert [len(group.runs) for group in by_steps] == [1, 1]


def test_validation_is_drawn_by_the_metric_that_a_run_is_rewarded_by(several, tmp_path):
    recall_run = run(tmp_path / "recall", ["reward.metric=recall@100"])
    (recall_run / "validation.jsonl").write_text('{"step": 0, "ndcg/turn2": 0.9, "recall/turn2": 0.25}\n')
    page = render_curves([read_run(path) for path in (several[0], recall_run)], "now")
    titles = re.findall(r'alt="(Validation[^"]*)"', page)
    descriptions = [title.partition(": ")[2] for title in titles]
    assert descriptions == ["tree-seed0: turn 2 0.3 → 0.5.", "recall: turn 2 0.25 → 0.25."]
    assert ["mean ndcg@10" in images(page)[0], "mean recall@100" in images(page)[1]] == [True, True]


def test_a_figure_logged_once_a_step_and_one_logged_per_turn_are_told_apart(tmp_path):
    rows = [{"step": 1, "entropy": 9.0, "entropy/turn1": 1.0, "kl": 0.1, "kl_extra/turn1": 5.0}]
    groups = grouped([read_run(run(tmp_path / "one", rows=rows))])
    assert [(curve.turn, curve.mean) for curve in curves_of(groups, "entropy", "metrics")] == [(1, [1.0])]
    assert [(curve.turn, curve.mean) for curve in curves_of(groups, "kl", "metrics")] == [(0, [0.1])]
    assert curves_of(groups, "copy", "metrics") == []


def images(page):
    """The drawings of a page as SVG."""
    return [base64.b64decode(data).decode() for data in re.findall(r'src="data:image/svg\+xml;base64,([^"]*)"', page)]


def test_the_page_says_how_far_every_run_is(several):
    page = render_curves([read_run(path) for path in several], "now")
    rows = re.findall(r"<tr><th scope=\"row\">(.*?)</th>(.*?)</tr>", page)
    table = {name: re.findall(r"<td>(.*?)</td>", row) for name, row in rows}
    assert table["tree-seed0"] == ["0", "3 of 8", "0.500", "0.600", "0.500 at step 2", "4.0"]
    assert table["tree-seed1"] == ["1", "2 of 8, not finished", "0.500", "0.200", "–", "4.0"]


def test_the_page_stands_alone_and_is_well_formed(several, tmp_path):
    hostile = run(tmp_path / "<img src=x onerror=alert(1)>", ["seed=7", "train.learning_rate=0.5"])
    page = render_curves([read_run(path) for path in [*several, hostile]], "now")
    assert "<img src=x" not in page
    assert "&lt;img src=x" in page
    for address in re.findall(r'(?:src|href)="([^"]*)"', page):
        assert address.startswith("data:image/svg+xml;base64,")
    titles = re.findall(r'alt="([^:"]*)', page)
    assert titles == ["Validation, greedy", "Reward", "Entropy", "Time of a step"]
    for drawing in images(page):
        ElementTree.fromstring(drawing)
    assert "tree" in images(page)[1], "the legend"


def test_missing_and_null_values_are_left_out(tmp_path):
    rows = [{"step": step, "reward/turn1": 0.1, "reward/turn2": 0.2} for step in range(1, 6)]
    rows[2]["reward/turn1"] = None
    rows[3]["reward/turn1"] = float("nan")
    del rows[4]["reward/turn2"]
    loaded = read_run(run(tmp_path / "gaps", rows=rows))
    assert [drawing.title for drawing in draw_run(loaded.config, loaded.path)] == ["Reward"]


def test_smoothing_by_hand():
    assert smooth([1.0, 2.0, 6.0, 1.0], 3) == pytest.approx([1.5, 3.0, 3.0, 3.5])
    assert smooth([1.0, 5.0], 1) == [1.0, 5.0]


def test_metrics_of_a_resumed_run_count_the_last_line_of_a_step(tmp_path):
    rows = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 2.5}, {"step": 3, "loss": 3.0}]
    (tmp_path / "metrics.jsonl").write_text(jsonl(rows) + '{"step": 4, "lo')
    assert [row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1.0, 2.5, 3.0]


def test_where_the_page_goes(tmp_path):
    first, second = (run(tmp_path / name, rows=ONE_CURVE) for name in ("one", "other"))
    assert write_curves([first, second], None) == tmp_path / "training.html"
    assert write_curves([first, second], tmp_path / "x" / "both.html").read_text().startswith("<!DOCTYPE html>")
    assert write_curves([first, first], None) == first / "training.html"


def test_what_is_no_run_and_a_run_without_a_step_are_told(tmp_path):
    with refused(ConfigError, tmp_path / "nothing", "config.yaml"):
        write_curves([tmp_path / "nothing"], None)
    started = run(tmp_path / "begun")
    (started / "metrics.jsonl").write_text('{"step": 1, "rew')
    with refused(DataError, started):
        write_curves([started], None)
