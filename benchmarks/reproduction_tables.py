"""The tables and curves of the miniature (reproduction.py), from the run folders that are finished.

A trained arm is several policies, one per seed: its value for a test question is the mean over their answers, and it is
compared with the untrained policy question by question (paired permutation test, Holm over all comparisons printed).
That treats the questions as drawn at random and the seeds as given; the spread over seeds stands beside it.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from math import isnan
from pathlib import Path
from statistics import fmean, stdev

from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from querylect.eval.records import METRICS, read_records
from querylect.eval.statistics import PairedComparison, compare_paired, holm

EDGE = 5
"""Steps at each end of a run whose mean reward is given."""
PAIRS = (
    ("a", "credit per turn (4×4)", "turn", "credit per trajectory (16×1)", "trajectory"),
    ("b", "trained with BM25", "turn", "trained with MiniLM", "minilm"),
)
COLOURS = {"turn": "#2b6cb0", "trajectory": "#c05621", "minilm": "#2f855a"} | {
    "general": "#2b6cb0",
    "explore": "#c05621",
    "direct": "#2f855a",
}
"""In no panel do two arms share a colour."""


@dataclass(frozen=True)
class Found:
    """What is finished in the folder of the miniature."""

    folder: Path
    seeds: Sequence[int]
    start: Mapping[str, str]
    """Arm → the arm whose untrained policy is its own too."""

    def runs(self, arm: str) -> list[Path]:
        """The finished runs of an arm, by seed."""
        named = [self.folder / f"{arm}-{seed}" for seed in self.seeds]
        return [run for run in named if (run / "final").exists()]

    def curve(self, run: Path, name: str) -> list[float]:
        """A figure of metrics.jsonl, step by step."""
        lines = (run / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line).get(name, float("nan")) for line in lines]

    def trained(self, arm: str, retriever: str, turn: int) -> list[list[float]]:
        """nDCG@10 of every test question at a turn (0: raw), a list for each seed that was tested."""
        files = [run / f"test-{retriever}-final.jsonl" for run in self.runs(arm)]
        return [scores(file, turn) for file in files if file.exists()]

    def untrained(self, arm: str, retriever: str, turn: int) -> list[float] | None:
        """The same before training; None where it was not tested."""
        runs = self.runs(self.start.get(arm, arm))
        file = next((f for run in runs if (f := run / f"test-{retriever}-untrained.jsonl").exists()), None)
        return scores(file, turn) if file else None


@cache
def scores(file: Path, turn: int) -> list[float]:
    """nDCG@10 of every question at a turn. Raises ValueError for an unscorable one: the test has to be made again."""
    values = [record.metrics[METRICS[0]] for record in read_records(file) if record.turn == turn]
    known = [value for value in values if value is not None]
    if len(known) != len(values) or not known:
        raise ValueError(f"{file}: {len(values) - len(known)} of {len(values)} questions at turn {turn} have no score")
    return known


def print_tables(found: Found, arms: Mapping[str, Sequence[str]]) -> None:
    """Rewards while training, tests against the untrained policy, arm against arm, and the transfer matrix.

    `arms` are names with the retrievers that they were tested on.
    """
    print_rewards(found, [arm for arm in arms if found.runs(arm)])
    print_tests(
        found, [(arm, retriever) for arm in arms for retriever in arms[arm] if found.trained(arm, retriever, 2)]
    )
    print_pairs(found, arms)
    print_transfer(found, [arm for arm in ("turn", "minilm") if found.trained(arm, "minilm", 2)])


def print_rewards(found: Found, arms: Sequence[str]) -> None:
    """Every run: mean reward of its first and last steps, and what its updates had to work with."""
    print(f"| run | turn 1: steps 1–{EDGE} → last {EDGE} | turn 2 | zero variance, turn 1 / 2 | entropy | s/step |")
    print("|---|---|---|---|---|--:|")
    for arm in arms:
        for run in found.runs(arm):
            moved = [ends(found.curve(run, f"reward/turn{turn}")) for turn in (1, 2)]
            still = [share(found.curve(run, f"zero_variance/turn{turn}")) for turn in (1, 2)]
            cells = [run.name, *moved, " / ".join(still), ends(found.curve(run, "entropy"), ".2f")]
            print(f"| {' | '.join(cells)} | {fmean(found.curve(run, 'seconds/step')):.1f} |")
    print(f"\n| arm | last {EDGE} steps, turn 1: mean ± s over seeds | turn 2 | s from step to step, turn 1 / 2 |")
    print("|---|---|---|---|")
    for arm in arms:
        by_turn = [[found.curve(run, f"reward/turn{turn}") for run in found.runs(arm)] for turn in (1, 2)]
        reached = [spread([fmean(values[-EDGE:]) for values in curves]) for curves in by_turn]
        steps = [f"{fmean(rough(values) for values in curves):.3f}" for curves in by_turn]
        print(f"| {arm} | {' | '.join(reached)} | {' / '.join(steps)} |")


def print_tests(found: Found, tested: Sequence[tuple[str, str]]) -> None:
    """Every arm on every retriever: raw, untrained, trained, and the difference that training made, for both turns."""
    print("\n| arm | tested on | raw | turn | untrained | trained, mean ± s over seeds | difference | p | Holm | † |")
    print("|---|---|--:|--:|--:|---|---|--:|--:|---|")
    rows: list[tuple[str, PairedComparison]] = []
    for arm, retriever in tested:
        raw = fmean(found.trained(arm, retriever, 0)[0])
        for turn in (1, 2):
            by_seed, before = found.trained(arm, retriever, turn), found.untrained(arm, retriever, turn)
            if before is not None:
                said = (
                    f"| {arm} | {retriever} | {raw:.3f} | {turn} | {fmean(before):.3f} | {spread(map_mean(by_seed))} "
                )
                rows.append((said, compare(averaged(by_seed), before)))
    print_compared(rows)


def print_pairs(found: Found, arms: Mapping[str, Sequence[str]]) -> None:
    """(a) and (b): arm against arm on the retriever that both were tested on, per turn."""
    rows = []
    for letter, first, one, second, other in PAIRS:
        for retriever in arms.get(one, ()):
            for turn in (1, 2):
                a, b = found.trained(one, retriever, turn), found.trained(other, retriever, turn)
                if a and b:
                    said = f"| ({letter}) {first} against {second}, tested on {retriever} | {turn} "
                    said += f"| {spread(map_mean(a))} | {spread(map_mean(b))} "
                    rows.append((said, compare(averaged(a), averaged(b))))
    if rows:
        print("\n| | turn | first | second | difference | p | Holm | † |\n|---|--:|---|---|---|--:|--:|---|")
        print_compared(rows)


def print_compared(rows: Sequence[tuple[str, PairedComparison]]) -> None:
    """Lines with their comparison: difference, interval, p, Holm over these lines, and † below .05."""
    for (said, test), adjusted in zip(rows, holm([test.p for _, test in rows]), strict=True):
        difference = f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f})"
        print(f"{said}| {difference} | {test.p:.4f} | {adjusted:.4f} | {'†' if adjusted < 0.05 else ''} |")


def print_transfer(found: Found, arms: Sequence[str]) -> None:
    """(b): policies × retrievers, second turn, as a matrix."""
    if not arms:
        return
    print("\n| policy, turn 1 / 2 | on BM25 | on MiniLM |\n|---|---|---|")
    raw = [f"{fmean(found.trained(arms[0], retriever, 0)[0]):.3f}" for retriever in ("bm25", "minilm")]
    print(f"| raw question | {' | '.join(raw)} |")
    before = [both(found.untrained(arms[0], retriever, turn) for turn in (1, 2)) for retriever in ("bm25", "minilm")]
    print(f"| untrained | {' | '.join(before)} |")
    for arm, name in (("turn", "BM25"), ("minilm", "MiniLM")):
        cells = [
            " / ".join(spread(map_mean(found.trained(arm, retriever, turn))) for turn in (1, 2))
            for retriever in ("bm25", "minilm")
        ]
        print(f"| trained with {name} | {' | '.join(cells)} |")


def draw_rewards(found: Found, file: Path) -> None:
    """(a), (b), (c) in rows, turns in columns: centred means over three steps, their mean and range over seeds."""
    groups = {
        "(a) credit per turn, per trajectory": ("turn", "trajectory"),
        "(b) trained with BM25, with MiniLM": ("turn", "minilm"),
        "(c) prompt levels": ("general", "explore", "direct"),
    }
    figure = Figure(figsize=(9, 8.4), layout="constrained")
    panels = figure.subplots(len(groups), 2, sharex=True, sharey="row")
    for row, (title, arms) in zip(panels, groups.items(), strict=True):
        for turn, panel in enumerate(row, start=1):
            for arm in arms:
                curves = [smooth(found.curve(run, f"reward/turn{turn}")) for run in found.runs(arm)]
                if curves:
                    columns = list(zip(*curves, strict=True))
                    steps = range(1, len(columns) + 1)
                    low, high = ([end(column) for column in columns] for end in (min, max))
                    panel.fill_between(steps, low, high, color=COLOURS[arm], alpha=0.15, lw=0)
                    panel.plot(steps, [fmean(column) for column in columns], color=COLOURS[arm], label=arm)
            panel.set_title(f"{title}: turn {turn}", fontsize=10, loc="left")
            panel.spines[["top", "right"]].set_visible(False)
        row[0].set_ylabel("mean reward")
        if any(map(found.runs, arms)):
            row[0].legend(frameon=False, fontsize=9)
    for panel in panels[-1]:
        panel.set_xlabel("step")
        panel.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(file, metadata={"Date": None})


def smooth(values: Sequence[float]) -> list[float]:
    """A centred mean over three steps."""
    return [fmean(values[max(0, place - 1) : place + 2]) for place in range(len(values))]


def rough(values: Sequence[float]) -> float:
    """Standard deviation of the changes from step to step, over √2: the noise of a single step around a slow trend."""
    return stdev(b - a for a, b in pairwise(values)) / 2**0.5


def ends(values: Sequence[float], form: str = ".3f") -> str:
    """Mean of the first and of the last steps."""
    return f"{fmean(values[:EDGE]):{form}} → {fmean(values[-EDGE:]):{form}}"


def share(values: Sequence[float]) -> str:
    """Mean over all steps; – where a run has no groups at that turn."""
    return "–" if isnan(values[0]) else f"{fmean(values):.2f}"


def spread(values: Sequence[float]) -> str:
    """Mean ± standard deviation (n − 1); – where nothing was tested."""
    if not values:
        return "–"
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def both(by_turn: Iterable[Sequence[float] | None]) -> str:
    """Means of the two turns; – where one was not tested."""
    return " / ".join("–" if one is None else f"{fmean(one):.3f}" for one in by_turn)


def map_mean(by_seed: Sequence[Sequence[float]]) -> list[float]:
    """The mean of every seed."""
    return [fmean(values) for values in by_seed]


def averaged(by_seed: Sequence[Sequence[float]]) -> list[float]:
    """Question by question, the mean over seeds."""
    return [fmean(values) for values in zip(*by_seed, strict=True)]


def compare(a: Sequence[float], b: Sequence[float]) -> PairedComparison:
    """The paired test with the miniature's numbers of draws."""
    return compare_paired(a, b, resamples=10_000, permutations=10_000, seed=0)
