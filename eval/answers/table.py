"""Compute tables from answers: means, intervals, missing answers and significant differences.

A column of the table is a number of documents. Raw retrieval is compared with no retrieval, and every other system with
raw, in the same column. A missing answer is counted and left out of every mean and pair.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from ...markdown_tables import markdown_table
from ..frame import KEYS
from ..records import NO_RAG, RAW
from ..run_table import label
from ..table import (
    ALPHA,
    COSTS,
    FALL_BACK,
    SHARES,
    Arm,
    Comparison,
    Score,
    TableSpec,
    p_cell,
    percentage,
    points,
    tabulate,
)
from ..tasks.metrics import TITLES
from ..tasks.records import ReaderRecord, by_row

OPEN_METRICS = ("cover_em", "f1", "em")
SCORES = ("accuracy", *OPEN_METRICS)
FURTHER = ("ndcg", "documents", "prompt_tokens", "tokens")
"""What a row also has the mean of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord(ReaderRecord):
    """One system's answer to one question with up to `top` documents; its key hashes the request."""

    turn: int
    top: int
    """Maximum number of documents for the reader; 0 without retrieval."""
    missing: str
    """The reason: `no reply` or `no ranking`; "" where there is an answer."""
    ndcg: float | None
    """nDCG@10 of the ranking, as it was recorded."""
    prompt_tokens: int | None
    tokens: int | None

    @property
    def row(self) -> "RowKey":
        """The row of the table that it counts in."""
        return Arm(self.system, self.turn), self.top

    @property
    def figures(self) -> Mapping[str, float | None]:
        """Its figures by name, for the means of its row; none where the answer is missing."""
        if self.answer is None:
            return {}
        further = (self.ndcg, len(self.documents), self.prompt_tokens, self.tokens)
        return {**self.scores, **dict(zip(FURTHER, further, strict=True))}


RowKey = tuple[Arm, int]
"""The system with its turn, and the number of documents."""


@dataclass(frozen=True, slots=True)
class AnswerRow:
    """Scores of one system with up to `top` documents."""

    system: str
    turn: int
    top: int
    n: int
    """Number of answers."""
    missing: Mapping[str, int]
    """Questions without an answer, by reason."""
    cut: int
    empty: int
    no_choice: int
    """Multiple choice: answers that name no option; they also count as wrong."""
    scores: Mapping[str, float | None]
    low: float | None
    """95% bootstrap interval of the tested metric."""
    high: float | None
    ndcg: float | None
    documents: float
    prompt_tokens: float | None
    tokens: float | None
    label: str


@dataclass(frozen=True, slots=True)
class AnswerResults:
    """All rows and comparisons."""

    metric: str
    questions: int
    rows: Sequence[AnswerRow]
    comparisons: Sequence[Comparison]
    """The environment of a comparison is the number of documents."""


def tabulate_answers(
    records: Iterable[AnswerRecord], metric: str, *, resamples: int, permutations: int, seed: int
) -> AnswerResults:
    """Build all tables. Raises ValueError for two records of one system, number of documents and question."""
    cells = by_row(records, lambda record: record.row)
    questions = list(dict.fromkeys(question for answers in cells.values() for question in answers))
    tops = list(dict.fromkeys(top for _, top in cells if top)) or [0]
    spec = TableSpec(
        metrics=[metric, *(name for name in (*SCORES, *FURTHER) if name != metric)],
        environments=[str(top) for top in tops],
        systems=list(dict.fromkeys(arm.system for arm, _ in cells)),
        label=label,
        pairs=_pairs,
        bootstrap=resamples,
        permutations=permutations,
        seed=seed,
    )
    rows = [
        {"dataset": "", "environment": str(column), **arm._asdict(), "question": question, "answers": 1, "part": ""}
        | dict.fromkeys((*SCORES, *FURTHER, *COSTS, "truncated", "unsearched", FALL_BACK, *SHARES), float("nan"))
        | dict(record.figures)
        for (arm, top), answers in cells.items()
        for column in ([top] if top else tops)  # no retrieval is the baseline of every column
        for question, record in answers.items()
    ]
    frame = pd.DataFrame(rows).set_index([*KEYS, "question"])
    frame[[*SCORES, *FURTHER]] = frame[[*SCORES, *FURTHER]].astype(float)
    table = tabulate(frame, spec)
    scores = {(score.arm, score.environment): score for score in table.scores}
    return AnswerResults(
        metric,
        len(questions),
        [
            _row(arm, top, scores[arm, str(top or tops[0])], list(answers.values()))
            for (arm, top), answers in cells.items()
        ],
        table.comparisons,
    )


def markdown(results: AnswerResults, notes: Sequence[str], facts: Mapping[str, object]) -> str:
    """The page answers.md."""
    head = ["documents", "system", "nDCG@10", *(TITLES.get(name, name) for name in SCORES), "95%"]
    head += ["answers", "missing", "cut", "empty", "no choice"]
    lines = ["# Answers", "", *markdown_table(head, map(_cells, results.rows), "l" * len(head)), ""]
    tested = TITLES.get(results.metric, results.metric)
    lines += [f"The interval and the tests are about {tested}; missing answers are left out, never 0.", ""]
    if results.comparisons:
        head = ["documents", "system", "against", "difference", "95%", "better / same / worse", "p", "p (Holm)", ""]
        lines += [*markdown_table(head, map(_compared, results.comparisons), "l" * len(head)), ""]
        lines += [
            "p: two-sided paired permutation test; Holm's correction runs over all lines of this table. † p (Holm) < "
            f"{ALPHA}.",
            "",
        ]
    lines += [f"- {note}" for note in notes]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Raw with no retrieval, and every other system with raw."""
    alone, raw = Arm(NO_RAG, 0), Arm(RAW, 0)
    pairs = [(arm, alone if arm == raw else raw) for arm in arms if arm != alone]
    return [(arm, baseline) for arm, baseline in pairs if baseline in arms]


def _row(arm: Arm, top: int, score: Score, records: Sequence[AnswerRecord]) -> AnswerRow:
    answered = [record for record in records if record.answer is not None]
    choice = any(record.scores["f1"] is None for record in answered)
    figures = score.metrics
    return AnswerRow(
        *arm,
        top,
        n=score.n,
        missing=dict(sorted(Counter(record.missing for record in records if record.answer is None).items())),
        cut=sum(record.cut for record in answered),
        empty=sum(not (record.answer or "").strip() for record in answered),
        no_choice=sum(not record.chosen for record in answered) if choice else 0,
        scores={name: figures[name] for name in SCORES},
        low=score.interval[0] if score.interval else None,
        high=score.interval[1] if score.interval else None,
        ndcg=figures["ndcg"],
        documents=figures["documents"] or 0.0,
        prompt_tokens=figures["prompt_tokens"],
        tokens=figures["tokens"],
        label=label(arm),
    )


def _cells(row: AnswerRow) -> list[str]:
    interval = f"{percentage(row.low)} to {percentage(row.high)}" if row.low is not None else ""
    counts = [row.n, sum(row.missing.values()), row.cut, row.empty, row.no_choice]
    ndcg = f"{row.ndcg:.3f}" if row.ndcg is not None else ""
    scores = [percentage(row.scores[name], absent="") for name in SCORES]
    return [f"top {row.top}" if row.top else "–", row.label, ndcg, *scores, interval, *map(str, counts)]


def _compared(row: Comparison) -> list[str]:
    counts = f"{row.wins:g} / {row.ties:g} / {row.losses:g}"
    interval = f"{points(row.low)} to {points(row.high)}"
    systems = [label(row.arm), label(row.baseline).lower()]
    figures = [points(row.difference), interval, counts, p_cell(row.p), p_cell(row.p_holm), "†" * row.significant]
    return [f"top {row.environment}", *systems, *figures]
