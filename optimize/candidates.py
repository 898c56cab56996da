"""All candidates of a run with their scores (candidates.jsonl), and the best one as a checkpoint (best/)."""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from ..configs.reward_metric import RewardMetric
from ..data.types import Question
from ..errors import ConfigError
from ..rewriters.small import FewShotPrompt
from ..rollouts.checkpoints import PROMPT_FILE
from ..rollouts.turns import winning_turn
from ..storage import KeyedJournal, parse_json
from ..train.run_folder import RunFolder, staged
from .prompts import digest_of, prompt_yaml
from .reflection import Proposal
from .scoring import ScoredAnswer, evaluation_key

log = logging.getLogger(__name__)


@dataclass(slots=True)
class CandidateScores:
    """One prompt, a line of candidates.jsonl."""

    candidate: str
    """Its digest."""
    proposal: int
    """The number of its proposal; 0 for the prompt of the config."""
    parent: str | None
    minibatch: float | None = None
    """Mean reward on the training questions that its parent answered, too."""
    parent_minibatch: float | None = None
    """That of its parent on the same questions."""
    validation: float | None = None
    """Mean reward on the validation questions; None if it did not beat its parent on the minibatch."""
    refused: Sequence[str] = ()
    """Why attempts at this proposal were unusable; without a usable one, `candidate` is the parent."""
    prompt: str = ""
    """The prompt file's text; "" where no attempt was usable."""


class PromptPool:
    """The candidates so far. `best/` is replaced when a candidate has the highest mean reward on validation."""

    def __init__(
        self,
        folder: RunFolder,
        metric: RewardMetric,
        turns: int,
        validation: Sequence[Question],
        evaluations: KeyedJournal[ScoredAnswer],
        proposals: KeyedJournal[Proposal],
    ) -> None:
        self._folder, self._metric, self._turns = folder, metric, turns
        self._validation, self._evaluations, self._proposals = validation, evaluations, proposals
        self._prompts: dict[str, FewShotPrompt] = {}
        self._best = self._stored_best()

    def update(self, prompt: FewShotPrompt) -> None:
        """Note a prompt whose evaluations may have changed, and write what did."""
        digest = digest_of(prompt)
        self._prompts.setdefault(digest, prompt)
        validated = self._validated(digest)
        if validated is not None:
            score = fmean(evaluation.reward for evaluation in validated)
            if self._best is None:
                log.info("the prompt of the config: %.4f on %d validation questions", score, len(validated))
            elif score > self._best[0]:
                log.info("a better prompt, %s: %.4f, %.4f before", digest, score, self._best[0])
            if self._best is None or score > self._best[0]:
                self._best = score, digest
                self._write_best(prompt, validated)
        self._write()

    @property
    def best(self) -> tuple[float, str]:
        """Mean validation reward and digest of the best prompt. Raises ConfigError before the first validation."""
        if self._best is None:
            raise ConfigError("no prompt was validated yet")
        return self._best

    def rows(self) -> list[CandidateScores]:
        """All candidates, the prompt of the config first, then in the order of the proposals."""
        first = next(iter(self._prompts))
        start = prompt_yaml(self._prompts[first])
        rows = [CandidateScores(first, 0, None, validation=self._score(first), prompt=start)]
        answers: dict[str, dict[str, float]] = {}
        for answer in self._evaluations.by_key.values():
            if answer.split == "train":
                answers.setdefault(answer.candidate, {})[answer.question_id] = answer.reward
        for number, proposal in enumerate(self._proposals.by_key.values(), start=1):
            reasons = [reason for _, reason in proposal.refused]
            row = CandidateScores(proposal.candidate, number, proposal.parent, refused=reasons)
            if proposal.usable and proposal.candidate in self._prompts:
                row.prompt = prompt_yaml(self._prompts[proposal.candidate])
                row.validation = self._score(proposal.candidate)
                scores, parent = answers.get(proposal.candidate, {}), answers.get(proposal.parent, {})
                if common := scores.keys() & parent.keys():
                    row.minibatch = fmean(scores[question] for question in common)
                    row.parent_minibatch = fmean(parent[question] for question in common)
            rows.append(row)
        return rows

    def _stored_best(self) -> tuple[float, str] | None:
        """The best prompt of a run that goes on, whose candidates come up again from the first one."""
        path = self._folder.best / "best.json"
        digest = parse_json(path.read_text(encoding="utf-8")).get("candidate") if path.is_file() else None
        score = self._score(digest) if isinstance(digest, str) else None
        return (score, digest) if score is not None and isinstance(digest, str) else None

    def _validated(self, digest: str) -> list[ScoredAnswer] | None:
        """The evaluations on all validation questions; None if one is missing."""
        keys = (evaluation_key(digest, "validation", question.id) for question in self._validation)
        evaluations = [evaluation for key in keys if (evaluation := self._evaluations.get(key)) is not None]
        return evaluations if len(evaluations) == len(self._validation) else None

    def _score(self, digest: str) -> float | None:
        validated = self._validated(digest)
        return fmean(evaluation.reward for evaluation in validated) if validated is not None else None

    def _write(self) -> None:
        lines = [json.dumps(asdict(row), ensure_ascii=False) + "\n" for row in self.rows()]
        self._folder.write(self._folder.path / "candidates.jsonl", "".join(lines))

    def _write_best(self, prompt: FewShotPrompt, validated: Sequence[ScoredAnswer]) -> None:
        digest = digest_of(prompt)
        proposed = [proposal.candidate for proposal in self._proposals.by_key.values()]
        step = proposed.index(digest) + 1 if digest in proposed else 0
        record: dict[str, float | None] = {"step": step, "questions": len(validated), "unscorable": 0}
        means: list[Mapping[str, float]] = [evaluation.means for evaluation in validated]
        record |= {name: float(f"{fmean(values[name] for values in means):.6g}") for name in means[0]}
        record["turn"] = winning_turn(record, self._metric, self._turns)
        with staged(self._folder.best) as path:
            (path / PROMPT_FILE).write_text(prompt_yaml(prompt), encoding="utf-8")
            text = json.dumps({**record, "candidate": digest}, indent=2) + "\n"
            (path / "best.json").write_text(text, encoding="utf-8")
