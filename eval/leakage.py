"""Which questions may be evaluated: none that a policy was trained on."""

from collections.abc import Sequence

from ..configs.environment import DatasetConfig
from ..data.leakage import Leak, same_questions
from ..data.types import Question, joined
from ..errors import DataError, QuerylectError
from .environments import EvalEnvironment, SpecEnvironments
from .systems import RewritingSystem


def trained_questions(
    system: RewritingSystem,
    environment: EvalEnvironment,
    opened: SpecEnvironments,
    peers: Sequence[EvalEnvironment] = (),
) -> tuple[dict[str, Leak], list[str]]:
    """The environment's questions that the system was trained on, by id, and notes on what could not be compared.

    In the environment of its training a question is the same by id or words, elsewhere by words: equal ids of two
    collections mean nothing. `peers` are the other environments of the evaluation, which may be services that it was
    trained with. Raises DataError where that is more than half of the questions: leaving them out would cost the other
    systems most of them.
    """
    leaks: list[Leak] = []
    notes = []
    for member in system.training_environments:
        urls, source = member.client.urls, member.env.dataset
        same = source == environment.env.dataset if urls == "local" else urls == environment.client_config.urls
        try:
            train = environment.train if same else joined("trained", _train(source, urls, opened, peers))
            leaks += same_questions(opened.spec.split, environment.questions, "train", train)
        except QuerylectError as error:
            notes.append(f"{system.name}: the questions it was trained on could not be compared ({error}).")
    by_id = {leak.question.id: leak for leak in leaks}
    if 2 * len(by_id) > len(environment.questions):
        raise DataError(
            f"{system.name} was trained on questions of {environment.dataset}: {len(by_id)} of "
            f"{len(environment.questions)}, for instance {leaks[0].question.text!r}. Take them out of the split, or "
            "take the dataset from this system (systems.NAME.datasets)."
        )
    return by_id, notes


def _train(
    source: DatasetConfig, urls: str | Sequence[str], opened: SpecEnvironments, peers: Sequence[EvalEnvironment]
) -> Sequence[Question]:
    if urls == "local":
        splits = opened.load(source).splits
        return splits["train"].questions if "train" in splits else ()
    for environment in peers:
        if environment.client_config.urls == urls:
            return environment.train
    raise DataError("they are those of a service")
