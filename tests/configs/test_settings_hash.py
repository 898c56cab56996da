"""Every setting that can change a score is in the index hash or in the settings hash, or counts by what it gives."""

import typing
from dataclasses import replace
from itertools import accumulate

import pytest
from querylect.configs.environment import EnvironmentConfig
from querylect.configs.section import Section
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.environment import settings_hash

JUDGEMENTS = {"dataset"}
"""Hashed by what they give: the corpus in the index hash, judgements and ignored documents in the settings hash."""
INDEX = {
    "retriever", "model", "recipe", "engine", "language", "rerank", "hybrid.depth",
    *(f"hybrid.members.{name}" for name in ("retriever", "model", "recipe", "question_index")),
    *(f"question_index.{name}" for name in ("folder", "retriever", "model")),
    *(f"{section}.{name}" for section in ("remote", "hybrid.members.remote") for name in ("index", "language")),
    "vectors.dtype", "vectors.search",
}  # fmt: skip
"""In the index hash (tests/envs/test_index_hash.py), in that of the reranker, or refused where the index has others."""
NO_SCORE = {
    "name", "index", "milvus_uri", "postgres_url", "host", "port",
    "hybrid.members.index", "question_index.index",
    "remote.url", "hybrid.members.remote.url",
}  # fmt: skip
"""Where things lie, what a request may hold, how fast an answer comes: no ranking depends on them."""


def sections(annotation) -> list[type[Section]]:
    if typing.get_args(annotation):
        return [section for part in typing.get_args(annotation) for section in sections(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, Section) else []


def ancestors(name: str) -> set[str]:
    """a.b.c: a, a.b, a.b.c."""
    return set(accumulate(name.split("."), "{}.{}".format))


def names(model: type[Section], prefix: str = "") -> list[str]:
    """The settings of a section by dotted name, those of optional sections and of lists of sections too."""
    dotted_names = []
    for name, field in model.model_fields.items():
        inner = sections(field.annotation)
        dotted_names += [entry for section in inner for entry in names(section, f"{prefix}{name}.")] or [
            f"{prefix}{name}"
        ]
    return dotted_names


def test_every_setting_of_an_environment_is_hashed_or_changes_no_score():
    """A new setting fails here until somebody has decided whether it can change a score."""
    classes = {"judgements": JUDGEMENTS, "index": INDEX, "settings": {"vectors.device", "order"}}
    classes["no score"] = NO_SCORE
    kinds = {
        name: [kind for kind, members in classes.items() if ancestors(name) & members]
        for name in names(EnvironmentConfig)
    }
    assert {name: kind for name, kind in kinds.items() if len(kind) != 1} == {}
    classified = set().union(*classes.values())
    assert classified <= {part for name in kinds for part in ancestors(name)}, "a setting that is gone"
    assert {"dataset.path", "remote.url", "hybrid.members.model", "rerank.depth"} < kinds.keys()


DOCUMENTS = ("d1", "d2", "q2")


def dataset(grades, ignore=False):
    """Two questions, one of each split, with the grades of the first one's documents."""
    splits = {
        "train": Split([Question("q1", "one")], {"q1": grades}),
        "test": Split([Question("q2", "two")], {"q2": {"d2": 1}}),
    }
    return Dataset("toy", [Document(name, "", name) for name in DOCUMENTS], splits, ignore_identical_ids=ignore)


BASE_SPLITS = dataset({"d1": 2, "d2": 1}).splits
BASE = settings_hash(dataset({"d1": 2, "d2": 1}), DOCUMENTS, EnvironmentConfig())


def _other(question=None, **splits):
    """The dataset of BASE with another training question, or with these splits."""
    train = Split([question], BASE_SPLITS["train"].qrels) if question else BASE_SPLITS["train"]
    return replace(dataset({"d1": 2, "d2": 1}), splits=splits or {**BASE_SPLITS, "train": train})


@pytest.mark.parametrize(
    "changed",
    [
        dataset({"d1": 1, "d2": 1}),
        dataset({"d1": 2}),
        dataset({"d1": 2, "q2": 1}),
        dataset({"d1": 2, "d2": 1}, True),
        replace(dataset({"d1": 2, "d2": 1}), relevance_level=2),
        _other(Question("q1", "one!")),
        _other(Question("q1", "one", ("yes", "no"))),
        _other(train=BASE_SPLITS["test"], test=BASE_SPLITS["train"]),
        _other(train=BASE_SPLITS["train"], dev=BASE_SPLITS["test"]),
    ],
    ids=["grade", "fewer", "document", "ignored", "level", "text", "options", "splits swapped", "split renamed"],
)
def test_other_judgements_or_questions_change_the_hash(changed):
    """A split that went from the test questions to the training questions makes every later figure worthless."""
    assert settings_hash(changed, DOCUMENTS, EnvironmentConfig()) != BASE
