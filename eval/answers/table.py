"""Compute tables from answers: means, intervals, missing answers and significant differences.

Raw retrieval is compared with no retrieval, and every other system with raw, at the same number of documents. Holm's
correction covers all of these comparisons together. A missing answer is counted and left out of every mean and pair.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..records import RAW
from ..statistics import PairedComparison, bootstrap_ci, compare_paired, holm
from ..table import ALPHA, Adjusted, Arm, p_cell
from .figures import mean_of, pairs_of, percent, points, table

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

    @property
    def row(self) -> "RowKey":
        """The row of the table that it counts in."""
        return self.system, self.turn, self.top


RowKey = tuple[str, int, int]
"""System, turn, top."""
NO_RAG_ROW: RowKey = (NO_RAG, 0, 0)


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
    cells: dict[RowKey, dict[str, AnswerRecord]] = {}
    for record in records:
        answers = cells.setdefault(record.row, {})
        if record.question_id in answers:
            raise ValueError(f"question {record.question_id!r} has two answers of {record.system}, top {record.top}")
        answers[record.question_id] = record
    questions = list(dict.fromkeys(question for answers in cells.values() for question in answers))
    values = {
        row: {question: answers[question].scores[metric] if question in answers else None for question in questions}
        for row, answers in cells.items()
    }
    tests: list[tuple[tuple[RowKey, str], PairedComparison]] = []
    for row in cells:
        baseline = NO_RAG_ROW if row[0] == RAW else (RAW, 0, row[2])
        if row != NO_RAG_ROW and baseline in cells and (pairs := pairs_of(values[row], values[baseline])):
            test = compare_paired(*pairs, resamples=resamples, permutations=permutations, seed=seed)
            tests.append(((row, baseline[0]), test))
    adjusted = holm([test.p for _, test in tests])
    return AnswerResults(
        metric,
        len(questions),
        [_row(row, list(answers.values()), metric, resamples, seed) for row, answers in cells.items()],
        [AnswerComparison(*row, against, test, p) for ((row, against), test), p in zip(tests, adjusted, strict=True)],
    )


def markdown(results: AnswerResults, notes: Sequence[str], facts: Mapping[str, object]) -> str:
    """The page answers.md."""
    head = ["documents", "system", "nDCG@10", *HEADS.values(), "95%", "answers", "missing", "cut", "empty", "no choice"]
    lines = ["# Answers", "", table(head, [_cells(row) for row in results.rows]), ""]
    lines += [
        f"The interval and the tests are about {HEADS[results.metric]}; missing answers are left out, never 0.",
        "",
    ]
    if results.comparisons:
        head = ["documents", "system", "against", "difference", "95%", "better / same / worse", "p", "p (Holm)", ""]
        lines += [table(head, [_compared(row) for row in results.comparisons]), ""]
        lines += [
            "p: two-sided paired permutation test; Holm's correction runs over all lines of this table. † p (Holm) < "
            f"{ALPHA}.",
            "",
        ]
    lines += [f"- {note}" for note in notes]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    return "\n".join(lines) + "\n"


def _row(row: RowKey, records: Sequence[AnswerRecord], metric: str, resamples: int, seed: int) -> AnswerRow:
    answered = [record for record in records if record.answer is not None]
    tested = [value for record in answered if (value := record.scores[metric]) is not None]
    low, high = bootstrap_ci(tested, resamples, seed) if tested else (None, None)
    choice = any(record.scores["f1"] is None for record in answered)
    return AnswerRow(
        *row,
        n=len(answered),
        missing=dict(sorted(Counter(record.missing for record in records if record.answer is None).items())),
        cut=sum(record.cut for record in answered),
        empty=sum(not (record.answer or "").strip() for record in answered),
        no_choice=sum(not record.chosen for record in answered) if choice else 0,
        scores={name: mean_of(record.scores[name] for record in answered).value for name in SCORES},
        low=low,
        high=high,
        ndcg=mean_of(record.ndcg for record in answered).value,
        documents=mean_of(len(record.documents) for record in answered).value or 0.0,
        prompt_tokens=mean_of(record.prompt_tokens for record in answered).value,
        tokens=mean_of(record.tokens for record in answered).value,
    )


def _cells(row: AnswerRow) -> list[str]:
    interval = f"{percent(row.low)} to {percent(row.high)}" if row.low is not None else ""
    counts = [row.n, sum(row.missing.values()), row.cut, row.empty, row.no_choice]
    ndcg = f"{row.ndcg:.3f}" if row.ndcg is not None else ""
    scores = [percent(row.scores[name], absent="") for name in SCORES]
    return ["–" if row.system == NO_RAG else f"top {row.top}", row.label, ndcg, *scores, interval, *map(str, counts)]


def _compared(row: AnswerComparison) -> list[str]:
    test = row.test
    against = "no retrieval" if row.against == NO_RAG else "raw question"
    counts = f"{test.wins} / {test.ties} / {test.losses}"
    interval = f"{points(test.low)} to {points(test.high)}"
    cells = [f"top {row.top}", Arm(row.system, row.turn).label, against, points(test.difference), interval, counts]
    return [*cells, p_cell(test.p), p_cell(row.p_holm), "†" * row.significant]
