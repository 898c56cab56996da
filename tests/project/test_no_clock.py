"""No test depends on how fast a machine is: none sleeps, measures a time or sets a deadline shorter than a minute.

A test waits for an event by `until` of `tests/waiting.py`; what cannot be tested without a clock is given one. A
number of seconds that is never waited for, because the test's clock is its own, is written with the mark `# own clock`
on its line.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
ALLOWED = {"waiting.py"}
"""Polls for events of other processes."""

CLOCKS = {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "now"}
WAITS = {"wait", "join", "result", "communicate", "wait_for", "acquire"}
SECONDS = re.compile(r"(?:^|[._])(?:timeout|deadline|seconds)\w*$")
SETTING = re.compile(r"[\w.]*(?:timeout|deadline|seconds)\w*=([0-9.]+)$")
MARK = "# own clock"


def faults(source: str) -> Iterator[tuple[int, str]]:
    """The lines of a test file that read the clock or set a deadline shorter than a minute, and how."""
    marked = {number for number, line in enumerate(source.splitlines(), 1) if line.rstrip().endswith(MARK)}
    for node in ast.walk(ast.parse(source)):
        number = getattr(node, "lineno", 0)
        if number in marked:
            continue
        if isinstance(node, ast.Call):
            owner, name = _called(node.func)
            first = node.args[0] if node.args else None
            if name == "sleep" and owner in ("time", "asyncio", "") and not _is(first, lambda value: value == 0):
                yield number, f"{owner}.sleep"
            elif name in CLOCKS and owner in ("time", "datetime", ""):
                yield number, f"{owner}.{name}"
            elif name in WAITS and any(_is(argument, _short) for argument in node.args):
                yield number, f"{name} for less than a minute"
            for keyword in node.keywords:
                if keyword.arg and SECONDS.search(keyword.arg) and _is(keyword.value, _short):
                    yield number, f"{keyword.arg} shorter than a minute"
        elif isinstance(node, ast.Dict):
            for key, value in zip(node.keys, node.values, strict=True):
                text = key.value if isinstance(key, ast.Constant) else None
                if isinstance(text, str) and SECONDS.search(text) and _is(value, _short):
                    yield value.lineno, f"{text} shorter than a minute"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            if (setting := SETTING.fullmatch(node.value)) and _short(float(setting[1])):
                yield number, f"{node.value} is shorter than a minute"
        elif isinstance(node, ast.ImportFrom) and node.module == "time":
            yield number, "import from time: call time.sleep and the like by their module"


def _called(function: ast.expr) -> tuple[str, str]:
    if isinstance(function, ast.Attribute):
        return (function.value.id if isinstance(function.value, ast.Name) else "…", function.attr)
    return ("", function.id) if isinstance(function, ast.Name) else ("…", "")


def _is(node: ast.expr | None, test: object) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) in (int, float) and bool(test(node.value))


def _short(seconds: float) -> bool:
    return 0 < seconds < 60


@pytest.mark.parametrize("line", ["time.sleep(1)", "thread.join(5)", "client(timeout=3)", "f(['a_seconds=2'])"])
def test_the_lint_notices(line):
    assert list(faults(line))
    assert not list(faults(f"{line}  {MARK}"))
    assert not list(faults(line.replace("1", "0").replace("5", "60").replace("3", "300").replace("2", "200")))


def test_no_test_reads_the_clock_or_sets_a_short_deadline():
    found = [
        f"{path.relative_to(TESTS)}:{number}: {what}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).as_posix() not in ALLOWED
        for number, what in faults(path.read_text())
    ]
    assert not found, "\n".join(found)
