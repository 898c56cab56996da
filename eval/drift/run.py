"""Drift between retrievers: RE-MMD² between their successful queries (Yuan et al., appendix C).

`measure` takes the queries of two or more retrievers. For each pair it computes the semantic and the structural drift
with interval, p and Holm-adjusted p. The results record everything that affects a number (model, σ, definition of
success, counts, seed).
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, cast, get_args

import numpy as np
from numpy.typing import NDArray

from ...errors import ConfigError, DataError
from ...llms.embedding import Encode, open_encoder
from ...logs import progress_bar
from ..placement import refuse_other
from ..records import now
from ..statistics import holm
from .mmd import Estimator, PooledSides, Vectors, compare, gaussian, linear, median_sigma
from .queries import RetrieverQueries, read_system, success_of
from .results import KINDS, DriftResults, DriftSettings, Pair, drift_identity

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

SIGMA_SAMPLE = 2000
"""Number of vectors for the median distance."""
LARGEST = 8_000
"""Queries of a pair that are compared; of more, a sample of the questions is. A kernel's matrix then has 512 MB."""
_ENCODED_AT_ONCE = 1024


def write_drift(sources: Mapping[str, Path], settings: DriftSettings, output: Path, overwrite: bool = False) -> Path:
    """Measure the drift between `sources` (name → file or folder) and write drift.json and drift.md into `output`.

    Returns the path of drift.md. Raises ConfigError where `output` holds a comparison of other queries or settings
    (unless `overwrite`), ConfigError and DataError for inputs that cannot be compared, ModelError for a model that does
    not embed, StorageError where the folder cannot be written.
    """
    from .report import write_files

    check(settings, list(sources))
    success = success_of(settings.success)
    systems = [read_system(name, path, success, settings.system, settings.turn) for name, path in sources.items()]
    refuse_other(output / "drift.json", drift_identity(systems, settings), overwrite)
    encode, model = open_encoder(settings.model)
    results = measure(systems, settings, encode, model)
    return write_files(results, output, now())


def check(settings: DriftSettings, names: Sequence[str]) -> None:
    """Raise ConfigError for settings without a valid measurement."""
    if len(names) < 2:
        raise ConfigError(f"drift is between two or more retrievers; given is {', '.join(names) or 'none'}.")
    if settings.estimator not in get_args(Estimator):
        raise ConfigError(f"--estimator is {settings.estimator!r}; expected {' or '.join(get_args(Estimator))}.")


def measure(systems: Sequence[RetrieverQueries], settings: DriftSettings, encode: Encode, model: str) -> DriftResults:
    """Compare every pair of systems. Raises DataError where a pair has too few questions or no words, or σ is 0."""
    sides = {(i, j): _sides(systems[i], systems[j], settings.shared) for i, j in combinations(range(len(systems)), 2)}
    texts = [query.text for system in systems for query in system.queries]
    starts = np.cumsum([0, *(len(system.queries) for system in systems)]).tolist()
    features = tf_idf(texts)
    vectors = _embedded(texts, encode)
    sigma = _sigma([vectors[slice(*ends)] for ends in pairwise(starts)], settings.seed)
    keys = [key for system in systems for key in system.keys]
    numbers = {key: number for number, key in enumerate(sorted(set(keys)))}
    questions = np.array([numbers[key] for key in keys])

    measured: list[Pair] = []
    for (i, j), (left, right) in sides.items():
        a, b = systems[i], systems[j]
        rows = np.concatenate([starts[i] + left, starts[j] + right])
        n, sampled_from = len(left), None
        if len(rows) > LARGEST:
            sampled_from = (len(left), len(right))
            chosen = _sample(questions[rows], settings.seed)
            rows, n = rows[chosen], int(chosen[:n].sum())
        layout = PooledSides(n, np.unique(questions[rows], return_inverse=True)[1])
        drifts = {}
        for kind in KINDS:
            matrix = gaussian(vectors[rows], sigma) if kind == "semantic" else linear(features[rows])
            with progress_bar(f"{a.name} and {b.name}, {kind}") as progress:
                drifts[kind] = compare(
                    matrix,
                    layout,
                    permutations=settings.permutations,
                    resamples=settings.bootstrap,
                    seed=settings.seed,
                    estimator=settings.estimator,
                    progress=progress,
                )
        first, second = layout.counts()
        measured.append(
            Pair(
                first=a.name,
                second=b.name,
                queries=(n, len(rows) - n),
                questions=(int((first > 0).sum()), int((second > 0).sum())),
                shared=int(((first > 0) & (second > 0)).sum()),
                drifts=drifts,
                p_holm={},
                sampled_from=sampled_from,
            )
        )
    adjusted = iter(holm([pair.drifts[kind].p for pair in measured for kind in KINDS]))
    return DriftResults(
        settings=settings,
        success=success_of(settings.success).said,
        model=model,
        sigma=sigma,
        vocabulary=features.shape[1],
        systems=systems,
        pairs=[replace(pair, p_holm={kind: next(adjusted) for kind in KINDS}) for pair in measured],
    )


def tf_idf(texts: Sequence[str]) -> "csr_matrix":
    """TF-IDF of the words of each text, in rows of length 1: count · (ln((1 + texts) / (1 + texts with the word)) + 1).

    A word is a run of letters, digits and underscores in lower case; single letters and stop-words count, because both
    are part of how queries are worded. Raises DataError where no text has a word.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    try:
        return TfidfVectorizer(token_pattern=r"\w+", dtype=np.float64).fit_transform(texts)
    except ValueError as error:
        raise DataError("no query has a word (letters or digits); there is nothing to compare.") from error


def _sample(questions: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Which of the pooled queries are compared: all of randomly drawn questions, with at most LARGEST queries."""
    _, of_query, sizes = np.unique(questions, return_inverse=True, return_counts=True)
    order = np.random.default_rng([seed, 3]).permutation(len(sizes))
    kept = order[np.cumsum(sizes[order]) <= LARGEST]
    return np.isin(of_query, kept)


def _sides(a: RetrieverQueries, b: RetrieverQueries, shared: bool) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of each system's queries to compare. Raises DataError for fewer than two questions."""
    keys = a.keys, b.keys
    common = set(keys[0]) & set(keys[1])
    left, right = (
        np.array([i for i, key in enumerate(side) if key in common or not shared], dtype=np.int64) for side in keys
    )
    for system, system_keys, side in ((a, keys[0], left), (b, keys[1], right)):
        questions = len({system_keys[i] for i in side})
        if questions < 2:
            among = f", of those that {a.name} and {b.name} share" if shared else ""
            raise DataError(
                f"{system.name} has {questions} question{'s' * (questions != 1)} with a successful query{among}; the "
                "unbiased estimate takes at least 2. Give more queries, or another --success"
                + (", or leave out --shared." if shared else ".")
            )
    return left, right


def _embedded(texts: Sequence[str], encode: Encode) -> Vectors:
    """Embeddings of all texts; each distinct text is embedded once."""
    different = sorted(set(texts))
    parts = []
    with progress_bar("embedding") as progress:
        for start in range(0, len(different), _ENCODED_AT_ONCE):
            parts.append(encode(different[start : start + _ENCODED_AT_ONCE]))
            progress(min(start + _ENCODED_AT_ONCE, len(different)), len(different))
    number = {text: row for row, text in enumerate(different)}
    return cast("Vectors", np.concatenate(parts)[[number[text] for text in texts]])


def _sigma(sides: Sequence[Vectors], seed: int) -> float:
    sigma = median_sigma(sides, seed, SIGMA_SAMPLE)
    if sigma == 0:
        raise DataError(
            "more than half of the pairs of queries have the same embedding, so their median distance is 0 and cannot "
            "be the width of the kernel. Give queries that differ more."
        )
    return sigma
