"""RE-MMD between the rewrites of policies trained with BM25 and with MiniLM, at every checkpoint (part b).

What the paper has no measure of is how far apart two policies of *one* retriever are: every checkpoint is therefore
compared between retrievers and between seeds, and only what is beyond the seeds is a dialect. Questions are the 300 of
the validation split, the same for all; rewrites are greedy and of all questions (`all`), so that the policies' success
does not choose the questions. At the last step the policies of all seeds together are compared once more, also over
their successful rewrites alone (`gain`), as the paper does.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from querylect.errors import DataError
from querylect.eval.drift.queries import RetrieverQueries, read_system, success_of
from querylect.eval.drift.results import KINDS, DriftResults, DriftSettings, pair_of
from querylect.eval.drift.run import measure
from querylect.eval.records import write_text
from querylect.llms.embedding import open_encoder
from reproduction_arms import ARMS, BM25, MINILM, Arm, Options
from reproduction_results import last_step

log = logging.getLogger("querylect.reproduction")

PERMUTATIONS = RESAMPLES = 999


def measure_drift(options: Options) -> None:
    """Compare the policies of all seeds and write `options.drift`, unless it is there for the same steps."""
    arms = [ARMS[BM25], ARMS[MINILM]]
    last = min(last_step(options.run_folder(arm, seed)) for arm in arms for seed in options.seeds)
    steps = list(range(options.save_steps, last + 1, options.save_steps))
    path = options.drift
    if path.exists() and [row["step"] for row in json.loads(path.read_text())["steps"]] == steps:
        return
    log.info("RE-MMD between the rewrites of steps %s", steps)
    encode, model = open_encoder(DriftSettings().model)

    def policies(step: int, success: str) -> dict[str, list[RetrieverQueries]]:
        def read(arm: Arm, seed: int) -> RetrieverQueries:
            path = options.records(arm, seed, step, arm.trained_on, "validation")
            return read_system(f"{arm.name}-{seed}", path, success_of(success))

        return {arm.name: [read(arm, seed) for seed in options.seeds] for arm in arms}

    def compared(systems: Sequence[RetrieverQueries], sigma: float | None, draws: int) -> DriftResults:
        settings = DriftSettings(sigma=sigma, permutations=draws, bootstrap=draws)
        return measure(systems, settings, encode, model)

    pooled = {}
    for success in ("all", "gain"):
        try:
            sides = [_together(name, systems) for name, systems in policies(steps[-1], success).items()]
            pooled[success] = compared(sides, None, PERMUTATIONS)
        except DataError as error:  # nothing succeeded
            log.warning("no RE-MMD of the rewrites with success %r: %s", success, error)
    sigma = pooled["all"].sigma  # one width for all steps, or they could not be compared
    rows = []
    for step in steps:
        by_arm = policies(step, "all")
        result = compared([system for systems in by_arm.values() for system in systems], sigma, 1)
        rows.append({"step": step, **{kind: _between_and_within(result, by_arm, kind) for kind in KINDS}})
    content = {
        "seeds": list(options.seeds),
        "sigma": sigma,
        "model": model,
        "steps": rows,
        "pooled": {success: _summary(result) for success, result in pooled.items()},
    }
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def _together(name: str, systems: Sequence[RetrieverQueries]) -> RetrieverQueries:
    """The queries of all seeds as those of one retriever."""
    queries = sorted(
        (query for system in systems for query in system.queries),
        key=lambda query: (query.question_id, query.question, query.text),
    )
    return RetrieverQueries(name, "", "all seeds", tuple(queries))


def _between_and_within(
    result: DriftResults, by_arm: Mapping[str, Sequence[RetrieverQueries]], kind: str
) -> dict[str, list[float]]:
    """RE-MMD² of every pair of policies of different retrievers, and of two seeds of one."""

    def value(a: RetrieverQueries, b: RetrieverQueries) -> float:
        pair = pair_of(result.pairs, a.name, b.name)
        assert pair is not None
        return pair.drifts[kind].value

    first, second = by_arm.values()
    return {
        "between": [value(a, b) for a in first for b in second],
        "within": [value(a, b) for side in (first, second) for a, b in combinations(side, 2)],
    }


def _summary(result: DriftResults) -> dict[str, Any]:
    """The one pair of a comparison, and how each side writes."""
    (pair,) = result.pairs
    drifts = {
        kind: {"value": drift.value, "low": drift.low, "high": drift.high, "p": drift.p, "p_holm": pair.p_holm[kind]}
        for kind, drift in pair.drifts.items()
    }
    profiles = {name: asdict(profile) for name, profile in result.profiles.items()}
    words = {name: [term.word for term in terms] for name, terms in result.terms.items()}
    return {"queries": pair.queries, "drifts": drifts, "profiles": profiles, "words": words}
