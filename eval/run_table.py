"""The table of an evaluated run, and its verdict in words.

Every system is compared with the raw question. The trained policy is also compared with the untrained policy and its
warm start at the same turn, with HyDE, with the best training-free baseline, and with the history and the question as
one query where questions have a history.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ..configs.methods import TRAINING_FREE
from ..data.sampling import QuestionSample
from .records import HISTORY, HYDE, METRICS, RAW, REFERENCE, TRAINED, UNTRAINED, WARM_START, EvalRecord
from .table import Answers, Arm, Comparison, QuestionSet, Row, Table, TableScore, TableSpec, listed
from .tabulate import answers_of, tabulate
from .training_free import Tuned, best_baseline, best_by_validation

MAIN_METRIC = METRICS[0]

LEGEND = (("†", "↓", "the raw question"), ("‡", "⇓", "the untrained policy at the same turn"))
"""What the marks of the table mean."""

RUN_FAMILY = (
    "Two-sided paired permutation tests of ndcg@10, {permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's "
    "correction over all comparisons."
)
"""The comparisons of a run, in a sentence."""

ENVIRONMENT = ""
"""The name of the only environment of the table, which goes without saying."""


@dataclass(frozen=True, slots=True)
class RunTable:
    """All rows and comparisons of one evaluated run."""

    table: Table
    tuned: list[Tuned] = field(default_factory=list)
    """The weights of the training-free baselines."""
    best_free: str | None = None
    """The best of them on validation; without tuning, the best on the evaluated questions (in its favour)."""
    sample: QuestionSample | None = None
    """Set where the questions are a random sample of the split."""
    turn: int | None = None
    """The turn of the trained policy that counts: the best one on validation; None for the last turn."""
    missing: list[str] = field(default_factory=list)
    """Sentences about the answers that models failed to give."""
    judged: bool = True
    """Whether the questions have relevant documents."""

    @property
    def rows(self) -> list[Row]:
        """Systems by turn."""
        return self.table.rows

    @property
    def notes(self) -> list[str]:
        """Warnings of the table, how weights of training-free baselines were chosen, the best, what is missing."""
        sentences = list(self.table.notes)
        sentences += [f"{Arm(baseline.name, 0).label}: {baseline.sentence}" for baseline in self.tuned]
        if self.best_free is not None:
            basis = "on validation questions"
            if best_by_validation(self.tuned) is None:
                basis = "on the evaluated questions themselves, for want of others, which is in its favour"
            sentences.append(f"{Arm(self.best_free, 0).label} is the best training-free baseline {basis}.")
        return [*sentences, *self.missing]

    def score(self, row: Row) -> TableScore:
        score = row.scores[ENVIRONMENT]
        assert score is not None, "every row of a run has a score"
        return score

    def comparison(self, arm: Arm, baseline: Arm) -> Comparison | None:
        """The comparison of `arm` with `baseline`; None where it was not made."""
        matches = (row for row in self.table.comparisons if row.arm == arm and row.baseline == baseline)
        return next(matches, None)


def tabulate_run(
    records: Sequence[EvalRecord],
    tuned: Sequence[Tuned] = (),
    *,
    resamples: int,
    permutations: int,
    seed: int,
    dataset: str = "questions",
) -> RunTable:
    """Build the table. A question without a record of an arm counts as a failed search of that arm.

    `tuned` are the training-free baselines; the trained policy is compared with the best of them. `dataset` is the name
    of the column in tables of several systems.

    Raises ValueError for no records, or where one arm has two records for a question.
    """
    if not records:
        raise ValueError("there are no evaluation records; nothing can be tabulated")
    questions = list(dict.fromkeys(record.question_id for record in records))
    by_system: dict[str, list[EvalRecord]] = {}
    for record in records:
        by_system.setdefault(record.system, []).append(record)
    answers: dict[tuple[Arm, str], Answers] = {
        (Arm(system, turn), ENVIRONMENT): turn_answers
        for system, system_records in by_system.items()
        for turn, turn_answers in answers_of(questions, system_records, samples=1).items()
    }
    free = {
        arm.system: of_arm.scores(MAIN_METRIC) for (arm, _), of_arm in answers.items() if arm.system in TRAINING_FREE
    }
    best_free, _ = best_baseline(free, {baseline.name: baseline for baseline in tuned})
    spec = TableSpec(
        metrics=METRICS,
        environments=[ENVIRONMENT],
        systems=_order(by_system),
        label=lambda arm: arm.label,
        pairs=lambda arms: _pairs(arms, best_free),
        bootstrap=resamples,
        permutations=permutations,
        seed=seed,
        warn_if_cut=(HYDE, UNTRAINED),
        marks={RAW: ("†", "↓"), UNTRAINED: ("‡", "⇓")},
    )
    table = tabulate(spec, "", [(1.0, QuestionSet("", answers))], dataset=dataset)
    return RunTable(table, list(tuned), best_free)


def _order(systems: Iterable[str]) -> list[str]:
    """Raw, baselines, untrained, other systems by name, warm start, trained."""
    first, last = [RAW, HISTORY, REFERENCE, *TRAINING_FREE, HYDE, UNTRAINED], [WARM_START, TRAINED]
    return [*first, *sorted({*systems} - {*first, *last}), *last]


def _pairs(arms: Sequence[Arm], best_free: str | None) -> list[tuple[Arm, Arm]]:
    raw = Arm(RAW, 0)
    pairs = [(arm, raw) for arm in arms if arm != raw and raw in arms]
    for arm in arms:
        if arm.system == TRAINED:
            against = [Arm(UNTRAINED, arm.turn), Arm(WARM_START, arm.turn), Arm(best_free or "", 0), Arm(HYDE, 1)]
            against += [Arm(HISTORY, 0), Arm(REFERENCE, 0)]
            pairs += [(arm, baseline) for baseline in against if baseline in arms]
    return pairs


def final_comparisons(results: RunTable) -> list[Comparison]:
    """The main comparisons: the trained policy (or the untrained one, if none was trained) at the turn that counts."""
    systems = {row.arm.system for row in results.rows}
    name = TRAINED if TRAINED in systems else UNTRAINED
    last = max((row.arm.turn for row in results.rows if row.arm.system == name), default=0)
    arm = Arm(name, min(results.turn or last, last) if name == TRAINED else last)
    baselines = [Arm(RAW, 0)]
    if name == TRAINED:
        baselines = [Arm(UNTRAINED, arm.turn), Arm(RAW, 0), Arm(results.best_free or "", 0), Arm(HYDE, 1)]
        baselines += [Arm(WARM_START, arm.turn), Arm(HISTORY, 0)]
    return [row for baseline in baselines if (row := results.comparison(arm, baseline))]


def headline(results: RunTable) -> str:
    """One sentence on what the policy beats and what it does not."""
    if not results.judged:
        return (
            "The questions have no relevant documents, so every figure of this table is 0 and says nothing. "
            "`querylect answers RUN` lets a reader answer from the rankings, and scores its answers."
        )
    comparisons = final_comparisons(results)
    if not comparisons:
        only = [row for row in results.rows if row.arm.system == RAW]
        value = results.score(only[0]).metrics[MAIN_METRIC] if only else None
        if value is not None and len(results.rows) == 1:
            return f"Only the raw question was evaluated: nDCG@10 is {value:.3f}."
        return "No policy could be compared with the raw question."
    arm = comparisons[0].arm
    by_verdict: dict[str, list[str]] = {}
    for row in comparisons:
        by_verdict.setdefault(row.verdict, []).append(row.baseline.name)
    outcome = ", but ".join(
        f"{verdict} {listed(names, 'or' if verdict == 'does not beat' else 'and')}"
        for verdict, names in by_verdict.items()
    )
    return f"At turn {arm.turn}, the {arm.system} policy {outcome}."
