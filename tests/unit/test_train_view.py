"""The view of a run: a panel drawn into a captured terminal, a notebook cell, and lines of the log."""

import io
import logging
import re
import sys
from types import ModuleType, SimpleNamespace

import pytest
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree
from querylect.train.view import LineView, LiveView, NotebookView, clock, open_view, sparkline
from rich.console import Console

HOSTILE = "head\x1b[2Jache [red]x[/red]\x07 \u202e right"


def node(turn, rewrite, reward, children=()):
    parsed = (
        Rewrite(SearchPlan.of(rewrite), rewrites=(rewrite,)) if rewrite else Rewrite(None, failure="no rewrite tag")
    )
    return Node(turn, [1], [2], [-0.5], True, "", parsed, reward=reward, children=list(children))


TREE = Tree(Question("q", HOSTILE), [node(1, "triptan", 0.75, [node(2, None, 0.0)]), node(1, "never shown", 0.1)])


def record(step, reward=0.5, **more):
    figures = {f"{name}/turn{turn}": value for name, value in (("format", 0.9), ("copy", 0.25)) for turn in (1, 2)}
    return {"step": step, "reward/turn1": reward, "reward/turn2": reward / 2, "seconds/step": 10.0, **figures, **more}


@pytest.fixture
def screen():
    """A live view on a terminal of 110 columns, and a function that returns its current text."""
    console = Console(file=io.StringIO(), force_terminal=True, width=110, height=40, color_system=None)
    view = LiveView("demo · hpo-bm25", console)

    def render():
        page = io.StringIO()
        Console(file=page, force_terminal=True, width=110, color_system=None).print(view.draw())
        return page.getvalue()

    yield view, render
    view.close()


def test_the_panel_shows_pace_turns_and_the_latest_rewrite(screen):
    view, render = screen
    view.begin(10, 200)
    assert "step 10/200" in render()
    assert "? left" in render()
    view.step(record(11, 0.4), TREE)
    view.step(record(12, 0.8, **{"entropy/turn1": 1.25}), None)
    text = render()
    assert "demo · hpo-bm25" in text
    assert "step 12/200" in text
    assert "10.0 s/step" in text
    assert "31:20 left" in text, "188 steps of ten seconds"
    first, second = (next(line for line in text.splitlines() if f"turn {turn} " in line) for turn in (1, 2))
    assert re.search(r"0\.800\s+▁█\s+90%\s+–\s+1\.25 nats\s+–\s+25%", first)
    assert re.search(r"0\.400\s+▁█\s+90%", second)
    assert "triptan" in text
    assert "0.750" in text
    assert "(no rewrite tag)" in text
    assert "never shown" not in text


def test_what_a_model_or_a_user_wrote_moves_no_cursor_and_is_no_markup(screen):
    view, render = screen
    view.begin(0, 5)
    view.step(record(1), TREE)
    text = render()
    assert "[red]x[/red]" in text
    assert not set(text) & {"\x1b", "\x07", "\u202e"}


def test_warnings_stay_in_view_and_are_logged(screen, caplog):
    view, render = screen
    view.begin(0, 5)
    with caplog.at_level(logging.WARNING):
        for number in range(5):
            view.warn(f"step {number}: the reward fell")
    assert "! step 4: the reward fell" in render()
    assert "step 0:" not in render()
    assert "step 0: the reward fell" in caplog.text


def test_a_log_file_gets_one_line_per_step(caplog):
    view = LineView()
    view.begin(0, 3)
    with caplog.at_level(logging.INFO):
        view.step(record(1), TREE)
        view.validated({"step": 1, "questions": 20, "reward/turn1": 0.25, "reward/turn2": 0.5})
    assert caplog.messages == [
        "step 1/3  turn 1 reward 0.500  turn 2 reward 0.250  10.0 s  left 0:20",
        "validation at step 1: turn 1 reward 0.250  turn 2 reward 0.500  (20 questions)",
    ]


@pytest.mark.parametrize(("terminal", "kind"), [(True, LiveView), (False, LineView)])
def test_the_live_view_is_for_terminals(monkeypatch, terminal, kind):
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert isinstance(open_view("demo"), kind)


def test_sparklines_and_clocks_by_hand():
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([0.3, 0.3]) == "▄▄"
    assert len(sparkline([float(n) for n in range(1000)])) == 32
    assert (clock(59.6), clock(85), clock(3725)) == ("1:00", "1:25", "1:02:05")


@pytest.mark.parametrize(("iterations", "logged"), [(1, [1, 10, 20, 30]), (2, [1, 11, 21, 31]), (3, [1, 10, 22, 31])])
def test_tables_of_trees_come_as_often_where_a_rollout_serves_several_steps(iterations, logged):
    """Only a step that sampled has trees: every tenth step may never be one."""
    from querylect.train.watch import Watcher

    watcher, steps = Watcher(None, None, None, None, None), []
    for step in range(1, 40, iterations):
        if watcher._table_is_due(step, 10):
            steps.append(step)
            watcher._table_step = step
    assert steps == logged
    assert not any(watcher._table_is_due(step, 0) for step in range(1, 40))


@pytest.fixture
def cell(monkeypatch):
    """The pages that a notebook's cell has shown, as HTML; IPython is a double."""
    pages: list[str] = []
    handle = SimpleNamespace(update=pages.append)

    def display(page, display_id):
        assert display_id
        pages.append(page)
        return handle

    ipython, part = ModuleType("IPython"), ModuleType("IPython.display")
    part.HTML, part.display = str, display
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", part)
    return pages


def test_a_notebook_shows_rewrites_and_rewards_of_the_latest_steps(cell):
    view = open_view("demo · <b>hpo</b>")
    assert isinstance(view, NotebookView)
    view.begin(0, 9)
    assert "the first rollout is under way" in cell[-1]
    view.step(record(1), TREE)
    later_tree = Tree(Question("q2", "<i>too much sugar</i>"), [node(1, "insulin", 1.0)])
    view.step(record(2, 0.75), later_tree)
    page = cell[-1]
    for part in ("step 2/9", "triptan", "0.750", "insulin", "1.000", "&lt;i&gt;too much sugar", "&lt;b&gt;hpo"):
        assert part in page
    assert page.index("insulin") < page.index("triptan"), "the latest first"
    assert "<i>" not in page
    assert "\x1b" not in page
    view.validated({"step": 2, "questions": 3, "reward/turn1": 0.5})
    assert "validation at step 2" in cell[-1]
    view.close()
    assert len(cell) == 5


def test_a_notebook_forgets_old_steps(cell):
    view = open_view("demo")
    view.begin(0, 99)
    for step in range(1, 20):
        view.step(record(step), Tree(Question("q", f"question {step:02}"), [node(1, "insulin", 1.0)]))
    assert [f"question {step:02}" in cell[-1] for step in (13, 14, 19)] == [False, True, True]
