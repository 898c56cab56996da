"""What a retriever's settings mean: its preset (model, pooling, similarity, prompts), and the indexes that it needs.

A built-in preset follows the model card. `env.recipe` overrides fields of a built-in preset, or of the defaults of any
other model, so that a model can be added by settings alone (docs/add-a-retriever.md).
"""

import re
from pathlib import Path
from typing import Literal

from ..configs.environment import DatasetConfig, EnvironmentConfig, Precision, RecipeConfig, VectorsConfig
from ..errors import ConfigError
from ..storage import data_sha256


class RetrieverPreset(RecipeConfig):
    """How one retriever turns text into scores."""

    name: str
    kind: Literal["bm25", "dense", "hybrid", "questions", "custom"]
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

_BUILT_IN = (
    RetrieverPreset(
        name="bm25",
        kind="bm25",
        trained="BM25, a lexical retriever that is not trained: it counts exact word matches (stemmed, stopwords "
        "removed), rare words weigh more, and it knows no synonyms.",
    ),
    RetrieverPreset(
        name="all-minilm-l6-v2",
        kind="dense",
        model="sentence-transformers/all-MiniLM-L6-v2",
        trained="all-MiniLM-L6-v2, a small dense retriever trained with a contrastive loss on about one billion "
        "sentence pairs (questions and answers, titles and bodies, duplicates).",
        pooling="mean",
        similarity="cos",
        max_length=256,
    ),
    RetrieverPreset(
        name="contriever",
        kind="dense",
        model="facebook/contriever",
        trained="Contriever, a dense retriever trained without labels by contrastive learning on pairs of text "
        "spans cropped from the same document (Wikipedia and CCNet).",
        pooling="mean",
        similarity="dot",
        max_length=512,
    ),
    RetrieverPreset(
        name="qwen3-embedding-0.6b",
        kind="dense",
        model="Qwen/Qwen3-Embedding-0.6B",
        trained="Qwen3-Embedding-0.6B, a dense retriever built on a language model and trained on synthetic and "
        "labelled pairs to follow an instruction that is put before the query.",
        pooling="lasttoken",
        similarity="cos",
        query_prompt="Instruct: Given a web search query, retrieve relevant passages that answer the query\nQuery:",
        max_length=8192,
    ),
    RetrieverPreset(
        name="medcpt",
        kind="dense",
        model="ncbi/MedCPT-Article-Encoder",
        query_model="ncbi/MedCPT-Query-Encoder",
        trained="MedCPT, a dense retriever for biomedicine with one encoder for queries and one for articles, trained "
        "by contrastive learning on 255 million pairs of a PubMed search and the article that was clicked.",
        pooling="cls",
        similarity="dot",
        pair=True,
        max_length=512,
        query_max_length=64,
    ),
    *(
        RetrieverPreset(
            name=f"bge-{size}-en-v1.5",
            kind="dense",
            model=f"BAAI/bge-{size}-en-v1.5",
            trained=f"BGE-{size} (English, v1.5), a dense retriever pre-trained on plain text and then trained by "
            "contrastive learning on pairs of texts, to answer queries that follow a fixed instruction.",
            pooling="cls",
            similarity="cos",
            query_prompt="Represent this sentence for searching relevant passages: ",
            max_length=512,
        )
        for size in ("small", "base", "large")
    ),
    RetrieverPreset(name="hybrid", kind="hybrid", trained="Several retrievers whose rankings are merged."),
    RetrieverPreset(
        name="qb-rag",
        kind="questions",
        trained="QB-RAG, which compares a query with questions that were written for the documents beforehand.",
    ),
)

PRESETS = {preset.name: preset for preset in _BUILT_IN}
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
    vectors = VectorsConfig() if kind in ("bm25", "questions") else env.vectors
    settings["vectors"] = vectors.model_dump(mode="json", exclude={"device"})
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
