"""The tables of an evaluation: their rows, scores, comparisons and costs, and how figures read in a sentence."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from ..configs.methods import TRAINING_FREE
from .records import HISTORY, HYDE, NO_RAG, RAW, REFERENCE, WARM_START, EvalRecord
from .statistics import PairedComparison

ALPHA = 0.05
"""A difference is called significant where its Holm-adjusted p is below this."""

_LABELS = {
    RAW: "Raw question",
    HISTORY: "History and question",
    REFERENCE: "Reference rewrite",
    NO_RAG: "No retrieval",
    "first_titles": "First titles",
    "rm3": "RM3",
    "weighted_words": "Weighted question words",
    HYDE: "HyDE at equal cost",
}
"""Labels of systems with a single turn."""
NAMES = {
    RAW: "the raw question",
    HISTORY: "the history and the question",
    REFERENCE: "the reference rewrite",
    WARM_START: "its warm start",
}
"""Systems inside a sentence."""


class Arm(NamedTuple):
    """One system at one turn: a row of a table."""

    system: str
    turn: int

    @property
    def label(self) -> str:
        """The display name of a row in the evaluation of a run."""
        if self.system in _LABELS:
            return _LABELS[self.system]
        return f"{self.system.capitalize()}, turn {self.turn}"

    @property
    def name(self) -> str:
        """The system inside a sentence."""
        if self.system in NAMES:
            return NAMES[self.system]
        if self.system in TRAINING_FREE:
            return f"the training-free baseline {_LABELS[self.system]}"
        return _LABELS.get(self.system, f"the {self.system} policy")

    @property
    def phrase(self) -> str:
        """The row inside a sentence."""
        return self.name if self.system in _LABELS else f"{self.name} at turn {self.turn}"


class Adjusted:
    """Base class of results with a Holm-adjusted p-value."""

    __slots__ = ()
    p_holm: float

    @property
    def significant(self) -> bool:
        """Whether the adjusted p is below ALPHA."""
        return self.p_holm < ALPHA


@dataclass(frozen=True, slots=True)
class Comparison(Adjusted):
    """One arm against a baseline in one environment, on the first metric."""

    arm: Arm
    baseline: Arm
    environment: str
    test: PairedComparison
    p_holm: float

    @property
    def outcome(self) -> Literal["better", "worse", "same"]:
        """`better` or `worse` where the difference is significant, else `same`, however large it looks."""
        if not self.significant:
            return "same"
        return "better" if self.test.difference > 0 else "worse"

    @property
    def verdict(self) -> str:
        """The outcome between the arm and its baseline in a sentence."""
        return {"better": "beats", "worse": "is worse than", "same": "does not beat"}[self.outcome]


@dataclass(frozen=True, slots=True)
class MeanCosts:
    """Means per answer, earlier turns included."""

    calls: float
    """Texts that the language model wrote."""
    searches: float
    tokens_in: float | None
    """None if an endpoint does not report it for every answer; the same holds for tokens_out."""
    tokens_out: float | None
    seconds: float
    format_ok: float


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of one arm in one environment to one set of questions."""

    questions: Sequence[str]
    """Ids of all questions that the arm should answer."""
    values: Mapping[str, Mapping[str, float | None]]
    """Metrics by question id; None if the question could not be scored."""
    records: Sequence[EvalRecord]

    def scores(self, metric: str, questions: Sequence[str] | None = None) -> list[float | None]:
        """The metric of every question (of `questions`), in order."""
        nothing: Mapping[str, float | None] = {}
        return [self.values.get(question, nothing).get(metric) for question in questions or self.questions]

    def scored(self, metric: str) -> list[float]:
        """The metric of the questions that have a score."""
        return [value for value in self.scores(metric) if value is not None]


@dataclass(frozen=True, slots=True)
class QuestionSet:
    """A set of questions: a dataset, or a part of one. Answers by arm and environment."""

    title: str
    answers: Mapping[tuple[Arm, str], Answers]


Parts = Sequence[tuple[float, QuestionSet]]
"""The question sets of a table with their weights, which sum to 1."""


@dataclass(frozen=True, slots=True)
class TableScore:
    """One cell of a table."""

    metrics: dict[str, float | None]
    """The first one is tested."""
    intervals: dict[str, tuple[float, float]]
    """95% bootstrap interval by metric, of those that have a mean."""
    n: int
    """Questions with a score."""
    of: int
    """Questions asked."""
    marks: str = ""
    best: bool = False
    format_ok: float | None = None
    """Share of answers in the requested format. None, like the next three fields, if no model wrote the answers."""
    repeats: float | None = None
    """Share of rewrites that repeat the question."""
    cut: float | None = None
    """Share of answers truncated at their token limit."""
    with_fall_back: float | None = None
    """The first metric, with the raw question's score for every answer in the wrong format."""

    @property
    def low(self) -> float | None:
        """Lower end of the interval of the first metric."""
        return self._ends[0]

    @property
    def high(self) -> float | None:
        """Upper end of the interval of the first metric."""
        return self._ends[1]

    @property
    def _ends(self) -> tuple[float, float] | tuple[None, None]:
        return self.intervals.get(next(iter(self.metrics)), (None, None))

    @property
    def interval(self) -> str:
        """The interval of the first metric as text; "" without one."""
        return f"{self.low:.3f} to {self.high:.3f}" if self.low is not None and self.high is not None else ""


@dataclass(frozen=True, slots=True)
class Row:
    """One arm; its scores by environment, None for an environment without a score."""

    system: str
    turn: int
    label: str
    scores: dict[str, TableScore | None]
    costs: MeanCosts | None

    @property
    def arm(self) -> Arm:
        """The system at the turn."""
        return Arm(self.system, self.turn)


@dataclass(frozen=True, slots=True)
class Table:
    """One table."""

    title: str
    environments: list[str]
    questions: int
    rows: list[Row]
    comparisons: list[Comparison]
    notes: list[str] = field(default_factory=list)
    average: bool = False
    dataset: str = ""
    """The dataset; "" in the average of several."""
    part: str = ""
    """The part of the dataset; "" where the table is of all of it."""

    def last(self, system: str) -> Arm | None:
        """The last turn of a system; None if it has no row."""
        return max((row.arm for row in self.rows if row.arm.system == system), default=None)

    def score(self, arm: Arm | None, environment: str) -> TableScore | None:
        """The score of an arm in an environment; None if there is none."""
        return next((row.scores.get(environment) for row in self.rows if row.arm == arm), None)

    def mean(self, arm: Arm | None, environment: str, metric: str) -> float | None:
        """A metric of an arm in an environment; None if there is no score."""
        score = self.score(arm, environment)
        return score.metrics[metric] if score is not None else None

    def gain(self, arm: Arm | None, baseline: Arm | None, environment: str, metric: str) -> float | None:
        """By how much the mean of an arm is above that of another; None if one has no score."""
        mean, reference = (self.mean(side, environment, metric) for side in (arm, baseline))
        return mean - reference if mean is not None and reference is not None else None


def whole_datasets(tables: Sequence[Table]) -> list[Table]:
    """The tables of datasets and of their average, without those of parts of a dataset."""
    return [table for table in tables if not table.part]


Legend = Sequence[tuple[str, str, str]]
"""Marks of significantly better and worse, and than what."""


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What a table shows, and how it is computed."""

    metrics: Sequence[str]
    """The first one is tested."""
    environments: Sequence[str]
    """The columns, in order."""
    systems: Sequence[str]
    """The rows, in order."""
    label: Callable[[Arm], str]
    pairs: Callable[[Sequence[Arm]], Sequence[tuple[Arm, Arm]]]
    """The comparisons, as (arm, baseline), among the arms of a table."""
    bootstrap: int
    permutations: int
    seed: int
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By baseline: the marks of a score that is significantly better, and worse, than it."""
    notes: Mapping[str, str] = field(default_factory=dict)
    """Notes on systems, for the tables that they are in."""
    warn_if_cut: Collection[str] = ()
    """Systems whose answers should have ended by themselves: models that were not trained to their token limit."""


def signed(value: float, digits: int = 3) -> str:
    """So many decimals with + or a true minus sign; a value that rounds to zero has neither."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(text[1:]) == 0 else text


def points(value: float | None) -> str:
    """A difference of shares in percentage points, signed, or a dash."""
    return "–" if value is None else signed(100 * value, 1)


def p_cell(p: float) -> str:
    """A p-value as a cell: `0.031`, or `< 0.001`."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def percentage(value: float | None, absent: str = "–") -> str:
    """A share as a percentage with one decimal, without its sign."""
    return absent if value is None else f"{100 * value:.1f}"


def listed(names: Sequence[str], joint: str) -> str:
    """`a, b and c`."""
    return f" {joint} ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
