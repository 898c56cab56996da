"""What the table of an evaluated run shows, and its verdict in words.

Every system is compared with the raw question. The trained policy is also compared with the untrained policy and its
warm start at the same turn, with HyDE, with the best training-free baseline, and with the history and the question as
one query where questions have a history.
"""

from collections.abc import Sequence

from ..configs.evaluation import BEST_FREE, UNWRITTEN, SpecConfig
from .records import HISTORY, HYDE, NO_RAG, RAW, REFERENCE, TRAINED, UNTRAINED, WARM_START
from .results import EvalResults, headline, raw_alone
from .table import ALPHA, Arm, TableSpec

LEGEND = [("†", "↓", "the raw question"), ("‡", "⇓", "the untrained policy at the same turn")]
"""What the marks of the table mean."""
FAMILY = (
    "Two-sided paired permutation tests of ndcg@10, {permutations:,} sign flips, p = (b + 1) / (m + 1); Holm's "
    f"correction over all comparisons, significant below {ALPHA}."
)
_LABELS = {
    RAW: "Raw question",
    HISTORY: "History and question",
    NO_RAG: "No retrieval",
    REFERENCE: "Reference rewrite",
    BEST_FREE: "Best training-free",
    "first_titles": "First titles",
    "rm3": "RM3",
    "weighted_words": "Weighted question words",
    HYDE: "HyDE at equal cost",
}
"""Labels of systems with a single turn."""
_NAMES = {
    RAW: "the raw question",
    HISTORY: "the history and the question",
    REFERENCE: "the reference rewrite",
    BEST_FREE: "the best training-free baseline",
    UNTRAINED: "the untrained policy",
    TRAINED: "the trained policy",
    WARM_START: "its warm start",
}
"""Systems inside a sentence."""


def label(arm: Arm) -> str:
    """The display name of a row."""
    return _LABELS.get(arm.system) or f"{arm.system.capitalize().replace('-', ' ')}, turn {arm.turn}"


def table_of_run(spec: SpecConfig) -> TableSpec:
    """The table of the systems of a run: raw, baselines, untrained, warm start, trained."""
    return TableSpec(
        metrics=spec.metrics,
        environments=list(spec.environments),
        systems=list(dict.fromkeys([*UNWRITTEN, *spec.free_systems, BEST_FREE, *spec.systems])),
        label=label,
        pairs=_pairs,
        bootstrap=spec.bootstrap,
        permutations=spec.permutations,
        seed=spec.seed,
        warn_if_cut=(HYDE, UNTRAINED),
        marks={RAW: ("†", "↓"), UNTRAINED: ("‡", "⇓")},
    )


def _pairs(arms: Sequence[Arm]) -> list[tuple[Arm, Arm]]:
    pairs = [(arm, Arm(RAW, 0)) for arm in arms if arm.system not in (RAW, BEST_FREE)]
    for arm in arms:
        if arm.system == TRAINED:
            pairs += [(arm, rival) for rival in baselines(arm) if rival in arms and rival.system != RAW]
    return pairs


def baselines(arm: Arm) -> list[Arm]:
    """What the trained policy is compared with."""
    single = [Arm(BEST_FREE, 0), Arm(HYDE, 1), Arm(WARM_START, arm.turn), Arm(HISTORY, 0), Arm(REFERENCE, 0)]
    return [Arm(UNTRAINED, arm.turn), Arm(RAW, 0), *single]


def verdict(results: EvalResults, turn: int | None) -> str:
    """One sentence on what the policy beats and what it does not, at the turn that counts (None: its last)."""
    last = results.last(TRAINED) or results.last(UNTRAINED)
    if last is None:
        return raw_alone(results)
    arm = last._replace(turn=min(turn or last.turn, last.turn)) if last.system == TRAINED else last
    compared = [rival for rival in baselines(arm) if rival.system != REFERENCE]  # what its writers knew, not a rival
    sentence = headline(results, arm, compared, _NAMES)
    return sentence or "No policy could be compared with the raw question."
