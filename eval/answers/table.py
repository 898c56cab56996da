"""Compute tables from answers: means, intervals, missing answers and significant differences.

Raw retrieval is compared with no retrieval, and every other system with raw, at the same number of documents. Holm's
correction covers all of these comparisons together. A missing answer is counted and left out of every mean and pair.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..records import RAW
from ..statistics import PairedComparison, bootstrap_ci, compare_paired, holm
from ..table import ALPHA, Adjusted, Arm, format_p

NO_RAG = "no-rag"
SCORES = ("accuracy", "f1", "em")
HEADS = {"accuracy": "accuracy", "f1": "F1", "em": "EM"}


@dataclass(frozen=True, slots=True)
class AnswerRecord:
    """One system's answer to one question with up to `top` documents."""

    system: str
    turn: int
    top: int
    """Maximum number of documents for the reader; 0 without retrieval."""
    question_id: str
    question: str
    documents: tuple[str, ...]
    """Ids of the documents in the prompt."""
    answer: str | None
    """None where it is missing."""
    missing: str
    """The reason: `no reply` or `no ranking`; "" where there is an answer."""
    cut: bool
    """Whether the answer was cut at `answers.max_tokens`."""
    chosen: str
    """Multiple choice: the letter parsed from the answer; "" where there is none."""
    scores: Mapping[str, float | None]
    """By metric; None where the answer is missing or the metric does not apply."""
    ndcg: float | None
    """nDCG@10 of the ranking, as it was recorded."""
    prompt_tokens: int | None
    tokens: int | None
    key: str
    """Hash of the request: the reader, the prompt and the sampling settings."""


Place = tuple[str, int, int]
"""System, turn, top."""


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

    @property
    def label(self) -> str:
        """The display name of the row."""
        return "No retrieval" if self.system == NO_RAG else Arm(self.system, self.turn).label


@dataclass(frozen=True, slots=True)
class AnswerComparison(Adjusted):
    """One row against another on the tested metric."""

    system: str
    turn: int
    top: int
    against: str
    test: PairedComparison
    p_holm: float


@dataclass(frozen=True, slots=True)
class AnswerResults:
    """All rows and comparisons."""

    metric: str
    questions: int
    rows: Sequence[AnswerRow]
    comparisons: Sequence[AnswerComparison]


def tabulate_answers(
    records: Iterable[AnswerRecord], metric: str, *, resamples: int, permutations: int, seed: int
) -> AnswerResults:
    """Build all tables. Raises ValueError for two records of one system, number of documents and question."""
    cells: dict[Place, dict[str, AnswerRecord]] = {}
    questions: dict[str, None] = {}
    for record in records:
        answers = cells.setdefault((record.system, record.turn, record.top), {})
        if record.question_id in answers:
            raise ValueError(f"question {record.question_id!r} has two answers of {record.system}, top {record.top}")
        answers[record.question_id] = record
        questions[record.question_id] = None
    rows = [_row(row_key, list(answers.values()), metric, resamples, seed) for row_key, answers in cells.items()]
    tests: list[tuple[Place, str, PairedComparison]] = []
    for row_key, baseline in _pairs(cells):
        a, b = ([_value(cells[key].get(question), metric) for question in questions] for key in (row_key, baseline))
        if any(x is not None and y is not None for x, y in zip(a, b, strict=True)):
            test = compare_paired(a, b, resamples=resamples, permutations=permutations, seed=seed)
            tests.append((row_key, baseline[0], test))
    adjusted = holm([test.p for _, _, test in tests])
    comparisons = [
        AnswerComparison(*row_key, against, test, p)
        for (row_key, against, test), p in zip(tests, adjusted, strict=True)
    ]
    return AnswerResults(metric, len(questions), rows, comparisons)


def markdown(results: AnswerResults, notes: Sequence[str], facts: Mapping[str, Any]) -> str:
    """The page answers.md."""
    head = ["documents", "system", "nDCG@10", *HEADS.values(), "95%", "answers", "missing", "cut", "empty", "no choice"]
    lines = ["# Answers", "", *_table(head, [_cells(row, results.metric) for row in results.rows]), ""]
    lines += [
        f"The interval and the tests are about {HEADS[results.metric]}; missing answers are left out, never 0.",
        "",
    ]
    if results.comparisons:
        head = ["documents", "system", "against", "difference", "95%", "better / same / worse", "p", "p (Holm)", ""]
        lines += [*_table(head, [_compared(row) for row in results.comparisons]), ""]
        lines += [
            "p: two-sided paired permutation test; Holm's correction runs over all lines of this table. † p (Holm) < "
            f"{ALPHA}.",
            "",
        ]
    lines += [f"- {note}" for note in notes]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _pairs(row_keys: Iterable[Place]) -> list[tuple[Place, Place]]:
    existing = list(row_keys)
    no_rag = (NO_RAG, 0, 0)
    pairs = []
    for row_key in existing:
        baseline = no_rag if row_key[0] == RAW else (RAW, 0, row_key[2])
        if row_key != no_rag and baseline in existing:
            pairs.append((row_key, baseline))
    return pairs


def _value(record: AnswerRecord | None, metric: str) -> float | None:
    return record.scores[metric] if record is not None else None


def _row(row_key: Place, records: Sequence[AnswerRecord], metric: str, resamples: int, seed: int) -> AnswerRow:
    answered = [record for record in records if record.answer is not None]
    reasons = [record.missing for record in records if record.answer is None]
    tested = [value for record in answered if (value := record.scores[metric]) is not None]
    low, high = bootstrap_ci(tested, resamples, seed) if tested else (None, None)
    choice = any(record.scores["f1"] is None for record in answered)
    return AnswerRow(
        *row_key,
        n=len(answered),
        missing={reason: reasons.count(reason) for reason in sorted(set(reasons))},
        cut=sum(record.cut for record in answered),
        empty=sum(not (record.answer or "").strip() for record in answered),
        no_choice=sum(not record.chosen for record in answered) if choice else 0,
        scores={name: _mean([record.scores[name] for record in answered]) for name in SCORES},
        low=low,
        high=high,
        ndcg=_mean([record.ndcg for record in answered]),
        documents=_mean([len(record.documents) for record in answered]) or 0.0,
        prompt_tokens=_mean([record.prompt_tokens for record in answered]),
        tokens=_mean([record.tokens for record in answered]),
    )


def _mean(values: Sequence[float | int | None]) -> float | None:
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None


def _cells(row: AnswerRow, metric: str) -> list[str]:
    interval = f"{_percent(row.low)} to {_percent(row.high)}" if row.low is not None else ""
    counts = [row.n, sum(row.missing.values()), row.cut, row.empty, row.no_choice]
    ndcg = f"{row.ndcg:.3f}" if row.ndcg is not None else ""
    scores = [_percent(row.scores[name]) for name in SCORES]
    return ["–" if row.system == NO_RAG else f"top {row.top}", row.label, ndcg, *scores, interval, *map(str, counts)]


def _compared(row: AnswerComparison) -> list[str]:
    test = row.test
    against = "no retrieval" if row.against == NO_RAG else "raw question"
    counts = f"{test.wins} / {test.ties} / {test.losses}"
    interval = f"{_points(test.low)} to {_points(test.high)}"
    ps = [format_p(p).removeprefix("= ") for p in (test.p, row.p_holm)]
    label = Arm(row.system, row.turn).label
    return [f"top {row.top}", label, against, _points(test.difference), interval, counts, *ps, "†" * row.significant]


def _percent(value: float | None) -> str:
    return f"{100 * value:.1f}" if value is not None else ""


def _points(value: float) -> str:
    """A difference in percentage points, with + or a true minus sign; a value that rounds to zero has neither."""
    text = f"{100 * value:+.1f}".replace("-", "−")
    return "0.0" if text[1:] == "0.0" else text


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines]
