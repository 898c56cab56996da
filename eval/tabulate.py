"""Build tables from records: scores with intervals, what is written, costs, and tested differences.

Rows are systems by turn, columns are environments. For a system that samples, a question's score is the mean over its
samples, and None unless all of them have a score. Comparisons are made in the same environment, on the first metric;
Holm's correction covers all comparisons of a table. An average is the mean of weighted parts, and exists only if every
part does.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Literal

from .behaviour import Behaviour, behaviour, cut_warning, percent, with_fall_back
from .records import RAW, EvalRecord
from .statistics import Stratum, compare_strata, holm, mean_cis
from .table import Answers, Arm, Comparison, MeanCosts, Parts, QuestionSet, Row, Table, TableScore, TableSpec

FEW = 100
"""With fewer questions than this, a table carries a warning."""


def answers_of(questions: Sequence[str], records: Sequence[EvalRecord], samples: int) -> dict[int, Answers]:
    """The answers of a system by turn; a metric is None unless every sample of the question has a score.

    Raises ValueError where two records are the same sample of an answer.
    """
    by_turn: dict[int, dict[str, list[EvalRecord]]] = {}
    for record in records:
        by_turn.setdefault(record.turn, {}).setdefault(record.question_id, []).append(record)
    answers = {}
    for turn, answered in sorted(by_turn.items()):
        values = {question: _mean_metrics(answered.get(question, ()), samples) for question in questions}
        turn_records = [record for question in questions for record in answered.get(question, ())]
        answers[turn] = Answers(questions, values, turn_records)
    return answers


def split_by_part(dataset: QuestionSet) -> list[QuestionSet]:
    """Split a dataset into its parts, given by the prefix of the question ids: PART/…"""
    names = dict.fromkeys(
        question.partition("/")[0] for answers in dataset.answers.values() for question in answers.questions
    )

    def answers_in(name: str, answers: Answers) -> Answers:
        questions = [question for question in answers.questions if question.partition("/")[0] == name]
        records = [record for record in answers.records if record.question_id.partition("/")[0] == name]
        return Answers(questions, answers.values, records)

    by_name = {name: {key: answers_in(name, answers) for key, answers in dataset.answers.items()} for name in names}
    return [QuestionSet(f"{dataset.title}: {name}", part_answers) for name, part_answers in by_name.items()]


def tabulate(
    spec: TableSpec, title: str, parts: Parts, notes: Sequence[str] = (), dataset: str = "", part: str = ""
) -> Table:
    """The table of one part with weight 1, or the average of several parts. `notes` are added to the table's own."""
    order = {name: position for position, name in enumerate(spec.systems)}
    arms = sorted({arm for _, data in parts for arm, _ in data.answers}, key=lambda arm: (order[arm.system], arm.turn))
    names = [
        name for name in spec.environments if any((arm, name) in data.answers for _, data in parts for arm in arms)
    ]
    scores = {(arm, name): _score(spec, parts, arm, name) for arm in arms for name in names}
    comparisons = _comparisons(spec, parts, arms, names)
    rows = []
    for arm in arms:
        marked = {name: _marked(spec, scores, arm, name, comparisons) for name in names}
        rows.append(Row(*arm, spec.label(arm), marked, _costs(parts, arm, names)))
    questions = sum(max((len(answers.questions) for answers in data.answers.values()), default=0) for _, data in parts)
    average = len(parts) > 1
    return Table(
        title=title,
        environments=names,
        questions=questions,
        rows=rows,
        comparisons=comparisons,
        notes=[*_notes(spec, rows, questions, average), *_search_notes(spec, parts, arms, names), *notes],
        average=average,
        dataset=dataset,
        part=part,
    )


def _score(spec: TableSpec, parts: Parts, arm: Arm, name: str) -> TableScore | None:
    candidates = [(weight, part.answers.get((arm, name))) for weight, part in parts]
    present = [(weight, answers) for weight, answers in candidates if answers is not None]
    if len(present) < len(candidates):
        return None
    by_metric = {metric: [(weight, answers.scored(metric)) for weight, answers in present] for metric in spec.metrics}
    complete = {metric: strata for metric, strata in by_metric.items() if all(values for _, values in strata)}
    metrics = dict.fromkeys(spec.metrics) | {
        metric: math.fsum(weight * fmean(values) for weight, values in strata) for metric, strata in complete.items()
    }
    main = by_metric[spec.metrics[0]]
    intervals = mean_cis(complete, spec.bootstrap, spec.seed)
    n, total = sum(len(values) for _, values in main), sum(len(answers.questions) for _, answers in present)
    score = TableScore(metrics, intervals, n, total)
    return _with_behaviour(score, spec, arm, name, parts) if arm.turn else score


def _with_behaviour(score: TableScore, spec: TableSpec, arm: Arm, name: str, parts: Parts) -> TableScore:
    """The score with behaviour figures added (format, repeats, truncation, fall-back); weighted means over parts."""
    shares: list[tuple[float, Behaviour, float | None]] = []
    for weight, part in parts:
        records = part.answers[arm, name].records
        if not records:
            return score
        raw = part.answers.get((Arm(RAW, 0), name))
        questions = {record.question_id: record for record in raw.records} if raw is not None else {}
        by_question: dict[str, list[float | None]] = {}
        for record in records:
            fallback = with_fall_back(record, questions, spec.metrics[0])
            by_question.setdefault(record.question_id, []).append(fallback)
        complete = [value for samples in by_question.values() if (value := _complete_mean(samples)) is not None]
        shares.append((weight, behaviour(records), fmean(complete) if complete else None))

    def mean(values: Sequence[float | None]) -> float | None:
        present = [value for value in values if value is not None]
        if len(present) < len(values):
            return None
        return math.fsum(weight * value for (weight, *_), value in zip(shares, present, strict=True))

    return replace(
        score,
        format_ok=mean([stats.format_ok for _, stats, _ in shares]),
        repeats=mean([stats.repeats for _, stats, _ in shares]),
        cut=mean([stats.cut for _, stats, _ in shares]),
        with_fall_back=mean([fallback for *_, fallback in shares]),
    )


def _comparisons(spec: TableSpec, parts: Parts, arms: Sequence[Arm], names: Sequence[str]) -> list[Comparison]:
    tests = []
    for arm, baseline in spec.pairs(arms):
        for name in names:
            pairs = [
                (weight, part.answers.get((arm, name)), part.answers.get((baseline, name))) for weight, part in parts
            ]
            strata = [
                Stratum(weight, a.scores(spec.metrics[0]), b.scores(spec.metrics[0], a.questions))
                for weight, a, b in pairs
                if a is not None and b is not None
            ]
            if len(strata) < len(pairs):
                continue
            test = compare_strata(strata, resamples=spec.bootstrap, permutations=spec.permutations, seed=spec.seed)
            if test is not None:
                tests.append((arm, baseline, name, test))
    adjusted = holm([test.p for *_, test in tests])
    return [Comparison(*compared, p) for compared, p in zip(tests, adjusted, strict=True)]


def _marked(
    spec: TableSpec,
    scores: Mapping[tuple[Arm, str], TableScore | None],
    arm: Arm,
    name: str,
    comparisons: Sequence[Comparison],
) -> TableScore | None:
    """The score of an arm in an environment with its marks, and whether it is the best of its column."""
    score = scores[arm, name]
    if score is None:
        return None
    marks = ""
    for row in comparisons:
        if (row.arm, row.environment) == (arm, name) and row.baseline.system in spec.marks:
            better, worse = spec.marks[row.baseline.system]
            marks += {"better": better, "worse": worse, "same": ""}[row.outcome]
    means = [
        mean
        for (_, environment), cell in scores.items()
        if environment == name and cell is not None and (mean := cell.metrics[spec.metrics[0]]) is not None
    ]
    mean = score.metrics[spec.metrics[0]]
    best = mean is not None and len(means) > 1 and round(mean, 3) == round(max(means), 3)
    return replace(score, marks=marks, best=best)


def _costs(parts: Parts, arm: Arm, names: Sequence[str]) -> MeanCosts | None:
    records = [record for name in names for record in _records(parts, arm, name)]
    if not records:
        return None
    return MeanCosts(
        calls=fmean([record.calls for record in records]),
        searches=fmean([record.searches for record in records]),
        tokens_in=_complete_mean([record.prompt_tokens for record in records]),
        tokens_out=_complete_mean([record.tokens for record in records]),
        seconds=fmean([record.seconds for record in records]),
        format_ok=fmean([record.format_ok for record in records]),
    )


def _notes(spec: TableSpec, rows: Sequence[Row], questions: int, average: bool) -> list[str]:
    notes = []
    if questions < FEW and not average:
        notes.append(
            f"Only {questions} question{'s' * (questions != 1)}: the intervals are wide, and a difference that is not "
            "significant may be there all the same."
        )
    for row in rows:
        for name, score in row.scores.items():
            suffix = f" in {name}" if name else ""
            if score is not None and score.n < score.of:
                notes.append(
                    f"{row.label}{suffix} has a score for {score.n} of {score.of} questions; its mean is over these, "
                    "and the others are counted nowhere."
                )
            if score is not None and not average and row.arm.system in spec.warn_if_cut:
                notes += cut_warning(f"{row.label}{suffix}", score.cut, "Give it more rollout.max_new_tokens.")
            if score is None and average:
                notes.append(f"{row.label}{suffix} was not evaluated on every part, so it has no average.")
    systems = dict.fromkeys(row.arm.system for row in rows)
    return [*notes, *(spec.notes[name] for name in systems if name in spec.notes)]


def _records(parts: Parts, arm: Arm, name: str) -> list[EvalRecord]:
    answers = [part.answers[arm, name] for _, part in parts if (arm, name) in part.answers]
    return [record for answer in answers for record in answer.records]


def _search_notes(spec: TableSpec, parts: Parts, arms: Sequence[Arm], names: Sequence[str]) -> list[str]:
    """For each environment, the share of each row's queries that it read only in part; then of its answers that
    stopped before any search."""
    notes = []
    for name in names:
        if shares := _shares(spec, parts, arms, name, "truncated"):
            notes.append(
                f"Queries longer than {name or 'the retriever'} reads (query_max_length), of which only the beginning "
                f"was searched: {shares}."
            )
    for name in names:
        if shares := _shares(spec, parts, arms, name, "unsearched"):
            suffix = f" in {name}" if name else ""
            notes.append(
                f"Answers that searched nothing{suffix} (rewriter.stop: answer): {shares}. Their rankings are empty "
                "and score 0; compare such systems by their answers (`querylect answers`)."
            )
    return notes


def _shares(
    spec: TableSpec, parts: Parts, arms: Sequence[Arm], name: str, flag: Literal["truncated", "unsearched"]
) -> str:
    """The rows with such records, each with their share among those that say; "" without any."""
    shares = []
    for arm in arms:
        values = [getattr(record, flag) for record in _records(parts, arm, name)]
        flags = [bool(value) for value in values if value is not None]
        if any(flags):
            shares.append(f"{spec.label(arm)} {percent(fmean(flags))}")
    return ", ".join(shares)


def _mean_metrics(records: Sequence[EvalRecord], samples: int) -> dict[str, float | None]:
    """Means over all samples; empty if a sample is missing, None for a metric without a score in some sample."""
    if len({record.sample for record in records}) < len(records):
        first = records[0]
        raise ValueError(
            f"question {first.question_id!r} has two records for {first.system}, turn {first.turn}; expected one"
        )
    if len(records) != samples:
        return {}
    return {metric: _complete_mean([record.metrics[metric] for record in records]) for metric in records[0].metrics}


def _complete_mean(values: Sequence[float | None]) -> float | None:
    """The mean; None where any value is unknown, because the known ones may not be representative."""
    present = [value for value in values if value is not None]
    return fmean(present) if len(present) == len(values) else None
