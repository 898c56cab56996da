"""What an attack counts: tries, those survived, and what was lost."""

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
from querylect.errors import QuerylectError
from querylect.markdown_tables import markdown_table

BEGIN, END = "<!-- attack: begin -->", "<!-- attack: end -->"
HEAD = ["attack", "tried", "survived", "lost", "survived means", "command and machine"]


@dataclass
class Tally:
    """One row of the table."""

    part: str
    survived_means: str
    tried: int = 0
    lost: list[str] = field(default_factory=list)
    """What happened in every try that was lost, one sentence each."""
    notes: list[str] = field(default_factory=list)

    @contextmanager
    def attempt(self, what: str) -> Iterator[list[str]]:
        """One try. Yields a list for the promises that it sees broken; an error in it is one as well."""
        broken: list[str] = []
        try:
            yield broken
        except (RuntimeError, OSError, ValueError, AssertionError, QuerylectError, httpx.HTTPError) as error:
            broken.append(f"{type(error).__name__}: {error}")
        self.add(what, broken)

    def add(self, what: str, broken: list[str]) -> None:
        """Count a try that is over."""
        self.tried += 1
        if broken:
            self.lost.append(" ".join(f"{what}: {'; '.join(broken)}".split()))
        outcome = f"LOST: {'; '.join(broken)}" if broken else "survived"
        print(f"  {self.part} {self.tried}: {what}: {outcome}", flush=True)

    def row(self) -> str:
        """The one line that every part prints."""
        counts = f"{self.tried} tried, {self.tried - len(self.lost)} survived, {len(self.lost)} lost"
        return f"{self.part}: {counts} (survived: {self.survived_means})"


def refusal_problems(code: int | None, error: str, *names: str) -> list[str]:
    """What is wrong with how a command refused: exit code, traceback, or a message without one of the names."""
    lines = error.strip().splitlines()
    if code is None:
        return [f"it did not end: {lines[-1:]}"]
    broken = []
    if code < 0:
        broken.append(f"signal {-code}")
    if code == 0:
        broken.append("it ended with 0")
    if "Traceback" in error:
        broken.append(f"a traceback: {lines[-1][:200]}")
    elif not broken and names and not any(name in error for name in names):
        broken.append(f"its message names none of {', '.join(names)}: {' '.join(lines[-3:])[-300:]}")
    return broken


def write_row(page: Path, tally: Tally, how: str, order: Sequence[str]) -> None:
    """Put a part's row, and what it lost, between the marks of the page, in place of its earlier one."""
    text = page.read_text(encoding="utf-8")
    before, remaining = text.split(BEGIN)
    inside, after = remaining.split(END)
    rows = {}
    for line in inside.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == len(HEAD) and cells[0] in order:
            rows[cells[0]] = [cell.replace("\\|", "|") for cell in cells]
    survived = tally.tried - len(tally.lost)
    rows[tally.part] = [tally.part, *map(str, (tally.tried, survived, len(tally.lost))), tally.survived_means, how]
    table = markdown_table(HEAD, [rows[part] for part in order if part in rows], "lrrrll")
    lost = [line for line in inside.splitlines() if line.startswith("- ") and not line.startswith(f"- {tally.part}: ")]
    times = Counter(tally.lost)
    lost += [f"- {tally.part}: {what}{f' ({times[what]} times)' if times[what] > 1 else ''}" for what in times]
    page.write_text(
        before + "\n".join([BEGIN, "", *table, "", *(["What was lost:", "", *lost, ""] if lost else []), END]) + after,
        encoding="utf-8",
    )
