"""A run of `querylect optimize`: GEPA (arXiv 2507.19457) on the environment, reward and questions of training.

The folder is that of a training run (train/run_folder.py), with the optimised prompt in best/ in place of weights, and

evaluations.jsonl  one line per question that was answered with a prompt, or searched as it stands
proposals.jsonl    one line per proposal of the reflection model
candidates.jsonl   every prompt with its scores

GEPA keeps its state in memory and depends on the seed alone, so a resumed run goes through it again with the answers of
the two journals: finished work costs nothing, and no pickle is read.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

from ..configs.llm import LlmConfig
from ..configs.mix import only
from ..configs.optimize import OptimizeConfig
from ..configs.schema import (
    ClientConfig,
    EnvironmentConfig,
    PolicyConfig,
    RewardConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
)
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environments
from ..errors import ConfigError
from ..llms.access import Llm
from ..logs import Progress
from ..provenance import this_start
from ..rollouts.first_stage import policy_llm
from ..rollouts.llms import open_llm
from ..rollouts.preflight import check_run
from ..sources import optional_packages, resolve_model
from ..storage import KeyedJournal, only_command
from ..train.grading import Grader, grader_of
from ..train.questions import worth_training
from ..train.run_folder import RunFolder
from ..train.validation import draw_validation
from .candidates import PromptPool
from .checks import refuse_unsupported
from .prompts import components_of
from .reflection import Proposal, Reflector
from .scoring import ScoredAnswer, Scorer

if TYPE_CHECKING:
    from gepa.core.state import GEPAState

log = logging.getLogger(__name__)

COMMAND = "optimize"
_REMEDY = "Restore it from a copy, or start a new run (name=…)."


def optimize(config: RunConfig, resume: bool = False, progress: Progress = lambda done, total: None) -> Path:
    """Optimise the prompt of `config` and return the run folder. `progress` is told of the searches and their budget.

    Raises ConfigError, ModelError, DataError, IndexFolderError or CheckpointError for problems found before anything is
    written, ConfigError also for a mix, of which `only` gives one environment, MissingPackageError without the extra
    `optimize`; EnvironmentUnavailableError and EngineUnavailableError if the environment, the task model or the
    reflection model does not answer, after which --resume continues; StorageError.
    """
    with optional_packages("optimize"):
        import gepa  # noqa: F401 (missing packages are reported before anything is loaded)
    config = only(config, None)
    path = config.run_folder
    if not resume:
        RunFolder(path).refuse_existing()
    refuse_unsupported(config.rewriter, config.reward)
    check_run(config)
    _check_models(config.optimize, config.policy)
    with only_command(path), open_environments(config) as client, ExitStack() as models:
        folder = RunFolder.reopen(config, command=COMMAND)[0] if resume else None
        environment = client.environment().model_dump(mode="json")
        if folder is not None:
            folder.same_environment(environment)
        scorer = Scorer(config, client, models)
        train, validation = _questions(config.train, config.reward, grader_of(config, client), client)
        budget = config.optimize.searches or searches_of_training(config.train, config.rollout)
        if budget < len(validation) * scorer.turns:
            raise ConfigError(
                f"the budget is {budget} searches, and the first prompt alone takes {len(validation) * scorer.turns} "
                f"on {len(validation)} validation questions. Raise optimize.searches, or lower "
                "train.validation_questions."
            )
        base = scorer.base
        folder = folder or RunFolder.create(config, COMMAND)
        if base:
            folder.same_base(config.policy.model, base, resume)
        folder.write(folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        titles = relevant_titles(config.env, config.client, config.optimize.titles, train)
        data = _Data(train, validation, titles, budget, progress)
        reflection = reflection_of(config.optimize, config.policy)
        search = _Search(
            config.optimize, config.seed, folder, scorer, data, lambda: models.enter_context(open_llm(reflection))
        )
        folder.note_start(this_start(len(search.proposals.by_key), environment))
        search.run()
    return path


@dataclass(frozen=True, slots=True)
class _Data:
    """What a run works on."""

    train: Sequence[Question]
    validation: Sequence[Question]
    relevant: Mapping[str, Sequence[str]]
    budget: int
    """Searches."""
    progress: Progress


class _Search:
    """GEPA's search for a prompt, from the beginning or through what the journals have."""

    def __init__(
        self,
        settings: OptimizeConfig,
        seed: int,
        folder: RunFolder,
        scorer: Scorer,
        data: _Data,
        open_reflection: Callable[[], Llm],
    ) -> None:
        self._settings, self._seed, self._scorer, self._data = settings, seed, scorer, data
        evaluations = KeyedJournal(folder.path / "evaluations.jsonl", ScoredAnswer, _REMEDY)
        self.proposals = KeyedJournal(folder.path / "proposals.jsonl", Proposal, _REMEDY)
        self._pool = PromptPool(folder, scorer.metric, scorer.turns, data.validation, evaluations, self.proposals)
        from .gepa_adapter import EnvironmentAdapter

        self._adapter = EnvironmentAdapter(
            scorer, evaluations, data.budget, settings.feedback, data.relevant, self._pool.update, data.progress
        )
        refusal = partial(scorer.refusal, questions=[*data.train, *data.validation])
        self._reflector = Reflector(settings, seed, scorer.start, self.proposals, open_reflection, refusal)

    def run(self) -> None:
        """Search until the budget is spent. Raises as `optimize`."""
        from gepa import optimize as gepa_optimize

        from .gepa_adapter import BudgetSpentError

        settings = self._settings
        with suppress(BudgetSpentError):
            gepa_optimize(
                seed_candidate=components_of(self._scorer.start, settings.components),
                trainset=[("train", question) for question in self._data.train],
                valset=[("validation", question) for question in self._data.validation],
                adapter=self._adapter,
                custom_candidate_proposer=self._reflector,
                reflection_minibatch_size=min(settings.minibatch, len(self._data.train)),
                stop_callbacks=self._stops,
                logger=_Logger(),
                seed=self._seed,
            )
        if self._reflector.failure is not None:
            raise self._reflector.failure
        score, digest = self._pool.best
        log.info(
            "%d of %d searches, %d proposals: %s is the best prompt, %.4f on validation",
            self._adapter.searches, self._data.budget, len(self.proposals.by_key), digest, score,
        )  # fmt: skip

    def _stops(self, state: "GEPAState") -> bool:
        """Whether GEPA ends before its next iteration, of which each makes one proposal at most."""
        iterations: int = state.i + 1
        return self._reflector.failure is not None or iterations >= self._settings.proposals


class _Logger:
    """Takes GEPA's messages."""

    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)


def reflection_of(settings: OptimizeConfig, policy: PolicyConfig) -> LlmConfig:
    """The reflection model; the policy's base model where none is named."""
    return settings.reflection or policy_llm(policy)


def searches_of_training(train: TrainConfig, rollout: RolloutConfig) -> int:
    """The searches of all rollouts of a training run: one for each turn of each tree."""
    turns = sum(prod(rollout.branching[: depth + 1]) for depth in range(len(rollout.branching)))
    return train.steps * train.questions_per_step * turns


def relevant_titles(
    env: EnvironmentConfig, client: ClientConfig, count: int, train: Sequence[Question]
) -> dict[str, list[str]]:
    """Titles of the best relevant documents of training questions, at most `count` of each; {} where the dataset is on
    another machine."""
    if client.urls != "local":
        return {}
    from ..data.load import load_dataset

    dataset = load_dataset(env.dataset)
    qrels = dataset.splits["train"].qrels
    best = {
        question.id: sorted(grades, key=lambda document: (-grades[document], document))[:count]
        for question in train
        if (grades := {document: grade for document, grade in qrels.get(question.id, {}).items() if grade > 0})
    }
    needed = {document for documents in best.values() for document in documents}
    titles = {document.id: document.title or document.text[:80] for document in dataset.corpus if document.id in needed}
    return {question: [titles[name] for name in documents if name in titles] for question, documents in best.items()}


def _questions(
    settings: TrainConfig, reward: RewardConfig, grader: Grader, client: EnvironmentApi
) -> tuple[list[Question], list[Question]]:
    """The training questions of a training run, and its validation questions."""
    split = client.questions("train")
    train = worth_training(settings, reward, grader, split)
    if not train:
        raise ConfigError(
            f"no training question is left after train.raw_reward {settings.raw_reward}. Widen it, or add "
            "questions to the train split."
        )
    return train, draw_validation(settings, client, split)


def _check_models(settings: OptimizeConfig, policy: PolicyConfig) -> None:
    """Raise ModelError for a model that leads nowhere, before anything is loaded."""
    for model in filter(None, (reflection_of(settings, policy), settings.task)):
        if model.base_url is None:
            resolve_model(model.model)
