"""Which questions may be evaluated: none that a policy was trained on."""

import logging
from collections.abc import Mapping, Sequence

from ..configs.environment import DatasetConfig
from ..configs.schema import RunConfig
from ..data.corpus import open_corpus
from ..data.leakage import near_overlap_with_train, overlap_with_train
from ..data.mixed_ids import joined
from ..data.sampling import draw
from ..data.types import Question
from ..envs.client.base import EnvironmentApi
from ..envs.server.schemas import EnvironmentInfo
from ..errors import ConfigError, DataError, QuerylectError
from .environments import AllDocuments, EvalEnvironment
from .systems import RewritingSystem

log = logging.getLogger(__name__)


def refuse_training_split(config: RunConfig) -> None:
    """Raise ConfigError where the split to evaluate is the training split."""
    if config.eval.split not in ("validation", "test"):
        raise ConfigError(
            f"eval.split is {config.eval.split!r}; expected validation or test: a table of questions that were "
            "trained on says nothing about new ones.",
            code="not-held-out",
        )


def held_out_questions(client: EnvironmentApi, info: EnvironmentInfo, config: RunConfig) -> list[Question]:
    """The questions to evaluate, after checking that none of them is in the environment's training split.

    Raises ConfigError for an unknown or empty split, DataError for a question id or text found in both.
    """
    split = config.eval.split
    if not info.splits.get(split):
        message = f"the environment has no questions in split {split!r}; it has {info.splits}. Change eval.split."
        raise ConfigError(message, code="no-questions")
    questions = draw(client.questions(split), config.eval.limit, config.eval.sample_seed)
    if info.splits.get("train"):
        refuse_overlap(info.name, split, questions, client.questions("train"))
    return questions


def refuse_overlap(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> None:
    """Raise DataError where a question to evaluate has the id or the text of a training question.

    Near-duplicates, letter by letter, are only logged: a person has to judge them.
    """
    if shared := overlap_with_train(name, split, questions, train):
        raise DataError(
            f"{shared[0]} Take these questions out of one of the two splits, then evaluate again.",
            code="overlapping-splits",
        )
    for sentence in near_overlap_with_train(name, split, questions, train):
        log.warning("%s", sentence)


def refuse_trained_elsewhere(
    held_out: Mapping[str, Sequence[Question]], split: str, clients: Mapping[str, EnvironmentApi]
) -> None:
    """Members of a mix may split the same questions differently: refuse those that another member trains on.

    `clients` are those of all members, `held_out` the questions of those to evaluate. Ids are prefixed by environment,
    so equal ids of two members do not count.
    """
    for environment, questions in held_out.items():
        prefixed = joined(environment, questions)
        for name, peer in clients.items():
            if name != environment and peer.environment().splits.get("train"):
                train = joined(name, peer.questions("train"))
                refuse_overlap(f"{environment} with {name}", split, prefixed, train)


class TrainedQuestions:
    """The training questions of a spec's runs, as far as they are on this machine."""

    def __init__(self) -> None:
        self._train_cache: dict[str, list[Question] | str] = {}
        self._near_notes: dict[tuple[str, str], list[str]] = {}

    def refuse(self, system: RewritingSystem, environment: EvalEnvironment, split: str) -> list[str]:
        """Raise DataError if the system was trained on a question of `environment`.

        Returns notes on questions that are textually close to a training question, which a reader has to judge, and on
        datasets that could not be compared.
        """
        notes = []
        for member in system.training_environments:
            source = member.env.dataset
            train = self._train(source) if system.config.client.urls == "local" else "it is a service's"
            if isinstance(train, str):
                notes.append(f"{system.name}: the questions it was trained on could not be compared ({train}).")
            elif shared := overlap_with_train(environment.dataset, split, environment.questions, train):
                raise DataError(
                    f"{system.name} was trained on questions of {environment.dataset}. {shared[0]} Take them out of "
                    "the split, or take the dataset from this system (systems.NAME.datasets).",
                    code="trained-questions",
                )
            else:
                notes += [
                    f"{system.name} was trained on {source.path or source.kind}. {sentence}"
                    for sentence in self._near_duplicate_notes(source, environment, split, train)
                ]
        return notes

    def _near_duplicate_notes(
        self, source: DatasetConfig, environment: EvalEnvironment, split: str, train: Sequence[Question]
    ) -> list[str]:
        """Notes on near-duplicate questions; computed once for all runs and environments."""
        key = source.model_dump_json(), environment.dataset
        if key not in self._near_notes:
            self._near_notes[key] = near_overlap_with_train(environment.dataset, split, environment.questions, train)
        return self._near_notes[key]

    def _train(self, source: DatasetConfig) -> Sequence[Question] | str:
        key = source.model_dump_json()
        if key not in self._train_cache:
            try:
                splits = open_corpus(source).questions(AllDocuments()).splits
                train = splits["train"].questions if "train" in splits else []
                self._train_cache[key] = joined("trained", train)  # equal ids of two collections mean nothing
            except QuerylectError as error:
                self._train_cache[key] = str(error)
        return self._train_cache[key]
