"""The figures of an evaluation: records as one long DataFrame, and from it means with intervals, behaviour, costs, and
tested differences.

A table has a row per system and turn and a column per environment. There is one for each dataset, one for each part of
a dataset with parts, and one for the average of several datasets (MEAN). An average is the mean of weighted means, and
exists only where every part has one. Comparisons are made in the same environment, on the first metric, over questions
that both systems have a score for. Holm's correction covers all comparisons that are printed under one caption: those
of all datasets and of their average; those of the parts of one dataset are another table.
"""

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from operator import attrgetter
from statistics import fmean
from typing import Any, Literal, NamedTuple

import pandas as pd

from ..data.leakage import words
from ..rewards.metrics import SET_METRIC
from ..rewriters.case import repeats
from .records import RAW, EvalRecord
from .statistics import PairedComparison, Stratum, compare_strata, holm, mean_cis

ALPHA = 0.05
"""A difference is called significant where its Holm-adjusted p is below this."""
MEAN = "mean"
"""The `dataset` of the average over datasets."""
FEW = 100
"""With fewer questions than this, a table carries a warning."""
CUT_OFTEN = 0.1
"""From this share of answers cut at their token limit on, a table carries a warning."""
KEYS = ["dataset", "environment", "system", "turn"]
COSTS = ["calls", "searches", "prompt_tokens", "tokens", "seconds"]
"""What an answer costs, earlier turns included; tokens are NaN where an endpoint does not report them."""
OF_ANY = ["cut", "truncated", "unsearched", "no_hits", "beyond"]
SHARES = ["format_ok", "repeats", *OF_ANY]
"""Properties of an answer as 0 and 1. `repeats`: all its rewrites have the words of the question; NaN without a
rewrite. `cut`: at the token limit. `truncated`: the retriever read its queries only in part. `no_hits`: its native
query found nothing, or was refused. `beyond`: its native query found more than a metric of a set looks at. OF_ANY are
those that answers without a model have, too."""
FALL_BACK = "with_fall_back"
"""The first metric, with the raw question's score where the format of the answer failed."""


class Arm(NamedTuple):
    """One system at one turn: a row of a table. Turn 0: no model wrote."""

    system: str
    turn: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One arm on one dataset, or a part of it, in one environment. All shares and costs are means per answer."""

    dataset: str
    part: str
    """"" where it is all of the dataset."""
    environment: str
    system: str
    turn: int
    label: str
    """The row's display name."""
    n: int
    """Questions with a score."""
    of: int
    """Questions asked."""
    metrics: dict[str, float | None]
    """Means over the questions with a score; the first one is tested."""
    intervals: dict[str, tuple[float, float]]
    """95% bootstrap intervals of those that have a mean."""
    with_fall_back: float | None = None
    """FALL_BACK; None, like the next three, where no model wrote."""
    format_ok: float | None = None
    repeats: float | None = None
    """Of the answers with a rewrite."""
    cut: float | None = None
    """None, like tokens, where it is unknown for any answer."""
    truncated: float | None = None
    unsearched: float | None = None
    no_hits: float | None = None
    """Of the native queries, like the next."""
    beyond: float | None = None
    calls: float | None = None
    searches: float | None = None
    prompt_tokens: float | None = None
    tokens: float | None = None
    seconds: float | None = None
    marks: str = ""
    """Significantly better or worse than which baselines (TableSpec.marks)."""
    best: bool = False
    """Whether the first metric is the best of its column, to three decimals."""

    @property
    def arm(self) -> Arm:
        """The system at the turn."""
        return Arm(self.system, self.turn)

    @property
    def mean(self) -> float | None:
        """The first metric."""
        return next(iter(self.metrics.values()))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The interval of the first metric."""
        return self.intervals.get(next(iter(self.metrics)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison(PairedComparison):
    """One arm against another on one dataset, or a part of it, in one environment, on the first metric."""

    dataset: str
    part: str
    environment: str
    system: str
    turn: int
    against: str
    against_turn: int
    p_holm: float

    @property
    def arm(self) -> Arm:
        """The system at the turn."""
        return Arm(self.system, self.turn)

    @property
    def baseline(self) -> Arm:
        """What it is compared with."""
        return Arm(self.against, self.against_turn)

    @property
    def significant(self) -> bool:
        """Whether the adjusted p is below ALPHA."""
        return self.p_holm < ALPHA

    @property
    def outcome(self) -> Literal["better", "worse", "same"]:
        """`better` or `worse` where the difference is significant, else `same`, however large it looks."""
        if not self.significant:
            return "same"
        return "better" if self.difference > 0 else "worse"


@dataclass(frozen=True, slots=True)
class Note:
    """A remark on the figures."""

    kind: str
    """What it is about, such as `unscored` or `cut`."""
    count: float
    """Questions, answers, or the share of answers that are concerned."""
    text: str


class Table(NamedTuple):
    """Everything that is computed from the records."""

    scores: list[Score]
    """By arm, then by dataset, part and environment."""
    comparisons: list[Comparison]
    notes: list[Note]


@dataclass(frozen=True, slots=True)
class TableSpec:
    """What is computed, and in which order it is shown."""

    metrics: Sequence[str]
    """The first one is tested."""
    environments: Sequence[str]
    systems: Sequence[str]
    label: Callable[[Arm], str]
    pairs: Callable[[Sequence[Arm]], Sequence[tuple[Arm, Arm]]]
    """The comparisons, as (arm, baseline), among the arms of a column."""
    bootstrap: int
    permutations: int
    seed: int
    marks: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """By baseline: the marks of a score that is significantly better, and worse, than it."""
    warn_if_cut: Collection[str] = ()
    """Systems whose answers should have ended by themselves: models that were not trained to their token limit."""


class _QuestionSet(NamedTuple):
    """A dataset, a part of one, or the average of datasets."""

    dataset: str
    part: str
    weights: Mapping[tuple[str, str], float]
    """By dataset and part; they sum to 1."""


def frame_of(
    records: Iterable[EvalRecord],
    questions: Mapping[str, Sequence[str]],
    metrics: Sequence[str],
    *,
    samples: Mapping[str, int] | None = None,
    parts: Collection[str] = (),
) -> pd.DataFrame:
    """The frame, indexed by KEYS and "question".

    `questions` are the ids of all that were asked, by dataset; `samples` the answers per question of systems that
    sample: a question has a score if every sample has one. Columns are the metrics, FALL_BACK, SHARES, COSTS, `answers`
    (the number of records) and `part`: for datasets in `parts` the beginning of the question id, PART/…, else "".
    """
    records = list(records)
    raw = {
        (record.dataset, record.environment, record.question_id): record.metrics.get(metrics[0])
        for record in records
        if record.system == RAW
    }
    set_depths = [int(name.partition("@")[2]) for name in metrics if SET_METRIC.fullmatch(name)]
    of_answer, costs = attrgetter(*KEYS, "question_id"), attrgetter(*COSTS)
    rows = [
        (
            *of_answer(record),
            *map(record.metrics.get, metrics),
            record.metrics.get(metrics[0])
            if record.format_ok
            else raw.get((record.dataset, record.environment, record.question_id)),
            record.format_ok,
            repeats(record.rewrites, {words(record.question)}) if record.rewrites and record.turn else None,
            record.cut,
            None if record.truncated is None else record.truncated > 0,
            record.unsearched,
            None if record.hits is None else record.hits == 0,
            record.hits > min(set_depths) if set_depths and record.hits is not None else None,
            *costs(record),
        )
        for record in records
    ]
    index, values = [*KEYS, "question"], [*metrics, FALL_BACK, *SHARES, *COSTS]
    table = pd.DataFrame(rows, columns=[*index, *values]).astype(dict.fromkeys(values, float))
    grouped = table.groupby(index, sort=False)
    frame, present, answers = grouped.mean(), grouped.count(), grouped.size()
    expected = answers.index.get_level_values("system").map(lambda name: (samples or {}).get(name, 1)).to_numpy()
    unknown = present.ne(answers, axis=0) & ~present.columns.isin(["repeats", "truncated", "no_hits", "beyond"])
    unknown[list(metrics)] |= (answers.to_numpy() != expected)[:, None]
    frame = frame.mask(unknown).assign(answers=answers)
    arms = answers.index.droplevel("question").unique()
    expected_rows = [(*arm, question) for arm in arms for question in questions[arm[0]]]
    frame = frame.reindex(pd.MultiIndex.from_frame(pd.DataFrame(expected_rows, columns=index))).fillna({"answers": 0})
    return frame.assign(part=[key[-1].partition("/")[0] if key[0] in parts else "" for key in expected_rows])


def tabulate(frame: pd.DataFrame, spec: TableSpec) -> Table:
    """All scores, comparisons and notes of a frame of `frame_of`."""
    cells: dict[tuple[str, str, str], dict[Arm, pd.DataFrame]] = {}
    for (dataset, part, environment, system, turn), answers in frame.reset_index().groupby(
        ["dataset", "part", "environment", "system", "turn"], sort=False
    ):
        cells.setdefault((dataset, part, environment), {})[Arm(system, turn)] = answers.set_index("question")
    order = {name: position for position, name in enumerate(spec.systems)}
    scores: list[Score] = []
    families: dict[str, list[Comparison]] = {}
    notes: list[Note] = []
    for questions in _question_sets(list(cells)):
        for environment in spec.environments:
            strata = [(weight, cells.get((*key, environment), {})) for key, weight in questions.weights.items()]
            present = {arm for _, by_arm in strata for arm in by_arm}
            if not present:
                continue
            arms = sorted(present, key=lambda arm: (order[arm.system], arm.turn))
            columns = {
                arm: [(w, by_arm[arm]) for w, by_arm in strata] for arm in arms if all(arm in c for _, c in strata)
            }
            name = {"dataset": questions.dataset, "part": questions.part, "environment": environment}
            row = [_score(name, arm, spec, answers) for arm, answers in columns.items()]
            tested = _comparisons(name, spec, columns)
            families.setdefault(questions.dataset if questions.part else "", []).extend(tested)
            notes += _notes(questions, environment, spec, row, [arm for arm in arms if arm not in columns])
            scores += row
    comparisons = [row for family in families.values() for row in _adjusted(family)]
    scores = [_marked(score, scores, comparisons, spec) for score in scores]
    scores.sort(key=lambda score: (order[score.system], score.turn))
    return Table(scores, comparisons, list(dict.fromkeys(notes)))


def _question_sets(cells: Sequence[tuple[str, str, str]]) -> list[_QuestionSet]:
    """Each part, each dataset as the average of its parts, and the average of the datasets."""
    parts: dict[str, list[str]] = {}
    for dataset, part in dict.fromkeys((dataset, part) for dataset, part, _ in cells):
        parts.setdefault(dataset, []).append(part)
    sets: list[_QuestionSet] = []
    average: dict[tuple[str, str], float] = {}
    for dataset, names in parts.items():
        if len(names) > 1:
            sets += [_QuestionSet(dataset, name, {(dataset, name): 1.0}) for name in names]
        weights = {(dataset, name): 1.0 / len(names) for name in names}
        sets.append(_QuestionSet(dataset, "", weights))
        average |= {key: weight / len(parts) for key, weight in weights.items()}
    return [*sets, _QuestionSet(MEAN, "", average)] if len(parts) > 1 else sets


def _score(name: Mapping[str, Any], arm: Arm, spec: TableSpec, strata: Sequence[tuple[float, pd.DataFrame]]) -> Score:
    values = {metric: [(weight, answers[metric].dropna()) for weight, answers in strata] for metric in spec.metrics}
    complete = {metric: sets for metric, sets in values.items() if all(len(scored) for _, scored in sets)}
    columns = [*COSTS, *OF_ANY]
    if arm.turn:
        columns += [FALL_BACK, *SHARES]
    tokens_and_cut = ("prompt_tokens", "tokens", "cut")  # known answers alone may not be representative

    def mean(column: str) -> float | None:
        sets = [(weight, answers.loc[answers["answers"] > 0, column]) for weight, answers in strata]
        if column not in tokens_and_cut:
            sets = [(weight, present.dropna()) for weight, present in sets]
        if not all(len(present) for _, present in sets) or any(present.isna().any() for _, present in sets):
            return None
        return math.fsum(weight * fmean(present) for weight, present in sets)

    shares: dict[str, Any] = {column: mean(column) for column in dict.fromkeys(columns)}
    return Score(
        **name,
        system=arm.system,
        turn=arm.turn,
        label=spec.label(arm),
        n=sum(len(scored) for _, scored in values[spec.metrics[0]]),
        of=sum(len(answers) for _, answers in strata),
        metrics=dict.fromkeys(spec.metrics)
        | {metric: math.fsum(weight * fmean(scored) for weight, scored in sets) for metric, sets in complete.items()},
        intervals=mean_cis(complete, spec.bootstrap, spec.seed),
        **shares,
    )


def _comparisons(
    name: Mapping[str, Any], spec: TableSpec, columns: Mapping[Arm, Sequence[tuple[float, pd.DataFrame]]]
) -> list[Comparison]:
    """The comparisons of one column; their p_holm is not adjusted yet."""
    rows = []
    for arm, baseline in spec.pairs(list(columns)):
        strata = [
            Stratum(weight, a[spec.metrics[0]], b[spec.metrics[0]].reindex(a.index))
            for (weight, a), (_, b) in zip(columns[arm], columns[baseline], strict=True)
        ]
        test = compare_strata(strata, resamples=spec.bootstrap, permutations=spec.permutations, seed=spec.seed)
        if test is not None:
            sides = {"against": baseline.system, "against_turn": baseline.turn, **arm._asdict()}
            rows.append(Comparison(**name, **sides, **asdict(test), p_holm=test.p))
    return rows


def _adjusted(family: Sequence[Comparison]) -> list[Comparison]:
    adjusted = holm([row.p for row in family])
    return [replace(row, p_holm=p) for row, p in zip(family, adjusted, strict=True)]


def _marked(score: Score, scores: Sequence[Score], comparisons: Sequence[Comparison], spec: TableSpec) -> Score:
    """The score with its marks, and whether it is the best of its column."""

    def column(row: Score | Comparison) -> tuple[str, str, str]:
        return row.dataset, row.part, row.environment

    marks = ""
    for row in comparisons:
        if column(row) == column(score) and row.arm == score.arm and row.against in spec.marks:
            better, worse = spec.marks[row.against]
            marks += {"better": better, "worse": worse, "same": ""}[row.outcome]
    means = [row.mean for row in scores if column(row) == column(score) and row.mean is not None]
    best = score.mean is not None and len(means) > 1 and round(score.mean, 3) == round(max(means), 3)
    return replace(score, marks=marks, best=best)


def _notes(
    questions: _QuestionSet, environment: str, spec: TableSpec, scores: Sequence[Score], incomplete: Sequence[Arm]
) -> list[Note]:
    title = ": ".join(filter(None, questions[:2]))
    subject = f"{title} in {environment}" if environment else title
    average = len(questions.weights) > 1
    size = max((score.of for score in scores), default=0)
    notes: list[tuple[str, float | None, str]] = []
    if size < FEW and not average:
        text = "the intervals are wide, and a difference that is not significant may be there all the same."
        notes.append(("few", size, f"{title}: only {size} question{'s' * (size != 1)}: {text}"))
    for score in scores if not average else ():
        failed = score.of - score.n
        cut = score.cut if score.system in spec.warn_if_cut and (score.cut or 0) >= CUT_OFTEN else None
        remarks = (
            ("unscored", failed, f"has a score for {score.n} of {score.of} questions; its mean is over these alone."),
            ("cut", cut, "{} of its answers were cut at their token limit. Give it more rollout.max_new_tokens."),
            (
                "truncated",
                score.truncated,
                "{} of its queries are longer than the retriever reads; the rest is left out.",
            ),
            ("beyond", score.beyond, "{} of its queries found more documents than a metric of a set looks at."),
            ("unsearched", score.unsearched, "{} of its answers searched nothing (rewriter.stop: answer) and score 0."),
        )
        for kind, count, text in remarks:
            notes.append((kind, count, f"{score.label} on {subject}: {text.format(percent(count))}"))
    for arm in incomplete:
        text = f"{spec.label(arm)} was not evaluated on every part of {subject}, so it has no average."
        notes.append(("incomplete", 1, text))
    return [Note(kind, count, text) for kind, count, text in notes if count]


def signed(value: float, digits: int = 3) -> str:
    """So many decimals with + or a true minus sign; a value that rounds to zero has neither."""
    text = f"{value:+.{digits}f}".replace("-", "−")
    return text[1:] if float(text[1:]) == 0 else text


def p_cell(p: float) -> str:
    """A p-value as a cell: `0.031`, or `< 0.001`."""
    return f"{p:.3f}" if p >= 0.001 else "< 0.001"


def decimal(value: float | None, digits: int = 3) -> str:
    """A number with so many decimals, or a dash."""
    return "–" if value is None else f"{value:.{digits}f}"


def percent(share: float | None) -> str:
    """A share as a percentage with one decimal and its sign, or a dash."""
    return "–" if share is None else f"{100 * share:.1f}%"


def percentage(value: float | None, absent: str = "–") -> str:
    """A share as a percentage with one decimal, without its sign."""
    return absent if value is None else f"{100 * value:.1f}"


def listed(names: Sequence[str], joint: str) -> str:
    """`a, b and c`."""
    return f" {joint} ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])
