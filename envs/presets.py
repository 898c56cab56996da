"""What a retriever's settings mean: its preset (model, pooling, similarity, prompts), and the indexes that it needs.

A built-in preset (presets.yaml) follows the model card. `env.recipe` overrides its fields, or the defaults of any other
model, so that a model can be added by settings alone (docs/add-a-retriever.md).
"""

import re
from pathlib import Path
from typing import Literal

from ..configs.environment import DatasetConfig, EnvironmentConfig, Precision, RecipeConfig, VectorsConfig
from ..configs.load import read_yaml
from ..errors import ConfigError
from ..storage import data_sha256


class RetrieverPreset(RecipeConfig):
    """How one retriever turns text into scores."""

    name: str
    kind: Literal["bm25", "dense", "fts5", "postgres", "tantivy", "hybrid", "questions", "custom"]
    trained: str
    """One sentence for prompts: what the retriever is and how it was trained."""
    model: str | None = None
    """Encoder: a folder, `package:NAME/SUBFOLDER` or a Hub id; the file of a custom retriever. None for BM25."""
    query_prompt: str | None = ""
    """Prefix of a query; None takes the model's own."""
    document_prompt: str | None = ""
    """Prefix of a document; None takes the model's own."""
    pair: bool = False
    """Whether the tokenizer gets a document as a pair of title and text, with its separator between them."""
    dtype: Precision = "float32"

    def content(self) -> dict[str, object]:
        """The fields that change an index or its rankings, without model paths and descriptions."""
        if self.kind != "dense":
            return {"name": self.name, "kind": self.kind}
        return self.model_dump(exclude={"model", "query_model", "trained"}, exclude_none=True)


PYTHON = "python:"
"""Prefix of a retriever name that is a path to a custom Python file."""
PRESETS = {
    name: RetrieverPreset(name=name, **fields)
    for name, fields in read_yaml(Path(__file__).with_name("presets.yaml")).items()
}
"""The built-in presets by name."""
_INDEXED = {"model", "recipe", "hybrid", "remote", "engine", "vectors"}
"""Settings that lead to a different index for the same retriever and dataset."""


def preset_of(config: EnvironmentConfig) -> RetrieverPreset:
    """The configured preset, with the overrides of `env.recipe`.

    Raises ConfigError as `find_preset`, and if the overrides do not fit the retriever.
    """
    preset = find_preset(config.retriever, config.model)
    changes = {} if config.recipe is None else config.recipe.model_dump(exclude_none=True)
    if preset.kind != "dense" and (unfit := [key for key in changes if key not in ("name", "trained")]):
        keys = ", ".join(f"env.recipe.{key}" for key in unfit)
        raise ConfigError(f"{keys}: {preset.name} has no model to set this for. Remove it, or name a dense retriever.")
    if preset.query_model and config.model and "query_model" not in changes:
        raise ConfigError(
            f"env.model replaces the document encoder of {preset.name!r}, which has another one for queries. "
            "Give that one too: env.recipe.query_model."
        )
    if "document_prompt" in changes:
        changes["pair"] = False
    if preset.kind == "bm25" and config.language != "english" and config.remote is None:
        changes.setdefault("trained", f"{preset.trained} The language of its stems is {config.language}.")
    return preset.model_copy(update=changes)


def find_preset(name: str, model: str | None = None) -> RetrieverPreset:
    """The preset of a built-in name, or a generic one for any sentence-transformers folder or Hub id.

    `model` replaces only the encoder of the preset. A generic preset takes similarity, prompts and length from the
    model itself. Raises ConfigError for an unknown name, and for a model if the preset takes none.
    """
    preset = PRESETS.get(name.lower()) or _generic(name)
    if model is None:
        return preset
    if preset.kind != "dense":
        raise ConfigError(
            f"env.model is {model!r}, but {preset.name} has no model. Remove env.model, or name a dense retriever."
        )
    return preset.model_copy(update={"model": model})


def _generic(name: str) -> RetrieverPreset:
    if name.startswith(PYTHON):
        file = Path(name.removeprefix(PYTHON)).expanduser()
        if not file.is_file():
            raise ConfigError(f"env.retriever is {name!r}, but there is no file {file}.")
        trained = f"{file.stem}, a retriever of the user's own."
        return RetrieverPreset(name=file.stem, kind="custom", model=str(file), trained=trained)
    is_folder = Path(name).expanduser().is_dir()
    if not (is_folder or "/" in name or name.startswith("package:")):
        raise ConfigError(
            f"env.retriever is {name!r}; expected one of {', '.join(PRESETS)}, a folder, package:NAME, a Hub id "
            f"(owner/name) or {PYTHON}FILE."
        )
    label = Path(name).expanduser().resolve().name if is_folder else name
    return RetrieverPreset(
        name=label,
        kind="dense",
        model=name,
        trained=f"{label}, a dense retriever that compares sentence embeddings.",
        query_prompt=None,
        document_prompt=None,
    )


def index_name(env: EnvironmentConfig) -> str:
    """The retriever's name as a folder name; a hash of its index settings is appended if they are not the defaults."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", env.retriever).strip("-.") or "retriever"
    settings = _index_settings(env)
    if settings == _index_settings(EnvironmentConfig()):
        return name
    return f"{name}-{data_sha256(settings)[:8]}"


def _index_settings(env: EnvironmentConfig) -> dict[str, object]:
    settings = env.model_dump(mode="json", include=_INDEXED)
    kind = PRESETS[env.retriever].kind if env.retriever in PRESETS else "dense"
    vectors = VectorsConfig() if kind in ("bm25", "fts5", "postgres", "tantivy", "questions") else env.vectors
    settings["vectors"] = vectors.model_dump(mode="json", exclude={"device"})
    if env.language != "english" and kind != "dense":
        settings["language"] = env.language
    if env.engine == "milvus":
        settings["milvus_uri"] = env.milvus_uri
    if kind == "postgres":
        settings["postgres_url"] = env.postgres_url
    if env.question_index is not None:
        settings["question_index"] = env.question_index.model_dump(mode="json")
    return settings


def required_indexes(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of the other indexes that a retriever searches; they are built and verified with its own."""
    if config.hybrid is not None:
        return member_settings(config)
    return [questions_settings(config)] if config.question_index is not None else []


def member_settings(config: EnvironmentConfig) -> list[EnvironmentConfig]:
    """The settings of every member of a hybrid: those of the environment, overridden by the member's own. An index
    without a name lies beside that of the hybrid."""
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
