"""Which questions may be evaluated: none that a policy was trained on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..configs.environment import DatasetConfig
from ..configs.schema import EvalConfig
from ..data.leakage import Leak, described, near_questions, same_questions, write_leaks
from ..data.sampling import draw
from ..data.types import Question, joined
from ..envs.client.base import EnvironmentApi
from ..envs.schemas import EnvironmentInfo
from ..errors import ConfigError, DataError, QuerylectError
from ..storage import writing
from .environments import SAMPLE_SEED, EvalEnvironment, SpecEnvironments
from .systems import RewritingSystem

log = logging.getLogger(__name__)

LEAKS = "leaks.jsonl"
"""File of an evaluation's folder with the questions that were trained on, or nearly so."""


@dataclass(slots=True)
class TrainedQuestions:
    """Finds the questions of an evaluation that its systems were trained on."""

    opened: SpecEnvironments
    split: str
    records: list[dict[str, object]] = field(default_factory=list)
    """The lines of LEAKS."""
    notes: list[str] = field(default_factory=list)
    """Sentences on datasets that could not be compared, and on questions that are nearly training questions."""
    _near_noted: set[str] = field(default_factory=set)

    def find(
        self, system: RewritingSystem, environment: EvalEnvironment, peers: Sequence[EvalEnvironment] = ()
    ) -> set[str]:
        """The ids of the environment's questions that the system was trained on.

        In the environment of its training a question is the same by id or words, elsewhere by words: equal ids of two
        collections mean nothing. `peers` are the other environments of the evaluation, which may be services that it
        was trained with. Raises DataError where that is more than half of the questions: leaving them out would cost
        the other systems most of them.
        """
        leaks: list[Leak] = []
        for member in system.training_environments:
            urls, source = member.client.urls, member.env.dataset
            same = source == environment.env.dataset if urls == "local" else urls == environment.client_config.urls
            if same:
                leaks += same_questions(self.split, environment.questions, "train", environment.train)
                self._note_near(system, environment, {leak.question.id for leak in leaks})
                continue
            try:
                train = self._train(source) if urls == "local" else _train_of_service(urls, peers)
            except QuerylectError as error:
                self._note(f"{system.name}: the questions it was trained on could not be compared ({error}).")
                continue
            leaks += same_questions(self.split, environment.questions, "train", joined("trained", train))
        self._list(leaks, environment, system, left_out=True)
        ids = {leak.question.id for leak in leaks}
        if 2 * len(ids) > len(environment.questions):
            raise DataError(
                f"{system.name} was trained on questions of {environment.dataset}: {len(ids)} of "
                f"{len(environment.questions)}, for instance {leaks[0].question.text!r}; {LEAKS} lists them. Take them "
                "out of the split, or take the dataset from this system (systems.NAME.datasets)."
            )
        return ids

    def _train(self, source: DatasetConfig) -> Sequence[Question]:
        splits = self.opened.load(source).splits
        return splits["train"].questions if "train" in splits else ()

    def _note_near(self, system: RewritingSystem, environment: EvalEnvironment, left_out: set[str]) -> None:
        if environment.dataset in self._near_noted:
            return
        self._near_noted.add(environment.dataset)
        remaining = [question for question in environment.questions if question.id not in left_out]
        if near := list(near_questions(self.split, remaining, "train", environment.train)):
            self._list(near, environment, system, left_out=False)
            self._note(
                f"{described(environment.dataset, near)[0]} {LEAKS} lists them; `querylect data prepare --near-leaks` "
                "takes them out of the training split."
            )

    def _note(self, sentence: str) -> None:
        if sentence not in self.notes:
            log.warning("%s", sentence)
            self.notes.append(sentence)

    def _list(
        self, leaks: Sequence[Leak], environment: EvalEnvironment, system: RewritingSystem, left_out: bool
    ) -> None:
        source = {"dataset": environment.dataset, "system": system.name, "left_out": left_out}
        self.records += [record for leak in leaks if (record := {**leak.record(), **source}) not in self.records]


def _train_of_service(urls: object, environments: Sequence[EvalEnvironment]) -> Sequence[Question]:
    for environment in environments:
        if environment.client_config.urls == urls:
            return environment.train
    raise DataError("they are those of a service")


def write_leaks_file(folder: Path, records: Sequence[Mapping[str, object]]) -> None:
    """Write the file LEAKS of an evaluation's folder; without records, remove it. Raises StorageError."""
    path = folder / LEAKS
    with writing(path):
        if records:
            write_leaks(path, records)
        else:
            path.unlink(missing_ok=True)


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The questions to ask, and those that were left out because they were trained on."""

    questions: list[Question]
    leaks: tuple[Leak, ...] = ()
    near: tuple[Leak, ...] = ()
    """Questions to ask that are nearly the same as a training question."""


def held_out_questions(client: EnvironmentApi, info: EnvironmentInfo, evaluation: EvalConfig) -> HeldOut:
    """The questions to ask: those of the split that are not in the environment's training split.

    Raises ConfigError for an unknown or empty split, DataError as `without_trained`.
    """
    split = evaluation.split
    if not info.splits.get(split):
        message = f"the environment has no questions in split {split!r}; it has {info.splits}. Change eval.split."
        raise ConfigError(message)
    train = client.questions("train") if info.splits.get("train") else []
    held_out = without_trained(info.name, split, client.questions(split), train)
    questions = draw(held_out.questions, evaluation.limit, SAMPLE_SEED)
    return with_near(info.name, split, replace(held_out, questions=questions), train)


def without_trained(name: str, split: str, questions: Sequence[Question], train: Sequence[Question]) -> HeldOut:
    """The questions that no training question repeats by id or words. Raises DataError where none is left."""
    trained = list(same_questions(split, questions, "train", train))
    if not trained:
        return HeldOut(list(questions))
    left_out = {leak.question.id for leak in trained}
    remaining = [question for question in questions if question.id not in left_out]
    sentence = described(name, trained)[0]
    if not remaining:
        raise DataError(f"{sentence} No other question is left; take these out of one of the two splits.")
    log.warning("%s They are left out; %s lists them.", sentence, LEAKS)
    return HeldOut(remaining, tuple(trained))


def with_near(name: str, split: str, held_out: HeldOut, train: Sequence[Question]) -> HeldOut:
    """Add the questions that are nearly training questions, and log them: a person has to judge them."""
    near = list(near_questions(split, held_out.questions, "train", train))
    for sentence in described(name, near):
        log.warning("%s", sentence)
    return replace(held_out, near=(*held_out.near, *near))
