"""The tables of a spec: one per dataset (and per part of it), and the average over datasets."""

from collections.abc import Mapping, Sequence
from operator import itemgetter

from ..configs.evaluation import BEST_FREE, RAW, UNWRITTEN, SpecConfig
from ..data.sampling import QuestionSample
from .cells import Cell
from .records import UNTRAINED, EvalRecord
from .report.examples import Examples, choose_examples
from .table import ALPHA, NAMES, Answers, Arm, Legend, QuestionSet, Table, TableSpec, listed
from .tabulate import answers_of, split_by_part, tabulate
from .training_free import Tuned, best_baseline
from .wide_table import WideTable, wide_table

MARKS = (("†", "↓"), ("‡", "⇓"))
"""Significantly better and worse than the first and the second baseline."""
FREE_MARKS = ("★", "☆")
"""Significantly better and worse than the best training-free baseline."""


def build_tables(spec: SpecConfig, cells: Sequence[Cell], records: Mapping[Cell, Sequence[EvalRecord]]) -> list[Table]:
    """One table per dataset (one per part and their average if it has parts), then the average over datasets."""
    tables: list[Table] = []
    table_spec = spec_of_tables(spec)
    shares: list[list[tuple[float, QuestionSet]]] = []
    for dataset in spec.datasets:
        of_dataset = [cell for cell in cells if cell.environment.dataset == dataset]
        answers: dict[tuple[Arm, str], Answers] = {}
        for cell in of_dataset:
            ids = [question.id for question in cell.environment.questions]
            for turn, turn_answers in answers_of(ids, records[cell], cell.system.asking.paths).items():
                answers[Arm(cell.system.name, turn), cell.environment.name] = turn_answers
        if not answers:
            continue
        notes = _add_best_free(spec, of_dataset, answers)
        full = QuestionSet(dataset, answers)
        parts = split_by_part(full) if spec.has_parts(dataset) else [full]
        names = [part.title.removeprefix(f"{dataset}: ") for part in parts] if len(parts) > 1 else [""]
        tables += [
            tabulate(table_spec, part.title, [(1.0, part)], notes, dataset, name)
            for part, name in zip(parts, names, strict=True)
        ]
        shares.append([(1.0 / len(parts), part) for part in parts])
        if len(parts) > 1:
            title = f"{dataset}: average of {len(parts)} parts"
            tables.append(tabulate(table_spec, title, shares[-1], dataset=dataset))
    if len(shares) > 1:
        weighted_parts = [(share / len(shares), part) for parts in shares for share, part in parts]
        tables.append(tabulate(table_spec, f"Average of {len(shares)} datasets", weighted_parts))
    return tables


def wide_table_of(
    spec: SpecConfig, tables: Sequence[Table], samples: Mapping[str, QuestionSample] | None = None
) -> WideTable | None:
    """The table of systems and datasets; None without a table. `samples`: of the datasets that were not asked whole."""
    return wide_table(tables, spec.metrics[0], spec.split, legend(spec), samples) if tables else None


def examples_of(
    spec: SpecConfig, cells: Sequence[Cell], records: Mapping[Cell, Sequence[EvalRecord]]
) -> list[Examples]:
    """Example rewrites of every system with a model, at its last turn, beside the raw questions."""
    tables = []
    raw = {cell.environment.label: cell for cell in cells if cell.system.name == RAW}
    for cell in cells:
        origin = raw.get(cell.environment.label)
        if cell.system.engine_key is None or origin is None:
            continue
        answers = [
            answers_of(
                [question.id for question in side.environment.questions], records[side], side.system.asking.paths
            )
            for side in (origin, cell)
        ]
        if all(answers):
            (_, before), (turn, after) = (max(of_turns.items(), key=itemgetter(0)) for of_turns in answers)
            name = label(spec, Arm(cell.system.name, turn))
            sides = {phrase(RAW): before, name: after}
            chosen = choose_examples(sides, spec.metrics[0], f"{name} {cell.environment.label}")
            tables += [chosen] if chosen.rows else []
    return tables


def spec_of_tables(spec: SpecConfig) -> TableSpec:
    """What the tables of a spec show."""
    sampled = {name: system for name, system in spec.systems.items() if system.samples is not None}
    return TableSpec(
        metrics=spec.metrics,
        environments=list(spec.environments),
        systems=list(dict.fromkeys([*UNWRITTEN, *spec.free_systems, BEST_FREE, *spec.systems])),
        label=lambda arm: label(spec, arm),
        pairs=lambda arms: _pairs(spec, arms),
        bootstrap=spec.bootstrap,
        permutations=spec.permutations,
        seed=spec.seed,
        marks={**dict(zip(spec.baselines, MARKS, strict=False)), BEST_FREE: FREE_MARKS},
        warn_if_cut=[
            name for name, system in spec.systems.items() if system.run is None or system.checkpoint == UNTRAINED
        ],
        notes={
            name: f"{name}: the mean over {system.samples} sampled answers to each question at temperature "
            f"{system.temperature:g}, never the best of them. Costs are those of one answer."
            for name, system in sampled.items()
        },
    )


def legend(spec: SpecConfig) -> Legend:
    """What the marks of the tables mean."""
    labelled = [(*marks, phrase(name)) for marks, name in zip(MARKS, spec.baselines, strict=False)]
    return [*labelled, (*FREE_MARKS, phrase(BEST_FREE))]


def phrase(system: str) -> str:
    """A baseline inside a sentence."""
    return "the best training-free baseline" if system == BEST_FREE else NAMES.get(system, system)


def label(spec: SpecConfig, arm: Arm) -> str:
    """The display name of a row; includes the turn if the system has several."""
    if arm.system == BEST_FREE:
        return "best training-free"
    if arm.system in UNWRITTEN:
        return arm.label.lower()
    system = spec.systems[arm.system]
    return f"{arm.system}, turn {arm.turn}" if system.turns > 1 else arm.system


def family(spec: SpecConfig) -> str:
    """The comparisons that Holm's correction covers, in one sentence."""
    against = [phrase(name) for name in spec.baselines]
    against += [f"{phrase(BEST_FREE)} (of systems with a model)"] if spec.free_systems else []
    return (
        f"Two-sided paired permutation tests of {spec.metrics[0]} against {listed(against, 'and')} in the same "
        f"environment, {spec.permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's correction over all comparisons "
        f"of a table, significant below {ALPHA}."
    )


def _pairs(spec: SpecConfig, arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Every arm with each baseline, which counts with its last turn; systems with a model also with BEST_FREE."""
    pairs = []
    for index, system in enumerate([*spec.baselines, BEST_FREE]):
        baseline = max((arm for arm in arms if arm.system == system), default=None)
        excluded = [*UNWRITTEN, *spec.free_systems] if system == BEST_FREE else spec.baselines[: index + 1]
        if baseline is not None:
            pairs += [(arm, baseline) for arm in arms if arm.system not in (BEST_FREE, *excluded)]
    return pairs


def _add_best_free(spec: SpecConfig, cells: Sequence[Cell], answers: dict[tuple[Arm, str], Answers]) -> list[str]:
    """Add the answers of the best training-free baseline of each environment, under BEST_FREE.

    `cells` are those of one dataset. Returns notes on the weights of every baseline and on which one is best.
    """
    notes = []
    for name in spec.environments:
        tuned: dict[str, Tuned] = {}
        for cell in cells:
            weights = cell.tuned()
            if weights is not None and cell.environment.name == name and (Arm(cell.system.name, 0), name) in answers:
                tuned[cell.system.name] = weights
        scores = {system: answers[Arm(system, 0), name].scores(spec.metrics[0]) for system in tuned}
        best, by_validation = best_baseline(scores, tuned)
        if best is None:
            continue
        answers[Arm(BEST_FREE, 0), name] = answers[Arm(best, 0), name]
        notes += [f"{name}: {system}: {weights.sentence}" for system, weights in tuned.items()]
        chosen = "on validation questions" if by_validation else "on the evaluated questions, which is in its favour"
        notes.append(f"{name}: {best} is the best training-free baseline {chosen}.")
    return notes
