"""The default name of an index, and the settings of the other indexes that a retriever searches."""

import re

from ..configs.environment import DatasetConfig, EnvironmentConfig, VectorsConfig
from ..storage import data_sha256
from .presets import PRESETS

_FIELDS = {"model", "recipe", "hybrid", "remote", "engine", "vectors"}
"""Settings that lead to a different index for the same retriever and dataset."""


def index_name(env: EnvironmentConfig) -> str:
    """The retriever's name as a folder name; a hash of its index settings is appended if they are not the defaults."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env.retriever).strip("-.") or "retriever"
    settings = _index_settings(env)
    if settings == _index_settings(EnvironmentConfig()):
        return name
    return f"{name}-{data_sha256(settings)[:8]}"


def _index_settings(env: EnvironmentConfig) -> dict[str, object]:
    settings = env.model_dump(mode="json", include=_FIELDS)
    kind = PRESETS[env.retriever].kind if env.retriever in PRESETS else "dense"
    vectors = VectorsConfig() if kind in ("bm25", "questions") else env.vectors
    settings["vectors"] = vectors.model_dump(mode="json", exclude={"device"})  # on which it does not depend
    if env.language != "english" and kind != "dense":
        settings["language"] = env.language
    if env.engine == "milvus":
        settings["milvus_uri"] = env.milvus_uri
    if env.question_index is not None:
        settings["question_index"] = env.question_index.model_dump(mode="json")
    return settings


def required_indexes(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of the other indexes that a retriever searches; they are built and verified with its own."""
    if config.hybrid is not None:
        return member_settings(config)
    return [questions_settings(config)] if config.question_index is not None else []


def member_settings(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of every member of a hybrid: those of the environment, overridden by the member's own.

    The index of a member that names none lies beside that of the hybrid.
    """
    assert config.hybrid is not None, "the settings of a hybrid name its members"
    shared = {"hybrid": None, "question_index": None, "rerank": None}
    members = [config.model_copy(update={**shared, **dict(member)}) for member in config.hybrid.members]
    return [
        member if member.index else member.model_copy(update={"index": f"{config.index}-{index_name(member)}"})
        for member in members
    ]


def questions_settings(config: EnvironmentConfig) -> EnvironmentConfig:
    """The settings of the index over the questions, which is an ordinary index with the questions as its corpus."""
    settings = config.question_index
    assert settings is not None, "the settings of qb-rag name its question index"
    changes = {
        "dataset": DatasetConfig(path=settings.folder),
        **dict.fromkeys(("hybrid", "question_index", "remote", "rerank", "recipe")),
        **{name: getattr(settings, name) for name in ("retriever", "index", "model")},
    }
    return config.model_copy(update=changes)
