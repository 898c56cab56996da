"""Choose where results are written, so that no evaluation silently replaces another one.

The `identity` of results has the questions, the systems and the settings. Results with the same identity are replaced
in place. Others go to a separate folder, or are refused with advice on what to do.

RUN/results.json, eval.jsonl, report.html    the run's own settings and the checkpoint that is used
RUN/evaluations/SPLIT-N-CHECKPOINT-HASH/     every other evaluation of the run
"""

import json
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..configs.differences import flat
from ..data.history import lines_of
from ..data.types import Question
from ..errors import ConfigError
from ..storage import parse_json
from .identity import digest

log = logging.getLogger(__name__)

EVALUATIONS = "evaluations"
"""Folder of the other evaluations of a run."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one evaluation is written."""

    folder: Path
    is_default: bool = True
    """Whether `folder` is the default place of this evaluation; if not, it goes aside."""
    aside: bool = False
    """Whether results that must not go into `folder` go to its subfolder EVALUATIONS; otherwise they are refused."""
    overwrite: bool = False
    """Write into `folder` even over another evaluation."""

    def settle(self, identity: Mapping[str, object], title: str) -> Path:
        """The folder for results with this identity; a folder aside is named after `title`.

        Raises ConfigError where the folder holds another evaluation and `aside` is off.
        """
        if self.overwrite:
            return self.folder
        if not self.aside:
            refuse_other(self.folder / "results.json", identity)
            return self.folder
        changes = list(differences(_identity(self.folder / "results.json"), identity))
        if self.is_default and not changes:
            return self.folder
        target = self.folder / EVALUATIONS / f"{title}-{digest(dict(identity))[:8]}"
        reason = f"{self.folder} holds another evaluation ({'; '.join(changes[:3])})" if changes else "changed settings"
        log.warning("%s: this one is written to %s; --overwrite would write it to %s", reason, target, self.folder)
        return target


def question_set(questions: Sequence[Question]) -> str:
    """A hash of a set of questions, independent of order."""
    return digest(
        sorted(
            [question.id, question.text, *question.options, *([lines_of(question.history)] if question.history else [])]
            for question in questions
        )
    )


def differences(previous: Mapping[str, object] | None, current: Mapping[str, object]) -> Iterator[str]:
    """The differences between two identities, such as "split: test → validation"; none without a previous one.

    Added parts (`questions`: another task, another dataset) do not count.
    """
    new = dict(flat(parse_json(json.dumps(current))))  # as the previous one was read: tuples are lists
    for key, value in flat(previous or {}):
        if key not in new:
            yield f"{key} is left out"
        elif new[key] != value:
            yield f"{key}: {_short(value)} → {_short(new[key])}"


def refuse_other(path: Path, identity: Mapping[str, object], overwrite: bool = False) -> None:
    """Raise ConfigError where the results in `path` have another identity; no results are fine."""
    previous = _identity(path)
    changes = [] if overwrite else list(differences(previous, identity))
    if changes:
        raise ConfigError(
            f"{path} holds other results, which this would replace ({'; '.join(changes[:3])}). Give another folder "
            "with -o, or replace them with --overwrite."
        )


def _identity(path: Path) -> dict[str, object] | None:
    """The identity in a results file; None where it has none, or there is no such file."""
    try:
        identity = parse_json(path.read_text(encoding="utf-8")).get("identity")
    except (OSError, ValueError, AttributeError):
        return None
    return identity if isinstance(identity, dict) else None


def _short(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:12] if len(text) == 64 else text[:80]
