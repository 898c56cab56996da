"""A run of `querylect optimize`: GEPA (arXiv 2507.19457) on the environment, reward and questions of training.

The folder is that of a training run (train/run_folder.py), with the optimised prompt in best/ in place of weights, and

gepa/              GEPA's own run folder, from which it resumes: its state, all candidates (candidates.json), its log
evaluations.jsonl  one line per question that was answered with a prompt, or searched as it stands
proposals.jsonl    one line per reply of the reflection model
"""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from math import prod
from pathlib import Path

from ..configs.mix import only
from ..configs.run_settings import is_own
from ..configs.schema import (
    ClientConfig,
    EnvironmentConfig,
    RolloutConfig,
    RunConfig,
    TrainConfig,
)
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.client.connect import open_environments
from ..errors import CheckpointError, ConfigError
from ..logs import Progress
from ..provenance import this_start
from ..rollouts.llms import open_llm, policy_llm
from ..sources import optional_packages
from ..storage import only_command
from ..train.questions import worth_training
from ..train.run_folder import RunFolder
from ..train.validation import draw_validation
from .checks import refuse_unsupported
from .prompts import COMPONENT
from .reflection import REQUEST, ReflectionModel
from .scoring import Scorer

log = logging.getLogger(__name__)

COMMAND = "optimize"
_MINIBATCH = 8
"""Training questions that a proposal is made from; it is validated only if it beats its parent on them."""
_TITLES = 3
"""Titles of relevant documents that the reflection model is shown for each question."""


def optimize(config: RunConfig, resume: bool = False, progress: Progress = lambda done, total: None) -> Path:
    """Optimise the prompt of `config` and return the run folder. `progress` is told of the searches and their budget.

    Raises ConfigError, ModelError, DataError, IndexFolderError or CheckpointError for problems found before anything is
    written, ConfigError also for a mix, of which `only` gives one environment, MissingPackageError without the extra
    `optimize`; EnvironmentUnavailableError and EngineUnavailableError if the environment, the task model or the
    reflection model does not answer, after which --resume continues; StorageError.
    """
    with optional_packages("optimize"):
        from gepa import optimize as gepa_optimize
    config = only(config, None)
    path = config.run_folder
    folder = RunFolder(path)
    if not resume:
        folder.refuse_existing()
    refuse_unsupported(config.rewriter, config.reward)
    with only_command(path), open_environments(config) as client, ExitStack() as models:
        if resume and not is_own(path):
            raise CheckpointError(
                f"{path} is not yours, and GEPA's state in it is a pickle, which can run code when read. If you trust "
                "its author, make it yours."
            )
        environment = client.info().model_dump(mode="json")
        if resume:
            folder.reopen(config, command=COMMAND)
            folder.same_environment(environment)
        scorer = Scorer(config, client, models)
        train, validation = _questions(config, client)
        budget = config.optimize.searches or searches_of_training(config.train, config.rollout)
        if budget < len(validation) * scorer.turns:
            raise ConfigError(
                f"the budget is {budget} searches, and the first prompt alone takes {len(validation) * scorer.turns} "
                f"on {len(validation)} validation questions. Raise optimize.searches, or lower "
                "train.validation_questions."
            )
        base = scorer.base
        if not resume:
            folder.create(config, COMMAND)
        if base:
            folder.same_base(config.policy.model, base, resume)
        folder.write(folder.path / "environment.json", json.dumps(environment, indent=2) + "\n")
        titles = relevant_titles(config.env, config.client, train)
        settings, model = config.optimize, config.optimize.reflection or policy_llm(config.policy)
        reflection = ReflectionModel(
            folder.path / "proposals.jsonl",
            config.seed,
            lambda: models.enter_context(open_llm(model)),
        )
        from .gepa_adapter import BudgetSpentError, EnvironmentAdapter

        adapter = EnvironmentAdapter(scorer, folder, budget, [*train, *validation], titles, reflection, progress)
        folder.note_start(this_start(reflection.proposals, environment))
        with suppress(BudgetSpentError):
            gepa_optimize(
                seed_candidate={COMPONENT: scorer.start.system},
                trainset=[("train", question) for question in train],
                valset=[("validation", question) for question in validation],
                adapter=adapter,
                reflection_lm=reflection,
                reflection_prompt_template=REQUEST,
                reflection_minibatch_size=min(_MINIBATCH, len(train)),
                stop_callbacks=lambda state: bool(reflection.failure) or state.i + 1 >= settings.proposals,
                logger=_Logger(),
                run_dir=str(folder.path / "gepa"),
                track_best_outputs=False,
                seed=config.seed,
            )
        if reflection.failure is not None:
            raise reflection.failure
        log.info(
            "%d of %d searches, %d proposals: %.4f on validation",
            adapter.searches, budget, reflection.proposals, adapter.best or 0.0,
        )  # fmt: skip
    return path


class _Logger:
    """Takes GEPA's messages."""

    def log(self, message: str) -> None:
        log.debug("gepa: %s", message)


def searches_of_training(train: TrainConfig, rollout: RolloutConfig) -> int:
    """The searches of all rollouts of a training run: one for each turn of each tree."""
    turns = sum(prod(rollout.branching[: depth + 1]) for depth in range(len(rollout.branching)))
    return train.steps * train.questions_per_step * turns


def relevant_titles(env: EnvironmentConfig, client: ClientConfig, train: Sequence[Question]) -> dict[str, list[str]]:
    """Titles of the best relevant documents of training questions; {} where the dataset is on another machine."""
    if client.urls != "local":
        return {}
    from ..data.load import load_dataset

    dataset = load_dataset(env.dataset)
    qrels = dataset.splits["train"].qrels
    best = {
        question.id: sorted(grades, key=lambda document: (-grades[document], document))[:_TITLES]
        for question in train
        if (grades := {document: grade for document, grade in qrels.get(question.id, {}).items() if grade > 0})
    }
    needed = {document for documents in best.values() for document in documents}
    titles = {document.id: document.title or document.text[:80] for document in dataset.corpus if document.id in needed}
    return {question: [titles[name] for name in documents if name in titles] for question, documents in best.items()}


def _questions(config: RunConfig, client: EnvironmentApi) -> tuple[list[Question], list[Question]]:
    """The training questions of a training run, and its validation questions."""
    split = client.questions("train")
    train = worth_training(config, client, split)
    if not train:
        raise ConfigError(
            f"no training question is left after train.raw_reward {config.train.raw_reward}. Widen it, or add "
            "questions to the train split."
        )
    return train, draw_validation(config.train, client, split)
