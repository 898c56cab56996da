"""The results of an evaluation from its records: rows and comparisons, verdict, notes, examples, and where they come
from. One way for runs and specs; of a run's systems, the trained policy is compared with all others."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict

import pandas as pd

from ..configs.environment import EnvironmentConfig
from ..configs.evaluation import BEST_FREE, HISTORY, RAW, REFERENCE, UNWRITTEN, SpecConfig, dump_spec
from ..configs.load import dump_config
from ..provenance import versions
from ..rollouts.checkpoints import WARM_START_FOLDER
from ..rollouts.llms import resolved_dtype
from .cells import Cell
from .evaluation import Evaluation, Records
from .records import HYDE, TRAINED, UNTRAINED, WARM_START, EvalRecord
from .results import EvalResults, Example, Examples, Side
from .systems import RewritingSystem
from .table import ALPHA, MEAN, Arm, Note, TableSpec, decimal, frame_of, listed, tabulate
from .training_free import Tuned, best_baseline

MARKS = (("†", "↓"), ("‡", "⇓"))
"""Significantly better and worse than the first and the second baseline."""
FREE_MARKS = ("★", "☆")
"""Significantly better and worse than the best training-free baseline."""
PHRASES = {
    RAW: "the raw question",
    HISTORY: "the history and question",
    REFERENCE: "the reference rewrite",
    BEST_FREE: "the best training-free baseline",
    UNTRAINED: "the untrained policy",
    TRAINED: "the trained policy",
    WARM_START: "its warm start",
    HYDE: "HyDE",
}
"""Systems inside a sentence; others go by their name."""
UNJUDGED = (
    "The questions have no relevant documents, so every figure of this table is 0 and says nothing. "
    "`querylect answers` lets a reader answer from the rankings, and scores its answers."
)
"""The verdict where no environment has judgements."""
EXAMPLES, CHANGES = 12, 300
"""Questions that are shown with both rankings, and that are listed: half of them gains, half losses, the largest."""
DOCUMENTS = 5
"""Documents shown of a ranking."""
_RETRIEVER_FIELDS = {"retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine"}


def results_of(evaluation: Evaluation, records: Records) -> EvalResults:
    """The results of the records that count, by cell."""
    spec, cells, run = evaluation.spec, evaluation.cells, evaluation.run
    frame = frame_of(
        (record for of_cell in records.values() for record in of_cell),
        {cell.environment.dataset: [question.id for question in cell.environment.questions] for cell in cells},
        spec.metrics,
        samples={cell.system.name: cell.system.options.paths for cell in cells},
        parts=spec.parts,
    )
    tuned = {
        (cell.environment.dataset, cell.environment.name, cell.system.name): weights
        for cell in cells
        if records[cell] and (weights := cell.tuned()) is not None
    }
    frame, free = add_best_free(frame, tuned, spec.metrics[0])
    layout = table_spec(spec, of_run=run is not None)
    table = tabulate(frame, layout)
    notes = [Note("evaluation", 1, text) for text in dict.fromkeys(evaluation.notes)]
    notes += [note for cell in cells for note in _missing(cell)]
    notes += [Note("failed", 1, failure.sentence) for failure in evaluation.failures]
    trained = evaluation.systems.get(TRAINED) if run is not None else None
    used = trained.used if isinstance(trained, RewritingSystem) else None
    environments = evaluation.environments
    results = EvalResults(
        name=spec.name,
        split=spec.split,
        metrics=list(spec.metrics),
        scores=table.scores,
        comparisons=table.comparisons,
        notes=[*notes, *table.notes, *free, *sample_notes(spec)],
        legend=[(better, worse, phrase(name)) for name, (better, worse) in layout.marks.items()],
        family=(
            f"Two-sided paired permutation tests of {spec.metrics[0]} in the same environment, {spec.permutations:,} "
            "sign flips, p = (b + 1) / (m + 1); Holm's correction over all comparisons of all datasets and of their "
            f"mean (those of the parts of a dataset are another family), significant below {ALPHA}."
        ),
        samples={environment.dataset: environment.sample for environment in environments if environment.sample},
        trained_in={
            name: trained_in
            for name, system in evaluation.systems.items()
            if isinstance(system, RewritingSystem) and (trained_in := environments_of_training(system, evaluation))
        },
        turn=used.turn if used is not None else None,
        examples=_examples(evaluation, frame, records),
        facts=_facts(evaluation),
        config=dump_config(run) if run is not None else dump_spec(spec),
        identity=evaluation.identity,
        provenance=_provenance(evaluation),
        failed=[asdict(failure) for failure in evaluation.failures],
    )
    judged = not environments or any(environment.judged for environment in environments)
    results.headline = verdict(spec, results, of_run=run is not None) if judged else UNJUDGED
    return results


def table_spec(spec: SpecConfig, of_run: bool = False) -> TableSpec:
    """The rows and comparisons of the tables of a spec, or of the spec of a run."""
    baselines = [RAW, UNTRAINED] if of_run else spec.baselines
    return TableSpec(
        metrics=spec.metrics,
        environments=list(spec.environments),
        systems=list(dict.fromkeys([*UNWRITTEN, *spec.free_systems, BEST_FREE, *spec.systems])),
        label=lambda arm: label(spec, arm),
        pairs=_pairs_of_run if of_run else lambda arms: _pairs(spec, arms),
        bootstrap=spec.bootstrap,
        permutations=spec.permutations,
        seed=spec.seed,
        marks={**dict(zip(baselines, MARKS, strict=False)), BEST_FREE: FREE_MARKS},
        warn_if_cut=[
            name for name, system in spec.systems.items() if system.run is None or system.checkpoint == UNTRAINED
        ],
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


def _pairs_of_run(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Every arm with the raw question, and the trained policy with its rivals."""
    pairs = [(arm, Arm(RAW, 0)) for arm in arms if arm.system not in (RAW, BEST_FREE)]
    trained = [arm for arm in arms if arm.system == TRAINED]
    return pairs + [(arm, rival) for arm in trained for rival in _rivals(arm) if rival in arms and rival.system != RAW]


def _rivals(arm: Arm) -> list[Arm]:
    """What the trained policy is compared with."""
    single = [Arm(BEST_FREE, 0), Arm(HYDE, 1), Arm(WARM_START, arm.turn), Arm(HISTORY, 0), Arm(REFERENCE, 0)]
    return [Arm(UNTRAINED, arm.turn), Arm(RAW, 0), *single]


def phrase(system: str) -> str:
    """A system inside a sentence."""
    return PHRASES.get(system, system)


def label(spec: SpecConfig, arm: Arm) -> str:
    """The display name of a row; includes the turn if the system has several."""
    if arm.system in (*UNWRITTEN, BEST_FREE):
        return PHRASES[arm.system].removeprefix("the ").removesuffix(" baseline")
    return f"{arm.system}, turn {arm.turn}" if spec.systems[arm.system].turns > 1 else arm.system


def verdict(spec: SpecConfig, results: EvalResults, of_run: bool = False) -> str:
    """Of a run, what its policy beats and what it does not, at the turn that counts; else what beats the raw question,
    or without it the first baseline. Counted over datasets and environments; "" where nothing is compared."""
    if len(results.scores) == 1 and results.scores[0].mean is not None and results.scores[0].system == RAW:
        return f"Only the raw question was evaluated: {results.metrics[0]} is {decimal(results.scores[0].mean)}."
    if of_run and (last := results.last(TRAINED) or results.last(UNTRAINED)):
        turn = min(results.turn or last.turn, last.turn) if last.system == TRAINED else last.turn
        return _verdict_of_run(results, Arm(last.system, turn)) or "No policy could be compared with the raw question."
    main = RAW if RAW in spec.baselines else spec.baselines[0]
    rows = [row for row in results.comparisons if row.against == main and not row.part and row.dataset != MEAN]
    if not rows:
        return ""
    better, worse = (
        Counter(results.label(row.arm) for row in rows if row.outcome == outcome) for outcome in ("better", "worse")
    )
    count = f"{better.total()} of {len(rows)}" if better else len(rows)
    sentence = f"{listed(list(better), 'and') if better else 'Nothing'} {'beat' if len(better) > 1 else 'beats'}"
    sentence += f" {phrase(main)} in {count} comparison{'s' * (len(rows) > 1)}"
    return sentence + (f"; worse, in {worse.total()}: {listed(list(worse), 'and')}." if worse else ".")


def _verdict_of_run(results: EvalResults, arm: Arm) -> str:
    outcomes: dict[str, list[str]] = {}
    for rival in _rivals(arm):
        rows = [
            row
            for row in results.comparisons
            if (row.arm, row.baseline) == (arm, rival) and not row.part and row.dataset != MEAN
        ]
        if not rows or rival.system == REFERENCE:  # what its writers knew, not a rival
            continue
        better, worse = (sum(row.outcome == outcome for row in rows) for outcome in ("better", "worse"))
        name = phrase(rival.system)
        if len(rows) > 1 and better + worse:
            name += f" in {better or worse} of {len(rows)}"
            name += f" (and is worse in {worse})" if better and worse else ""
        outcomes.setdefault("beats" if better else "is worse than" if worse else "does not beat", []).append(name)
    phrases = [f"{verb} {listed(names, 'or' if 'not' in verb else 'and')}" for verb, names in outcomes.items()]
    return f"At turn {arm.turn}, {phrase(arm.system)} {', but '.join(phrases)}." if phrases else ""


def sample_notes(spec: SpecConfig) -> list[Note]:
    """What is said about systems that sample."""
    text = (
        "{}: the mean over {} sampled answers to each question, never the best of them. Costs are those of one answer."
    )
    return [
        Note("samples", count, text.format(name, count))
        for name in spec.systems
        if (count := spec.systems[name].samples)
    ]


def _missing(cell: Cell) -> list[Note]:
    """A note on the answers that the model failed to give; none without."""
    reasons = cell.missing()
    summary = ", ".join(f"{reason} ({count})" for reason, count in sorted(reasons.items()))
    text = f"{cell.label}: {sum(reasons.values())} answers never came and are counted nowhere: {summary}. The same "
    return [Note("missing", sum(reasons.values()), f"{text}command asks for them again.")] if reasons else []


def add_best_free(
    frame: pd.DataFrame, tuned: Mapping[tuple[str, str, str], Tuned], metric: str
) -> tuple[pd.DataFrame, list[Note]]:
    """The frame with the answers of the best training-free baseline of each dataset and environment under BEST_FREE.

    `tuned` are the weights by dataset, environment and system. Also returns notes on them, and on which one is best.
    """
    notes, frames = [], [frame]
    for dataset, environment in dict.fromkeys(key[:2] for key in tuned):
        candidates = {key[2]: weights for key, weights in tuned.items() if key[:2] == (dataset, environment)}
        answers = {name: frame.loc[([dataset], [environment], [name]), :] for name in candidates}
        best, by_validation = best_baseline(
            {name: list(rows[metric].dropna()) for name, rows in answers.items()}, candidates
        )
        if best is None:
            continue
        frames.append(answers[best].rename(index={best: BEST_FREE}, level="system"))
        for name, weights in candidates.items():
            notes.append(Note("tuned", 1, f"{environment} on {dataset}: {name}: {weights.sentence}"))
        chosen = "on validation questions" if by_validation else "on the evaluated questions, which is in its favour"
        text = f"{environment} on {dataset}: {best} is the best training-free baseline {chosen}."
        notes.append(Note("best_free", 1, text))
    return pd.concat(frames), notes


def environments_of_training(system: RewritingSystem, evaluation: Evaluation) -> str:
    """Names of the environments that the run was trained in, joined by `+`; "" if it is untrained.

    Names are those of the spec, or the retriever's name if the spec lacks the environment. A local environment is
    matched by its retriever settings, a service by the name of its retriever.
    """
    if system.settings.checkpoint == WARM_START_FOLDER:
        return ""
    names: dict[str, str] = {}
    for environment in evaluation.environments:
        local = environment.client_config.urls == "local"
        names.setdefault(_signature(environment.env) if local else environment.retriever.name, environment.name)
    trained = [member.env for member in system.training_environments]
    return "+".join(dict.fromkeys(names.get(_signature(e), names.get(e.retriever, e.retriever)) for e in trained))


def _signature(env: EnvironmentConfig) -> str:
    return json.dumps(env.model_dump(mode="json", include=_RETRIEVER_FIELDS), sort_keys=True)


def _examples(evaluation: Evaluation, frame: pd.DataFrame, records: Records) -> list[Examples]:
    """Example rewrites of every system with a model, at its last turn, beside the raw questions; for a run those of the
    trained policy beside the untrained one's, too."""
    spec, examples = evaluation.spec, []
    of_run = [RAW, UNTRAINED, TRAINED] if TRAINED in spec.systems else [RAW, UNTRAINED]
    for cell in evaluation.cells:
        environment, names = cell.environment, of_run if evaluation.run is not None else [RAW, cell.system.name]
        if cell.system.engine_key is None or cell.system.name != names[-1]:
            continue
        answers = frame.loc[([environment.dataset], [environment.name]), :]
        turns = answers.reset_index().groupby("system")["turn"].max()
        if any(name not in turns for name in names):
            continue
        labels = {label(spec, arm): arm for arm in (Arm(name, int(turns[name])) for name in names)}
        beside = [peer for peer in evaluation.cells if peer.environment is environment]
        chosen = choose_examples(
            answers,
            [record for peer in beside for record in records[peer]],
            labels,
            spec.metrics[0],
            f"{list(labels)[-1]} in {environment.title}",
            environment.split.qrels if environment.split is not None else {},
        )
        examples += [chosen] if chosen is not None else []
    return examples


def choose_examples(
    frame: pd.DataFrame,
    records: Sequence[EvalRecord],
    arms: Mapping[str, Arm],
    metric: str,
    title: str,
    relevant: Mapping[str, Mapping[str, int]],
) -> Examples | None:
    """The questions with the largest gains and losses of the last arm over the one before, and what each arm did.

    `frame` and `records` are those of one dataset in one environment, `arms` the compared arms by label, `relevant` the
    grades of documents by question. None without a question that both have a score for.
    """
    labels = list(arms)
    scores = [frame.xs(tuple(arm), level=("system", "turn"))[metric].droplevel([0, 1]) for arm in arms.values()]
    before, after = scores[-2], scores[-1].reindex(scores[-2].index)
    change = (after - before).round(9).dropna()  # floating-point noise must not break ties
    if change.empty:
        return None
    moved = change[change != 0].sort_values(ascending=False, kind="stable").index
    first = {(record.system, record.turn, record.question_id): record for record in records if record.sample == 0}
    texts = {record.question_id: record.display_text for record in first.values()}

    def extremes(count: int) -> list[str]:
        return [*moved[: count // 2], *moved[count // 2 :][-(count // 2) :]]

    def side(arm: Arm, values: pd.Series, question: str) -> Side:
        record, score = first.get((*arm, question)), values.get(question)
        rewrites = record.rewrites if record is not None and record.turn else ()
        ranking = record.ranking[:DOCUMENTS] if record is not None else ()
        return Side(rewrites, None if pd.isna(score) else float(score), record is None or record.format_ok, ranking)

    rows = [
        Example(
            question=texts[question],
            change=float(change[question]),
            sides=[side(arm, values, question) for arm, values in zip(arms.values(), scores, strict=True)],
            relevant=tuple(document for document, grade in relevant.get(question, {}).items() if grade > 0),
        )
        for question in extremes(EXAMPLES)
    ]
    gained, lost = (int((sign * change > 0).sum()) for sign in (1, -1))
    rule = (
        f"The largest gains and losses in {metric} of {labels[-1]} over {labels[-2]}. Of {len(change)} questions that "
    )
    rule += f"both have a score for, {gained} gained and {lost} lost."
    changes = [(texts[question], float(before[question]), float(after[question])) for question in extremes(CHANGES)]
    return Examples(title, labels, rule, rows, changes)


def _facts(evaluation: Evaluation) -> dict[str, str]:
    """Where the figures come from."""
    spec, environments = evaluation.spec, evaluation.environments
    facts = {"Questions": f"split {spec.split}, seed {spec.seed}, rankings {spec.depth} deep"}
    for environment in environments:
        if environment.sample:
            facts[f"Sample of {environment.dataset}"] = environment.sample.of_questions()
        if environment.relevance_level > 1:
            text = f"count grades of {environment.relevance_level} or more"
            facts[f"Binary metrics of {environment.dataset}"] = text
    facts |= {f"Licence of {dataset}": licence for dataset, licence in evaluation.licences.items() if licence}
    for environment in environments:
        facts[f"Environment {environment.title}"] = (
            f"{environment.retriever.name}, {environment.documents:,} documents; corpus {environment.corpus_hash:.12}, "
            f"index {environment.identity['index']:.12}"
        )
    if evaluation.run is not None:
        facts["Policy"] = evaluation.run.policy.model
    facts["Versions"] = ", ".join(f"{name} {version}" for name, version in versions().items())
    return facts | {"To make it again": "querylect eval plan.yaml"}


def _provenance(evaluation: Evaluation) -> dict[str, object]:
    """For programs: seeds, versions, licences, environments, and of a run its policy."""
    values: dict[str, object] = {
        "seed": evaluation.spec.seed,
        "versions": versions(),
        "licences": evaluation.licences,
        "environments": {
            environment.name: {
                "name": environment.title,
                "dataset": environment.dataset,
                "retriever": environment.retriever.name,
                "corpus_size": environment.documents,
                "corpus_hash": environment.corpus_hash,
                "index_hash": environment.identity["index"],
            }
            for environment in evaluation.environments
        },
    }
    if evaluation.run is not None:
        policy = evaluation.run.policy
        values |= {"policy": policy.model, "dtype": resolved_dtype(policy.dtype)}
        trained = evaluation.systems.get(TRAINED)
        if isinstance(trained, RewritingSystem):
            values |= {"checkpoint": str(trained.checkpoint), "checkpoint_hash": trained.weights["checkpoint"]}
    return values
