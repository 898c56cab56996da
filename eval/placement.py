"""Where results go, so that no evaluation replaces another one in silence.

Results say in `identity` which questions were asked, which systems answered and under which settings. Results of the
same identity are written anew in place. Others go to a folder of their own, or are refused with the remedy.

RUN/results.json, eval.jsonl, report.html    the run's own settings and the checkpoint that is used
RUN/evaluations/SPLIT-N-CHECKPOINT-HASH/     every other evaluation of the run
"""

import json
import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..configs.differences import FREE_TO_CHANGE, among, flat
from ..configs.schema import RunConfig
from ..data.types import Question
from ..errors import ConfigError
from .identity import digest

log = logging.getLogger(__name__)

EVALUATIONS = "evaluations"
"""Folder of the other evaluations of a run."""

_OF_NO_ANSWER = (
    "name", "output", "seed", "env", "train", "answers", "questions", "mix", "reward", "policy.lora",
    "eval.permutations", "eval.bootstrap", "eval.examples", "eval.limit", "eval.sample_seed", "eval.split",
    "rollout.branching", "rollout.temperature", "rollout.top_p", "rollout.engine",
    *(name for name in FREE_TO_CHANGE if name not in ("eval", "rollout.max_prompt_tokens")),
)  # fmt: skip
"""Settings that change no greedy answer; the environment is compared by what it serves, the questions one by one."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one evaluation is to be written."""

    folder: Path
    own: bool = True
    """Whether `folder` is meant for this evaluation; others go aside."""
    aside: bool = False
    """Whether results that may not lie in `folder` go to EVALUATIONS in it; they are refused otherwise."""
    overwrite: bool = False
    """Write into `folder` whatever lies there."""

    def settle(self, identity: Mapping[str, Any], title: str) -> Path:
        """The folder for results of this identity; `title` begins the name of one aside.

        Raises ConfigError where another evaluation lies there and nothing may go aside.
        """
        if self.overwrite:
            return self.folder
        if not self.aside:
            refuse_other(self.folder / "results.json", identity)
            return self.folder
        others = list(differences(_identity(self.folder / "results.json"), identity))
        if self.own and not others:
            return self.folder
        place = self.folder / EVALUATIONS / f"{title}-{digest(dict(identity))[:8]}"
        why = f"{self.folder} holds another evaluation ({'; '.join(others[:3])})" if others else "changed settings"
        log.warning("%s: this one is written to %s; --overwrite would write it to %s", why, place, self.folder)
        return place


def question_set(questions: Sequence[Question]) -> str:
    """What a set of questions is known by, whatever its order."""
    return digest(sorted([question.id, question.text, *question.options] for question in questions))


def evaluation_identity(
    config: RunConfig,
    info: Mapping[str, Any],
    questions: Sequence[Question],
    systems: Collection[str],
    checkpoint_hash: str,
) -> dict[str, Any]:
    """What one evaluation of a run is known by. `info` is what the environment says of itself."""
    return {
        "split": config.eval.split,
        "number of questions": len(questions),
        "question set": question_set(questions),
        "checkpoint": checkpoint_hash,
        "systems": sorted(systems),
        "environment": {name: info.get(name) for name in ("name", "index_hash", "settings_hash", "gain")},
        "settings": answer_settings(config),
    }


def answer_settings(config: RunConfig) -> dict[str, Any]:
    """The settings that greedy answers depend on, by their dotted names."""
    settings = {key: value for key, value in flat(config.model_dump(mode="json")) if not among(key, _OF_NO_ANSWER)}
    return {**settings, "search_depth": config.search_depth}


def differences(before: Mapping[str, Any] | None, now: Mapping[str, Any]) -> Iterator[str]:
    """In what two identities differ, as "split: test → validation"; nothing where there was none before.

    Parts that were added (`questions`: another task, another dataset) are no difference, and a setting that only one
    version knows is none either.
    """
    if before is None:
        return
    old, new = dict(flat(before)), dict(flat(now))
    for key, value in old.items():
        if key in new and new[key] != value:
            yield f"{key}: {_short(value)} → {_short(new[key])}"
        elif key not in new and key.startswith("questions."):
            yield f"{key} is left out"
    if not before:
        yield "an earlier version wrote it, without saying what was asked"


def refuse_other(path: Path, identity: Mapping[str, Any], overwrite: bool = False) -> None:
    """ConfigError where the results in `path` are of another identity; nothing where there are none."""
    others = [] if overwrite else list(differences(_identity(path), identity))
    if others:
        raise ConfigError(
            f"{path} holds other results, which this would replace ({'; '.join(others[:3])}). Give another folder "
            "with -o, or replace them with --overwrite."
        )


def _identity(path: Path) -> dict[str, Any] | None:
    """What the results in a file are known by; {} where they do not say it, None where there is no such file."""
    try:
        values = json.loads(path.read_text(encoding="utf-8")).get("identity")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, AttributeError):
        return {}
    return values if isinstance(values, dict) else {}


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text[:12] if len(text) == 64 else text[:80]
