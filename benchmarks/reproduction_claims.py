"""What the paper claims, and whether the reproduction confirms it, refutes it or cannot decide it.

A claim "A is better than B" is judged by nDCG@10 of the test questions, averaged over seeds (paired permutation test,
Holm over all claims): confirmed where A is ahead with adjusted p < .05 and in every seed; refuted where B is, or where
the 95% interval lies within ±.01 (a difference as small as that is none); otherwise not decidable here. Fewer than three
seeds decide nothing.
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
Scores = Sequence[Sequence[float]]
"""By seed, one score per question."""


@dataclass(frozen=True)
class Claim:
    """One statement of the paper and what became of it."""

    text: str
    verdict: str
    evidence: str


NOT_RUN = (
    "larger models find better strategies (4B, 8B, 14B)",
    "the order of the prompt levels is another one for a dense retriever (direct before explore)",
    "the gains carry over to BEIR, FinAgentBench and full RAG",
)


@dataclass(frozen=True)
class _Comparison:
    text: str
    first: Scores
    second: Scores


def claims(results: Results) -> list[Claim]:
    """Every claim, those without results included."""
    pairs = [one for one in _comparisons(results) if one.first and one.second]
    tests = [compare(mean_of_seeds(one.first), mean_of_seeds(one.second)) for one in pairs]
    adjusted = holm([test.p for test in tests])
    judged = {
        one.text: _judged(one, test, p) for one, test, p in zip(pairs, tests, adjusted, strict=True)
    }
    listed = [judged.get(one.text) or Claim(one.text, OPEN, "not run yet") for one in _comparisons(results)]
    return [
        *listed,
        collapse(*([_validation(results, name) for name in ("trajectory", "turn")])),
        dialect(results.drift()),
        *(Claim(text, OPEN, "not run: see what differs from the paper") for text in NOT_RUN),
    ]


def _comparisons(results: Results) -> list[_Comparison]:
    def trained(name: str, retriever: str, turn: int) -> Scores:
        return results.scores(ARMS[name], retriever, turn) if results.seeds(ARMS[name]) else []

    def raw(name: str, retriever: str) -> Scores:
        return [results.raw(ARMS[name], retriever) for _ in results.seeds(ARMS[name])]

    def pair(text: str, first: Scores, second: Scores) -> _Comparison:
        shared = min(len(first), len(second))
        return _Comparison(text, first[:shared], second[:shared])

    def on_bm25(name: str) -> Scores:
        return trained(name, BM25, 1)

    own = "a policy does better on the retriever that it was trained with than one trained with another"
    return [
        pair("RL adapts the queries to BM25: better than the raw question", on_bm25(BM25), raw(BM25, BM25)),
        pair(
            "RL adapts the queries to MiniLM: better than the raw question",
            trained(MINILM, MINILM, 1),
            raw(MINILM, MINILM),
        ),
        pair(f"strategies do not transfer, on BM25: {own}", on_bm25(BM25), on_bm25(MINILM)),
        pair(f"strategies do not transfer, on MiniLM: {own}", trained(MINILM, MINILM, 1), trained(BM25, MINILM, 1)),
        pair(
            "4×4 is better than 16×1 at equal sampled tokens (second turn)",
            trained("turn", BM25, 2),
            trained("trajectory", BM25, 2),
        ),
        pair("a second turn is better than the first (4×4)", trained("turn", BM25, 2), trained("turn", BM25, 1)),
        pair("for BM25 the exploratory prompt is better than the specific one", on_bm25("explore"), on_bm25("direct")),
        pair("for BM25 the exploratory prompt is better than the general one", on_bm25("explore"), on_bm25("general")),
        pair("for BM25 the specific prompt is better than the general one", on_bm25("direct"), on_bm25("general")),
    ]


def _judged(one: _Comparison, test: PairedComparison, p: float) -> Claim:
    by_seed = [fmean(a) - fmean(b) for a, b in zip(one.first, one.second, strict=True)]
    evidence = f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}), Holm p {p:.4f}; by seed "
    evidence += ", ".join(f"{difference:+.3f}" for difference in by_seed)
    return Claim(one.text, verdict(test, p, by_seed), evidence)


def verdict(test: PairedComparison, p: float, by_seed: Sequence[float]) -> str:
    """The rule of this module for "A is better than B"; `by_seed` are the differences A − B of single seeds."""
    if len(by_seed) < LEAST_SEEDS:
        return OPEN
    if p < LEVEL and all(difference > 0 for difference in by_seed):
        return CONFIRMED
    if p < LEVEL and all(difference < 0 for difference in by_seed):
        return REFUTED
    return REFUTED if -NONE < test.low and test.high < NONE else OPEN


def _validation(results: Results, name: str) -> list[dict[int, float]]:
    return [results.validation(ARMS[name], seed, 2) for seed in results.seeds(ARMS[name])]


def collapse(independent: Sequence[dict[int, float]], branching: Sequence[dict[int, float]]) -> Claim:
    """Whether 16×1 falls from its best validation by as much as in the paper, and 4×4 does not; curves are by step."""
    text = "4×4 is more stable: 16×1 falls back from its best step, 4×4 does not"
    if min(len(independent), len(branching)) < LEAST_SEEDS:
        return Claim(text, OPEN, "not run yet")
    falls = [[max(curve.values()) - curve[max(curve)] for curve in curves] for curves in (independent, branching)]
    fell = [[fall >= COLLAPSE for fall in side] for side in falls]
    said = [", ".join(f"{fall:.3f}" for fall in side) for side in falls]
    evidence = f"best validation minus last, by seed: 16×1 {said[0]}; 4×4 {said[1]}"
    if all(fell[0]) and not any(fell[1]):
        return Claim(text, CONFIRMED, evidence)
    return Claim(text, OPEN if any(fell[0]) else REFUTED, evidence)


def dialect(drift: dict[str, object] | None) -> Claim:
    """Whether policies of two retrievers write differently, more so than two seeds of one, and mostly in wording."""
    text = "retrievers teach dialects: structural RE-MMD is large, ten times the semantic one"
    rows = drift["steps"] if drift is not None else None
    if not isinstance(rows, list) or not rows or len(drift["seeds"]) < LEAST_SEEDS:  # type: ignore[index, arg-type]
        return Claim(text, OPEN, "not run yet")
    last = rows[-1]
    between, within = last["structural"]["between"], last["structural"]["within"]
    semantic = fmean(last["semantic"]["between"])
    evidence = (
        f"structural ×100, step {last['step']}: {100 * min(between):.2f} to {100 * max(between):.2f} between retrievers, "
        f"{100 * min(within):.2f} to {100 * max(within):.2f} between seeds of one; semantic {100 * semantic:.2f}"
    )
    if min(between) <= max(within):  # two seeds of one retriever are as far apart as two retrievers
        return Claim(text, REFUTED if fmean(between) <= fmean(within) else OPEN, evidence)
    return Claim(text, CONFIRMED if fmean(between) >= 10 * semantic else OPEN, evidence)


