"""What the paper claims, and whether the reproduction confirms it, refutes it or cannot decide it.

A claim "A is better than B" is judged by nDCG@10 of the test questions, averaged over seeds (paired permutation test,
Holm over the claims of its part): confirmed where A is ahead with adjusted p < .05 and in every seed; refuted where B
is, or where the 95% interval lies within ±.01 (a difference as small as that is none); otherwise not decidable here.
Fewer than three seeds decide nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from querylect.eval.statistics import PairedComparison, holm
from reproduction_arms import ARMS, BM25, MINILM
from reproduction_results import Results, compare, mean_of_seeds

CONFIRMED, REFUTED, OPEN = "confirmed here", "refuted here", "not decidable here"
LEVEL = 0.05
NONE = 0.01
"""A difference in nDCG@10 up to this size counts as none."""
COLLAPSE = 0.015
"""What 16×1 loses in the paper from its best step to its last (36.2 → 34.7)."""
LEAST_SEEDS = 3
NOT_YET = "not run yet"
Scores = Sequence[Sequence[float]]
"""By seed, one score per question."""


@dataclass(frozen=True)
class Claim:
    """One statement of the paper and what became of it."""

    text: str
    verdict: str
    evidence: str


Side = tuple[str, str, int]
"""Arm, retriever that it was tested on, turn; turn 0 is the raw question."""

_OWN = "a policy does better on the retriever that it was trained with than one that was trained with another"
COMPARISONS: tuple[tuple[str, Side, Side], ...] = (
    ("RL adapts the queries to BM25: better than the raw question", (BM25, BM25, 1), (BM25, BM25, 0)),
    ("RL adapts the queries to MiniLM: better than the raw question", (MINILM, MINILM, 1), (MINILM, MINILM, 0)),
    (f"strategies do not transfer, on BM25: {_OWN}", (BM25, BM25, 1), (MINILM, BM25, 1)),
    (f"strategies do not transfer, on MiniLM: {_OWN}", (MINILM, MINILM, 1), (BM25, MINILM, 1)),
    ("4×4 is better than 16×1 at equal sampled tokens (second turn)", ("turn", BM25, 2), ("trajectory", BM25, 2)),
    ("a second turn is better than the first (4×4)", ("turn", BM25, 2), ("turn", BM25, 1)),
    ("for BM25 the exploratory prompt is better than the specific one", ("explore", BM25, 1), ("direct", BM25, 1)),
    ("for BM25 the exploratory prompt is better than the general one", ("explore", BM25, 1), ("general", BM25, 1)),
    ("for BM25 the specific prompt is better than the general one", ("direct", BM25, 1), ("general", BM25, 1)),
)


def claims(results: Results, part: str) -> list[Claim]:
    """The claims that a part judges, those without results included."""
    pairs: dict[str, tuple[Scores, Scores]] = {}
    compared = [claim for claim in COMPARISONS if ARMS[claim[1][0]].part == part]
    for text, *sides in compared:
        seeds = sorted(set.intersection(*(set(results.seeds(ARMS[name])) for name, _, _ in sides)))
        if seeds:
            first, second = (results.scores(ARMS[name], retriever, turn, seeds) for name, retriever, turn in sides)
            pairs[text] = first, second
    tests = {text: compare(*map(mean_of_seeds, sides)) for text, sides in pairs.items()}
    adjusted = dict(zip(tests, holm([test.p for test in tests.values()]), strict=True))
    listed = [
        _judged(text, *pairs[text], tests[text], adjusted[text]) if text in pairs else Claim(text, OPEN, NOT_YET)
        for text, *_ in compared
    ]
    if part == "a":
        arms = (ARMS["trajectory"], ARMS["turn"])
        listed.append(collapse(*([results.validation(arm, seed, 2) for seed in results.seeds(arm)] for arm in arms)))
    return listed


def _judged(text: str, first: Scores, second: Scores, test: PairedComparison, p: float) -> Claim:
    by_seed = [fmean(a) - fmean(b) for a, b in zip(first, second, strict=True)]
    evidence = f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}), Holm p {p:.4f}; by seed "
    evidence += ", ".join(f"{difference:+.3f}" for difference in by_seed)
    return Claim(text, verdict(test.low, test.high, p, by_seed), evidence)


def verdict(low: float, high: float, p: float, by_seed: Sequence[float]) -> str:
    """The rule of this module for "A is better than B"; `by_seed` are the differences A − B of single seeds, `low` and
    `high` the interval of their mean."""
    if len(by_seed) < LEAST_SEEDS:
        return OPEN
    if p < LEVEL and all(difference > 0 for difference in by_seed):
        return CONFIRMED
    if p < LEVEL and all(difference < 0 for difference in by_seed):
        return REFUTED
    return REFUTED if low > -NONE and high < NONE else OPEN


def collapse(independent: Sequence[dict[int, float]], branching: Sequence[dict[int, float]]) -> Claim:
    """Whether 16×1 falls from its best validation by as much as in the paper, and 4×4 does not; curves are by step."""
    text = "4×4 is more stable: 16×1 falls back from its best step, 4×4 does not"
    if min(len(independent), len(branching)) < LEAST_SEEDS:
        return Claim(text, OPEN, NOT_YET)
    falls = [[max(curve.values()) - curve[max(curve)] for curve in curves] for curves in (independent, branching)]
    fell = [[fall >= COLLAPSE for fall in side] for side in falls]
    listed = [", ".join(f"{fall:.3f}" for fall in side) for side in falls]
    evidence = f"best validation minus last, by seed: 16×1 {listed[0]}; 4×4 {listed[1]}"
    if all(fell[0]) and not any(fell[1]):
        return Claim(text, CONFIRMED, evidence)
    if all(fell[1]) and not any(fell[0]):
        return Claim(text, REFUTED, evidence)
    return Claim(text, OPEN, evidence)  # where none falls, it may yet: in the paper it takes 140 steps
