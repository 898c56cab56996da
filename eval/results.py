"""results.json: what an evaluation found, in one format for runs and specs. Pages, exports and sweeps read it here."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ..data.sampling import QuestionSample
from ..errors import DataError, in_one_line
from ..storage import write_text
from .records import now
from .table import MEAN, Arm, Comparison, Note, Score

RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class Side:
    """What one system did for a question: its first sample."""

    rewrites: tuple[str, ...]
    score: float | None
    format_ok: bool
    ranking: tuple[str, ...]
    """Ids of the first documents, best first."""


@dataclass(frozen=True, slots=True)
class Example:
    """One question, with the result of every compared system."""

    question: str
    change: float
    sides: list[Side]
    """In the order of `Examples.labels`."""
    relevant: tuple[str, ...]
    """Ids of relevant documents among those shown, where the judgements are known."""


@dataclass(frozen=True, slots=True)
class Examples:
    """Questions chosen by a fixed rule, and the differences of all."""

    title: str
    labels: list[str]
    rule: str
    rows: list[Example]
    changes: list[tuple[str, float, float]]
    """Question, score before and after; those that changed, from the largest gain to the largest loss."""


@dataclass(slots=True, kw_only=True)
class EvalResults:
    """An evaluation: its figures, and everything that is needed to understand and repeat it."""

    name: str
    headline: str = ""
    """The verdict in a sentence."""
    created: str = field(default_factory=now)
    split: str
    metrics: list[str]
    """The first one is tested."""
    scores: list[Score]
    comparisons: list[Comparison]
    notes: list[Note] = field(default_factory=list)
    legend: list[tuple[str, str, str]] = field(default_factory=list)
    """Marks of significantly better and worse, and than what."""
    family: str = ""
    """The tests in a sentence."""
    samples: dict[str, QuestionSample] = field(default_factory=dict)
    """By dataset, where the questions are a random sample of the split."""
    trained_in: dict[str, str] = field(default_factory=dict)
    """By trained system: its training environments, joined by `+`."""
    turn: int | None = None
    """Of a run: the turn of the trained policy that its users get; None: the last."""
    examples: list[Examples] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    """Where the figures come from: licences, environments, hashes, versions."""
    config: str = ""
    """All settings as YAML."""
    identity: dict[str, Any] = field(default_factory=dict)
    """What must be equal in a repetition that replaces these results."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Checkpoint, hashes, seeds and versions for programs."""
    failed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def datasets(self) -> list[str]:
        """The datasets in order, then MEAN if there are several."""
        names = dict.fromkeys(score.dataset for score in self.scores)
        return sorted(names, key=lambda name: name == MEAN)

    @property
    def environments(self) -> list[str]:
        """The environments in order."""
        return list(dict.fromkeys(score.environment for score in self.scores))

    def score(self, arm: Arm, dataset: str = "", environment: str = "", part: str = "") -> Score | None:
        """The score of an arm; "" as dataset or environment: the last one, so that of a run its only one."""
        matches = (
            score
            for score in self.scores
            if score.arm == arm
            and score.part == part
            and score.dataset == (dataset or self.datasets[-1])
            and score.environment == (environment or self.environments[-1])
        )
        return next(matches, None)

    def last(self, system: str) -> Arm | None:
        """The last turn of a system; None if it has no score."""
        return max((score.arm for score in self.scores if score.system == system), default=None)

    def label(self, arm: Arm) -> str:
        """The display name of an arm."""
        return next((score.label for score in self.scores if score.arm == arm), arm.system)


_RESULTS = TypeAdapter(EvalResults)


def write_json(path: Path, results: EvalResults) -> None:
    """Write results.json. Raises StorageError."""
    write_text(path, _RESULTS.dump_json(results, indent=1).decode() + "\n")


def read_results(path: Path) -> EvalResults:
    """Read results.json, or the one of a folder. Raises DataError."""
    path = path / RESULTS if path.is_dir() else path
    try:
        return _RESULTS.validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise DataError(
            f"{path} holds no results of this version ({in_one_line(error)}). Run `querylect eval` again."
        ) from error
