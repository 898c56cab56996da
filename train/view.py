"""Progress display of a run: a live view in a terminal or a notebook, one log line per step elsewhere.

Model output is shown as plain text: control characters are removed and markup is not interpreted.
"""

import io
import logging
import sys
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ..rollouts.tree import Node, Tree
from ..rollouts.turns import ValidationRecord
from .metrics import turns_of

log = logging.getLogger(__name__)

BLOCKS = "▁▂▃▄▅▆▇█"
POINTS = 32
"""Width of a sparkline in characters."""
TIMED_STEPS = 20
"""Number of recent steps that the remaining time is estimated from."""
NOTEBOOK_WIDTH = 120
"""Width of the panel in a notebook in characters."""
NOTEBOOK_STEPS = 6
"""Number of recent steps whose rewrites a notebook shows."""
WARNINGS = 3
"""Number of recent warnings in view; the log has them all."""


class _Pace:
    """Progress and estimated remaining time."""

    def __init__(self) -> None:
        self.done = self.total = 0
        self._seconds: deque[float] = deque(maxlen=TIMED_STEPS)

    def take(self, record: Mapping[str, float]) -> None:
        self.done = int(record["step"])
        self._seconds.append(record["seconds/step"])

    @property
    def left(self) -> str:
        """Remaining time as h:mm:ss or m:ss; "?" before the first step."""
        if not self._seconds:
            return "?"
        return clock(sum(self._seconds) / len(self._seconds) * (self.total - self.done))


class LineView:
    """One line of the log per step."""

    def __init__(self) -> None:
        self._pace = _Pace()

    def begin(self, done: int, total: int) -> None:
        """Note where the run starts."""
        self._pace.done, self._pace.total = done, total

    def step(self, record: Mapping[str, float], tree: Tree | None) -> None:
        """Log reward per turn, seconds and remaining time."""
        pace = self._pace
        pace.take(record)
        rewards = "  ".join(f"turn {turn} reward {record[key]:.3f}" for turn, key in turns_of(record, "reward"))
        line = f"{rewards}  {record['seconds/step']:.1f} s  left {pace.left}"
        log.info("step %d/%d  %s", pace.done, pace.total, line)

    def validated(self, record: ValidationRecord) -> None:
        log.info("%s", validation_line(record))

    def warn(self, text: str) -> None:
        log.warning("%s", text)

    def close(self) -> None:
        """Does nothing: there is no view to close."""


class _Panel(LineView):
    """A panel: per turn reward with its curve, lengths and format; pace; the rewrites of the latest steps."""

    def __init__(self, title: str, steps: int = 1) -> None:
        super().__init__()
        self._title = title
        self._started = time.monotonic()
        self._record: Mapping[str, float] = {}
        self._rewards: dict[int, list[float]] = {}
        self._trees: deque[Tree] = deque(maxlen=steps)
        self._validated: ValidationRecord | None = None
        self._warnings: deque[str] = deque(maxlen=WARNINGS)

    def step(self, record: Mapping[str, float], tree: Tree | None) -> None:
        self._pace.take(record)
        self._record = record
        if tree is not None:
            self._trees.append(tree)
        for turn, key in turns_of(record, "reward"):
            self._rewards.setdefault(turn, []).append(record[key])
        log.debug("step %d/%d", self._pace.done, self._pace.total)

    def validated(self, record: ValidationRecord) -> None:
        self._validated = record
        super().validated(record)

    def warn(self, text: str) -> None:
        """Log a warning above the panel and keep it in view."""
        self._warnings.append(text)
        super().warn(text)

    def draw(self) -> RenderableType:
        rows: list[RenderableType] = [self._pace_line()]
        if self._record:
            rows.append(self._turns())
        else:
            rows.append(Text("the first rollout is under way …", style="dim"))
        if self._validated is not None:
            rows.append(Text(validation_line(self._validated), style="cyan", no_wrap=True, overflow="ellipsis"))
        rows += [self._rewrites(tree) for tree in reversed(self._trees)]
        rows += [Text(f"! {printable(text)}", style="bold yellow") for text in self._warnings]
        return Panel(Group(*rows), title=Text(printable(self._title)), title_align="left", border_style="dim")

    def _pace_line(self) -> RenderableType:
        line = Table.grid(padding=(0, 2))
        pace, elapsed = self._pace, clock(time.monotonic() - self._started)
        speed = f"{self._record['seconds/step']:.1f} s/step" if self._record else ""
        line.add_row(
            Text(f"step {pace.done}/{pace.total}", style="bold"),
            ProgressBar(total=max(1, pace.total), completed=pace.done, width=24),
            Text(speed),
            Text(f"{elapsed} elapsed", style="dim"),
            Text(f"{pace.left} left"),
        )
        return line

    def _turns(self) -> RenderableType:
        table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
        for name in ("", "reward", "", "format", "rewrite", "entropy", "no signal", "copies"):
            table.add_column(name, justify="left" if not name else "right", no_wrap=True)
        record = self._record
        for turn, values in sorted(self._rewards.items()):

            def figure(name: str, template: str, turn: int = turn) -> str:
                value = record.get(f"{name}/turn{turn}")
                return "–" if value is None else template.format(value)

            table.add_row(
                Text(f"turn {turn}", style="bold"),
                Text(figure("reward", "{:.3f}"), style="bold green"),
                Text(sparkline(values), style="green"),
                figure("format", "{:.0%}"),
                figure("rewrite_tokens", "{:.0f} tokens"),
                figure("entropy", "{:.2f} nats"),
                figure("zero_variance", "{:.0%}"),
                figure("copy", "{:.0%}"),
            )
        return table

    def _rewrites(self, tree: Tree) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True, style="dim")
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
        table.add_column(no_wrap=True, justify="right")
        table.add_row("question", Text(printable(tree.question.text), overflow="ellipsis"), "")
        for node in next(iter(tree.paths()), []):
            table.add_row(f"turn {node.turn}", Text(printable(rewritten(node)), overflow="ellipsis"), earned(node))
        return table


class LiveView(_Panel):
    """The panel in a terminal."""

    def __init__(self, title: str, console: Console) -> None:
        super().__init__(title)
        self._live = Live(get_renderable=self.draw, console=console, refresh_per_second=2)

    def begin(self, done: int, total: int) -> None:
        super().begin(done, total)
        self._live.start()

    def close(self) -> None:
        """Stop updating; the last panel remains on screen, unless the terminal is gone."""
        with suppress(OSError):
            self._live.stop()


class _DisplayHandle(Protocol):
    """The output of a notebook's cell that IPython's `display` returns."""

    def update(self, obj: object) -> None: ...


class NotebookView(_Panel):
    """The panel in the output of a notebook's cell, redrawn after each step."""

    def __init__(self, title: str) -> None:
        super().__init__(title, NOTEBOOK_STEPS)
        self._handle: _DisplayHandle | None = None

    def begin(self, done: int, total: int) -> None:
        from IPython.display import HTML, display

        super().begin(done, total)
        self._handle = display(HTML(self.html()), display_id=True)

    def step(self, record: Mapping[str, float], tree: Tree | None) -> None:
        super().step(record, tree)
        self._redraw()

    def validated(self, record: ValidationRecord) -> None:
        super().validated(record)
        self._redraw()

    def close(self) -> None:
        """Leave the last panel in the notebook."""
        self._redraw()

    def html(self) -> str:
        console = Console(record=True, file=io.StringIO(), width=NOTEBOOK_WIDTH, force_jupyter=False)
        console.print(self.draw())
        page = '<pre style="line-height: 1.2; font-family: monospace">{code}</pre>'
        return console.export_html(inline_styles=True, code_format=page)

    def _redraw(self) -> None:
        if self._handle is not None:
            from IPython.display import HTML

            self._handle.update(HTML(self.html()))


def open_view(title: str) -> LineView:
    """The panel in a notebook and where stderr is a terminal, else lines of the log."""
    if in_notebook():
        return NotebookView(title)
    return LiveView(title, Console(stderr=True)) if sys.stderr.isatty() else LineView()


def in_notebook() -> bool:
    """Whether a kernel of Jupyter runs this code."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and getattr(ipython.get_ipython(), "kernel", None) is not None


def validation_line(record: ValidationRecord) -> str:
    """A validation record as one line."""
    values = "  ".join(f"turn {turn} reward {record[key]:.3f}" for turn, key in turns_of(record, "reward"))
    return f"validation at step {record['step']}: {values}  ({record['questions']} questions)"


def rewritten(node: Node) -> str:
    """The rewrites of a turn, or why there is none."""
    if node.rewrite.stop:
        return "(stop, no search)" if node.rewrite.unsearched else "(stop)"
    return " · ".join(node.rewrite.rewrites) if node.rewrite.plan is not None else f"({node.rewrite.failure})"


def earned(node: Node) -> str:
    """A turn's reward as text."""
    return "unscorable" if node.reward is None else f"{node.reward:.3f}"


def sparkline(values: list[float]) -> str:
    """The values as block characters scaled from minimum to maximum; neighbours are averaged if there are many."""
    size = max(1, -(-len(values) // POINTS))
    parts = [values[start : start + size] for start in range(0, len(values), size)]
    means = [sum(part) / len(part) for part in parts]
    low, high = min(means), max(means)
    if high - low < 1e-9:
        return BLOCKS[3] * len(means)
    return "".join(BLOCKS[min(7, int(8 * (mean - low) / (high - low)))] for mean in means)


def printable(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(char if char.isprintable() else " " for char in " ".join(text.split()))


def clock(seconds: float) -> str:
    """Seconds as m:ss, from an hour on as h:mm:ss."""
    minutes, remainder = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{remainder:02}" if hours else f"{minutes}:{remainder:02}"
