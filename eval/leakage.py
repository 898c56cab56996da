"""Which questions may be evaluated: none that a policy was trained on."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..configs.environment import DatasetConfig
from ..configs.mix import environments
from ..configs.schema import EvalConfig, RunConfig
from ..data.corpus import open_corpus
from ..data.leakage import (
    Leak,
    describe_left_out,
    describe_near,
    near_trained_on,
    overlap_with_train,
    trained_on,
    write_leaks,
)
from ..data.mixed_ids import join_id, joined
from ..data.sampling import draw
from ..data.types import AllDocuments, Question
from ..envs.client.base import EnvironmentApi
from ..envs.schemas import EnvironmentInfo
from ..errors import ConfigError, DataError, QuerylectError
from ..storage import writing
from .environments import EvalEnvironment
from .systems import RewritingSystem

log = logging.getLogger(__name__)

LEAKS = "leaks.jsonl"
"""File of an evaluation's folder with the questions that were trained on, and for a run those that nearly were."""

SAMPLE_SEED = 0
"""Seed of the samples for `eval.limit` and `answers.limit`, the same for runs of every seed."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """The questions to evaluate, and those that were left out because they were trained on."""

    questions: list[Question]
    leaks: tuple[Leak, ...] = ()
    near: tuple[Leak, ...] = ()
    """Questions to evaluate that are nearly the same as a training question."""

    def note(self) -> list[str]:
        """A sentence for the results on what was left out; none without."""
        total = len(self.questions) + len({leak.question.id for leak in self.leaks})
        left_out = [describe_left_out(self.leaks, total, LEAKS)] if self.leaks else []
        if not self.near:
            return left_out
        near = len({leak.question.id for leak in self.near})
        return [
            *left_out,
            f"{near} of {len(self.questions)} {self.near[0].split} questions are nearly the same as a training "
            f"question; {LEAKS} lists them, and env.dataset.leave_out={LEAKS} leaves them out.",
        ]

    def records(self) -> list[dict[str, object]]:
        """The lines of LEAKS."""
        left_out = [{**leak.record(), "left_out": True} for leak in self.leaks]
        return [*left_out, *({**leak.record(), "left_out": False} for leak in self.near)]


def refuse_training_split(evaluation: EvalConfig) -> None:
    """Raise ConfigError where the split to evaluate is the training split."""
    if evaluation.split not in ("validation", "test"):
        raise ConfigError(
            f"eval.split is {evaluation.split!r}; expected validation or test: a table of questions that were "
            "trained on says nothing about new ones."
        )


def held_out_questions(client: EnvironmentApi, info: EnvironmentInfo, evaluation: EvalConfig) -> HeldOut:
    """The questions to evaluate: those of the split that are not in the environment's training split.

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
    trained = trained_on(split, questions, train)
    if not trained:
        return HeldOut(list(questions))
    left_out = {leak.question.id for leak in trained}
    remaining = [question for question in questions if question.id not in left_out]
    if not remaining:
        sentence = overlap_with_train(name, split, questions, train)[0]
        raise DataError(f"{sentence} No other question is left; take these out of one of the two splits.")
    log.warning("%s: %s", name, describe_left_out(trained, len(questions), LEAKS))
    return HeldOut(remaining, tuple(trained))


def with_near(name: str, split: str, held_out: HeldOut, train: Sequence[Question]) -> HeldOut:
    """Add the questions that are nearly training questions, and log them: a person has to judge them."""
    near = near_trained_on(split, held_out.questions, train)
    if near:
        log.warning("%s", describe_near(name, near, len(held_out.questions)))
    return replace(held_out, near=(*held_out.near, *near))


def without_trained_elsewhere(
    environment: str, held_out: HeldOut, split: str, clients: Mapping[str, EnvironmentApi]
) -> HeldOut:
    """Members of a mix may split the same questions differently: leave out those that another member trains on.

    `clients` are those of all members. Ids are compared with the name of their environment, so equal ids of two members
    do not count; a leak has the id of its question, and that of the other member's with the name. Raises DataError as
    `without_trained`.
    """
    for name, peer in clients.items():
        if name != environment and peer.info().splits.get("train"):
            train = joined(name, peer.questions("train"))
            questions = {join_id(environment, question.id): question for question in held_out.questions}
            label = f"{environment} with {name}"
            trained = without_trained(label, split, joined(environment, held_out.questions), train)
            compared = with_near(label, split, trained, train)
            held_out = HeldOut(
                [questions[question.id] for question in compared.questions],
                (*held_out.leaks, *(replace(leak, question=questions[leak.question.id]) for leak in compared.leaks)),
                (*held_out.near, *(replace(leak, question=questions[leak.question.id]) for leak in compared.near)),
            )
    return held_out


def without_trained_by_run(run: RunConfig, config: RunConfig, name: str, held_out: HeldOut) -> HeldOut:
    """A run may be evaluated in another environment than it was trained in: leave out what it was trained on there.

    `config` is that of the evaluation, and `name` its environment. Training questions that are not on this machine
    cannot be compared, which is logged. Raises DataError as `without_trained`.
    """
    for member in environments(run).values():
        if (member.env.dataset, member.client.urls) == (config.env.dataset, config.client.urls):
            continue  # compared by `held_out_questions`
        train = TrainedQuestions().train(member.env.dataset) if member.client.urls == "local" else "a service's"
        if isinstance(train, str):
            log.warning("%s: the questions that the run was trained on could not be compared (%s)", name, train)
            continue
        compared = without_trained(name, config.eval.split, held_out.questions, train)
        held_out = HeldOut(compared.questions, (*held_out.leaks, *compared.leaks), held_out.near)
    return held_out


class TrainedQuestions:
    """The training questions of a spec's runs, as far as they are on this machine."""

    def __init__(self) -> None:
        self._train_cache: dict[str, list[Question] | str] = {}

    def find(self, system: RewritingSystem, environment: EvalEnvironment, split: str) -> tuple[list[Leak], list[str]]:
        """The questions of `environment` that the system was trained on by words, and notes on datasets that could not
        be compared."""
        leaks: list[Leak] = []
        notes: list[str] = []
        for member in system.training_environments:
            train = self.train(member.env.dataset) if system.config.client.urls == "local" else "it is a service's"
            if isinstance(train, str):
                notes.append(f"{system.name}: the questions it was trained on could not be compared ({train}).")
            else:
                leaks += trained_on(split, environment.questions, train)
        return leaks, notes

    def train(self, source: DatasetConfig) -> list[Question] | str:
        """The training questions of a dataset, or why they cannot be read."""
        key = source.model_dump_json()
        if key not in self._train_cache:
            try:
                splits = open_corpus(source).questions(AllDocuments()).splits
                train = splits["train"].questions if "train" in splits else []
                self._train_cache[key] = joined("trained", train)  # equal ids of two collections mean nothing
            except QuerylectError as error:
                self._train_cache[key] = str(error)
        return self._train_cache[key]


def refuse_trained(system: str, environment: EvalEnvironment, leaks: Sequence[Leak]) -> None:
    """Raise DataError for a system that was trained on more than half of the questions of a dataset: leaving them out
    would cost the other systems most of the questions."""
    count, total = len({leak.question.id for leak in leaks}), len(environment.questions)
    if 2 * count > total:
        raise DataError(
            f"{system} was trained on questions of {environment.dataset}: {count} of {total}, for instance "
            f"{leaks[0].question.text!r}; {LEAKS} lists them. Take them out of the split, or take the dataset from "
            "this system (systems.NAME.datasets)."
        )


def write_leaks_file(folder: Path, records: Sequence[Mapping[str, object]]) -> None:
    """Write the file LEAKS of an evaluation's folder; without records, remove it. Raises StorageError."""
    path = folder / LEAKS
    with writing(path):
        if records:
            write_leaks(path, records)
        else:
            path.unlink(missing_ok=True)
