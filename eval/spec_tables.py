"""What the tables of a spec show: rows, comparisons, marks, and the best training-free baseline."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import pandas as pd

from ..configs.environment import EnvironmentConfig
from ..configs.evaluation import BEST_FREE, HISTORY, RAW, REFERENCE, UNWRITTEN, SpecConfig
from ..rewriters.retriever_info import RetrieverInfo
from .frame import select
from .records import UNTRAINED
from .results import EvalResults, raw_alone
from .systems import RewritingSystem
from .table import ALPHA, MEAN, Arm, Note, TableSpec, listed
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
}
"""Systems inside a sentence."""
_RETRIEVER_FIELDS = {"retriever", "model", "recipe", "rerank", "hybrid", "question_index", "engine"}


def table_spec(spec: SpecConfig) -> TableSpec:
    """What the tables of a spec show."""
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
    )


def legend(spec: SpecConfig) -> list[tuple[str, str, str]]:
    """What the marks of the tables mean."""
    baselines = [(*marks, PHRASES.get(name, name)) for marks, name in zip(MARKS, spec.baselines, strict=False)]
    return [*baselines, (*FREE_MARKS, PHRASES[BEST_FREE])]


def label(spec: SpecConfig, arm: Arm) -> str:
    """The display name of a row; includes the turn if the system has several."""
    if arm.system in PHRASES:
        return PHRASES[arm.system].removeprefix("the ").removesuffix(" baseline")
    return f"{arm.system}, turn {arm.turn}" if spec.systems[arm.system].turns > 1 else arm.system


def family(spec: SpecConfig) -> str:
    """The comparisons that Holm's correction covers, in one sentence."""
    against = [PHRASES.get(name, name) for name in spec.baselines]
    against += [f"{PHRASES[BEST_FREE]} (of systems with a model)"] if spec.free_systems else []
    return (
        f"Two-sided paired permutation tests of {spec.metrics[0]} against {listed(against, 'and')} in the same "
        f"environment, {spec.permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's correction over all comparisons "
        f"of all datasets and of their mean (those of the parts of a dataset are another family), significant below "
        f"{ALPHA}."
    )


def sample_notes(spec: SpecConfig) -> list[Note]:
    """What is said about systems that sample."""
    return [
        Note(
            "samples",
            system.samples,
            f"{name}: the mean over {system.samples} sampled answers to each question at temperature "
            f"{system.temperature:g}, never the best of them. Costs are those of one answer.",
        )
        for name, system in spec.systems.items()
        if system.samples is not None
    ]


def add_best_free(
    frame: pd.DataFrame, tuned: Mapping[tuple[str, str, str], Tuned], metric: str
) -> tuple[pd.DataFrame, list[Note]]:
    """The frame with the answers of the best training-free baseline of each dataset and environment under BEST_FREE.

    `tuned` are the weights by dataset, environment and system. Also returns notes on them, and on which one is best.
    """
    notes, frames = [], [frame]
    for dataset, environment in dict.fromkeys(key[:2] for key in tuned):
        candidates = {key[2]: weights for key, weights in tuned.items() if key[:2] == (dataset, environment)}
        answers = {name: select(frame, dataset=dataset, environment=environment, system=name) for name in candidates}
        answers = {name: rows for name, rows in answers.items() if len(rows)}
        best, by_validation = best_baseline(
            {name: list(rows[metric].dropna()) for name, rows in answers.items()}, candidates
        )
        if best is None:
            continue
        frames.append(answers[best].rename(index={best: BEST_FREE}, level="system"))
        subject = f"{dataset} in {environment}" if environment else dataset
        for name, weights in candidates.items():
            notes.append(Note("tuned", weights.questions, f"{subject}: {name}: {weights.sentence}"))
        chosen = "on validation questions" if by_validation else "on the evaluated questions, which is in its favour"
        notes.append(Note("best_free", 1, f"{subject}: {best} is the best training-free baseline {chosen}."))
    return pd.concat(frames), notes


def trained_in(system: RewritingSystem, spec: SpecConfig, retrievers: Mapping[str, RetrieverInfo]) -> str:
    """Names of the environments that the run was trained in, joined by `+`; "" if it is untrained.

    Names are those of the spec, or the retriever's name if the spec lacks the environment. A local environment is
    matched by its retriever settings, a service by the name of its retriever (`retrievers`, by environment).
    """
    names: dict[str, str] = {}
    for name, environment in spec.environments.items():
        if environment.client.urls == "local" and not environment.urls:
            names.setdefault(_signature(environment.env), name)
        elif name in retrievers:
            names.setdefault(retrievers[name].name, name)
    environments = [member.env for member in system.training_environments]
    return "+".join(
        dict.fromkeys(names.get(_signature(env), names.get(env.retriever, env.retriever)) for env in environments)
    )


def _signature(env: EnvironmentConfig) -> str:
    return json.dumps(env.model_dump(mode="json", include=_RETRIEVER_FIELDS), sort_keys=True)


def _pairs(spec: SpecConfig, arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    """Every arm with each baseline, which counts with its last turn; systems with a model also with BEST_FREE."""
    pairs = []
    for index, system in enumerate([*spec.baselines, BEST_FREE]):
        baseline = max((arm for arm in arms if arm.system == system), default=None)
        excluded = [*UNWRITTEN, *spec.free_systems] if system == BEST_FREE else spec.baselines[: index + 1]
        if baseline is not None:
            pairs += [(arm, baseline) for arm in arms if arm.system not in (BEST_FREE, *excluded)]
    return pairs


def verdict(spec: SpecConfig, results: EvalResults) -> str:
    """What beats the raw question, or without it the first baseline, and what is worse, counted over datasets and
    environments; "" where nothing is compared with it."""
    main = RAW if RAW in spec.baselines else spec.baselines[0]
    rows = [row for row in results.comparisons if row.against == main and not row.part and row.dataset != MEAN]
    if not rows:
        return raw_alone(results)
    better, worse = (
        Counter(results.label(row.arm) for row in rows if row.outcome == outcome) for outcome in ("better", "worse")
    )
    winners = listed(list(better), "and") if better else "Nothing"
    verb = "beat" if len(better) > 1 else "beats"
    count = f"{better.total()} of {len(rows)}" if better else len(rows)
    sentence = f"{winners} {verb} {PHRASES.get(main, main)} in {count} comparison{'s' * (len(rows) > 1)}"
    if worse:
        sentence += f"; worse, in {worse.total()}: {listed(list(worse), 'and')}"
    return f"{sentence}."
