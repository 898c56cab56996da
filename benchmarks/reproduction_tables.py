"""The tables, the drawing and the page of the reproduction, from what is finished (reproduction_results.py).

A trained arm is several policies, one per seed: its score of a question is the mean over them, and differences are
tested question by question. That takes the seeds as given; the spread over seeds stands beside every mean.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from statistics import fmean, stdev

import pandas as pd
from querylect.errors import ConfigError
from querylect.eval.records import METRICS, EvalRecord
from querylect.eval.statistics import holm
from querylect.eval.table import FALL_BACK
from querylect.markdown_tables import markdown_table
from reproduction_arms import ARMS, BM25, MINILM, RETRIEVERS, Arm
from reproduction_claims import claims
from reproduction_results import Results, compare, mean_of_seeds

BEGIN, END = "<!-- ({}): written by benchmarks/reproduction.py table --page -->", "<!-- end of ({}) -->"
"""Markers of a part's results in a page. Each part is written by itself: it may be measured on another machine."""
TITLES = {
    "a": "(a) 4×4 against 16×1 at equal numbers of sampled tokens",
    "b": "(b) BM25 against MiniLM: transfer and dialect",
    "c": "(c) Prompt levels",
}
COLOURS = ("#2b6cb0", "#c05621", "#2f855a")
EXAMPLES = 8
WRITTEN = ("repeats", "cut", "with fall-back")
WRITTEN_EXPLAINED = (
    "Untrained → trained, mean over seeds: repeats, the share of rewrites that repeat the question; cut, the share of "
    "answers that end at their token limit; with fall-back, nDCG@10 if a question whose answer has the wrong format "
    "were searched as it stands."
)


def write_page(page: Path, text: str, begin: str, end: str) -> None:
    """Replace what a page has between two lines. Raises ConfigError where it has no such lines."""
    page_text = page.read_text(encoding="utf-8")
    before, has_begin, remaining = page_text.partition(begin)
    _, has_end, after = remaining.partition(end)
    if not has_begin or not has_end:
        raise ConfigError(f"{page} has no place for the results: a line {begin!r} and, below it, {end!r}.")
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def render(results: Results, part: str, curves: str | None = None) -> str:
    """The tables of a part as Markdown; `curves` is the name of a drawing to show."""
    lines = [f"### {TITLES[part]}", "", *_state(results, part)]
    if curves is not None:
        lines += ["", f"![nDCG@10 of the validation questions: mean and single seeds]({curves})"]
    arms = [arm for arm in ARMS.values() if arm.part == part and results.seeds(arm)]
    if arms:
        lines += ["", *_tests(results, arms)]
        if part == "a":
            lines += ["", *_tokens(results, arms)]
        if part == "b" and len(arms) == 2:
            lines += ["", *_transfer(results), *_examples(results)]
    rows = [(claim.text, claim.verdict, claim.evidence) for claim in claims(results, part)]
    return "\n".join([*lines, "", *markdown_table(["claim of the paper", "verdict", "evidence"], rows, "lll")])


def _state(results: Results, part: str) -> list[str]:
    """How far every arm of a part is."""
    rows = []
    for arm in ARMS.values():
        if arm.part != part:
            continue
        seeds = results.seeds(arm)
        if not seeds:
            rows.append([arm.title, "none: not run", "–", "–", "–"])
            continue
        steps = ", ".join(str(results.steps(arm, seed)) for seed in seeds)
        tokens = ", ".join(f"{sum(results.tokens(arm, seed)):,}" for seed in seeds)
        seconds = fmean(value for seed in seeds for value in results.metric(arm, seed, "seconds/step"))
        rows.append([arm.title, ", ".join(map(str, seeds)), steps, tokens, f"{seconds:.1f}"])
    return markdown_table(["arm", "seeds tested", "steps", "sampled tokens", "seconds a step"], rows, "llllr")


def _tests(results: Results, arms: Sequence[Arm]) -> Iterator[str]:
    """Every arm on every retriever and turn: raw, untrained, trained, and trained against both of them."""
    rows, tests = [], []
    for arm in arms:
        for retriever in arm.tested_on:
            for turn in _turns(results, arm, retriever):
                by_seed = results.scores(arm, retriever, turn)
                raw, untrained = results.raw(arm, retriever), results.untrained(arm, retriever, turn)
                means = [f"{fmean(raw):.3f}", f"{fmean(untrained):.3f}", spread(by_seed)]
                behaviour_cells = _written(results, arm, retriever, turn)
                rows.append([arm.title, retriever, str(turn), str(len(raw)), *means, *behaviour_cells])
                tests += [compare(mean_of_seeds(by_seed), baseline) for baseline in (raw, untrained)]
    adjusted = holm([test.p for test in tests])
    cells = [
        f"{test.difference:+.3f} ({test.low:+.3f} to {test.high:+.3f}){' †' if p < 0.05 else ''}"
        for test, p in zip(tests, adjusted, strict=True)
    ]
    head = ["arm", "tested on", "turn", "questions", "raw", "untrained", "trained, mean ± s", *WRITTEN]
    rows = [[*row, *cells[2 * number : 2 * number + 2]] for number, row in enumerate(rows)]
    yield from markdown_table([*head, "− raw", "− untrained"], rows, "llrrrrlrrrll")
    yield ""
    yield f"† adjusted p below .05 (Holm over the differences of this table). {WRITTEN_EXPLAINED}"


def _written(results: Results, arm: Arm, retriever: str, turn: int) -> Iterator[str]:
    """The cells under `WRITTEN`: untrained → trained, a mean over seeds."""
    sides = [pd.DataFrame(results.written(arm, retriever, turn, trained)).mean() for trained in (False, True)]
    for share in ("repeats", "cut"):
        yield " → ".join("–" if pd.isna(side[share]) else f"{side[share]:.0%}" for side in sides)
    yield " → ".join(f"{side[FALL_BACK]:.3f}" for side in sides)


def _tokens(results: Results, arms: Sequence[Arm]) -> list[str]:
    """(a): the last validation of either arm at multiples of a quarter of the tokens that both of a seed have."""
    rows = []
    min_tokens = min(sum(results.tokens(arm, seed)) for arm in arms for seed in results.seeds(arm))
    for quarter in range(5):
        budget = quarter * min_tokens // 4
        cells = []
        for arm in arms:
            by_turn = [
                [_validated_at(results, arm, seed, turn, budget) for seed in results.seeds(arm)] for turn in (1, 2)
            ]
            cells.append(" / ".join(spread([[value] for value in values]) for values in by_turn))
        rows.append([f"{budget:,}", *cells])
    return markdown_table(
        ["sampled tokens", *(f"{arm.title}, turn 1 / 2" for arm in arms)], rows, "r" + "l" * len(arms)
    )


def _validated_at(results: Results, arm: Arm, seed: int, turn: int, budget: int) -> float:
    curve, spent = results.validation(arm, seed, turn), [0, *accumulate(results.tokens(arm, seed))]
    return curve[max(step for step in curve if step < len(spent) and spent[step] <= budget)]


def _transfer(results: Results) -> list[str]:
    """(b): policies × retrievers."""
    arms = [ARMS[BM25], ARMS[MINILM]]
    rows = [
        ["raw question", *(f"{fmean(results.raw(arms[0], name)):.3f}" for name in RETRIEVERS)],
        ["untrained", *(f"{fmean(results.untrained(arms[0], name, 1)):.3f}" for name in RETRIEVERS)],
        *([arm.title, *(spread(results.scores(arm, name, 1)) for name in RETRIEVERS)] for arm in arms),
    ]
    return markdown_table(["policy, nDCG@10", "on BM25", "on MiniLM"], rows, "lll")


def _examples(results: Results) -> Iterator[str]:
    """(b): test questions at even distances, and what either policy of the first seed writes."""
    arms = [ARMS[BM25], ARMS[MINILM]]
    (seed, *_) = sorted(set(results.seeds(arms[0])) & set(results.seeds(arms[1]))) or [None]
    if seed is None:
        return
    sides = [_first_turns(results.answers(arm, seed, arm.trained_on)) for arm in arms]
    untrained = _first_turns(results.answers(arms[0], 0, BM25, trained=False))
    names = sorted(untrained)
    yield f"\nRewrites of seed {seed}, with their nDCG@10 on the policy's own retriever:\n"
    rows = []
    for number in range(min(EXAMPLES, len(names))):
        name = names[number * len(names) // min(EXAMPLES, len(names))]
        rows.append([plain(untrained[name].question), *(_cell(side[name]) for side in (untrained, *sides))])
    yield from markdown_table(["question", "untrained", "trained with BM25", "trained with MiniLM"], rows, "llll")


def _first_turns(answers: Sequence[EvalRecord]) -> dict[str, EvalRecord]:
    return {record.question_id: record for record in answers if record.turn == 1}


def _cell(record: EvalRecord) -> str:
    return f"{plain('; '.join(record.rewrites)) or '–'} ({record.metrics[METRICS[0]] or 0:.2f})"


def plain(text: str) -> str:
    """Text that Markdown shows as it is; a table escapes pipes itself."""
    for sign in "\\*_`<>[]":
        text = text.replace(sign, f"\\{sign}" if sign not in "<>" else {"<": "&lt;", ">": "&gt;"}[sign])
    return " ".join(text.split())


def _turns(results: Results, arm: Arm, retriever: str) -> list[int]:
    answers = results.answers(arm, results.seeds(arm)[0], retriever)
    return sorted({record.turn for record in answers} - {0})


def spread(by_seed: Sequence[Sequence[float]]) -> str:
    """Mean ± standard deviation over seeds (n − 1) of the seeds' means."""
    means = [fmean(values) for values in by_seed]
    return f"{fmean(means):.3f}" + (f" ± {stdev(means):.3f}" if len(means) > 1 else "")


def draw(results: Results, part: str, file: Path) -> None:
    """nDCG@10 of the validation questions: (a) by sampled tokens, (b) and (c) by step; mean line, a dot per seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4.5, 3.2), layout="constrained")
    panel, turn = figure.subplots(), 2 if part == "a" else 1
    arms = [arm for arm in ARMS.values() if arm.part == part and results.seeds(arm)]
    for arm, colour in zip(arms, COLOURS, strict=False):
        curves = [results.validation(arm, seed, turn) for seed in results.seeds(arm)]
        spent = [[0, *accumulate(results.tokens(arm, seed))] for seed in results.seeds(arm)]
        shared = sorted(set.intersection(*map(set, curves)))
        at = [fmean(tokens[step] for tokens in spent) if part == "a" else step for step in shared]
        panel.plot(at, [fmean(curve[step] for curve in curves) for step in shared], color=colour, label=arm.name)
        for curve in curves:
            panel.plot(at, [curve[step] for step in shared], ".", color=colour, ms=4)
    panel.set_xlabel("sampled tokens" if part == "a" else "step", fontsize=9)
    panel.set_ylabel(f"nDCG@10, turn {turn}", fontsize=9)
    panel.spines[["top", "right"]].set_visible(False)
    if arms:
        panel.legend(frameon=False, fontsize=8)
    figure.savefig(file, metadata={"Date": None})
