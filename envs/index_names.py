"""The name of an index that the settings do not name; environments with equal index settings share it."""

import re

from ..configs.environment import EnvironmentConfig, VectorsConfig
from ..storage import data_sha256
from .recipes import RECIPES

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
    vectors = env.vectors
    if env.retriever in RECIPES and RECIPES[env.retriever].kind in ("bm25", "questions"):
        vectors = VectorsConfig()  # such an index has none
    settings["vectors"] = vectors.model_dump(mode="json", exclude={"device"})  # on which it does not depend
    if env.engine == "milvus":
        settings["milvus_uri"] = env.milvus_uri
    if env.question_index is not None:
        settings["question_index"] = env.question_index.model_dump(mode="json")
    return settings


def member_settings(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of every member of a hybrid: those of the environment, overridden by the member's own.

    The index of a member that names none lies beside that of the hybrid.
    """
    assert config.hybrid is not None, "the settings of a hybrid name its members"
    shared = {"hybrid": None, "question_index": None, "rerank": None}
    members = [config.model_copy(update={**shared, **dict(member)}) for member in config.hybrid.members]
    return [
        member if configured.index else member.model_copy(update={"index": f"{config.index}-{index_name(member)}"})
        for configured, member in zip(config.hybrid.members, members, strict=True)
    ]
