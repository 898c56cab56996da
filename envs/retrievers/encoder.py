"""Embeds texts with the encoder of a recipe, or with its two encoders, one for documents and one for queries.

Embeddings are computed in float32 on every device, so that an index does not depend on the machine's default, or in the
precision that the recipe names; pooling and everything after it is float32. Code in a model folder is never run.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict, cast

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig, Precision
from ...data.types import Document
from ...errors import DataError, ModelError
from ...logs import Progress
from ...sources import resolve_model
from ...storage import folder_sha256
from ..recipes import TEXT, Content, RetrieverRecipe, recipe_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = npt.NDArray[np.float32]

_CHUNK = 256
_SPECIAL_TOKENS = 8
"""Maximum number of special tokens that a tokenizer adds to a text."""
BATCH_TOKENS = 4096
"""Tokens, padding included, that go through the encoder at once: short queries by the hundred, long documents by the
handful, so that the memory of a batch is bounded and its padding small."""


class Encoder:
    """A loaded encoder and its recipe, with every field filled in that was left to the model."""

    def __init__(
        self,
        recipe: RetrieverRecipe,
        model: "SentenceTransformer",
        fingerprint: str,
        query_model: "SentenceTransformer | None" = None,
    ) -> None:
        self.recipe = recipe
        self.fingerprint = fingerprint
        """sha256 of the model folder, or Hub id and commit: what an index must have been built with."""
        self.dimension = cast("int", model.get_embedding_dimension())  # None only of models without a pooling
        self._model = model
        self._query_model = model if query_model is None else query_model

    @classmethod
    def open(cls, recipe: RetrieverRecipe) -> "Encoder":
        """Load the models of a dense recipe, to the first GPU if there is one.

        Raises ModelError if one does not exist, cannot be loaded, pools differently from its recipe, or compares
        otherwise than by cosine or dot.
        """
        assert recipe.model is not None, "a dense recipe names its model"
        model, fingerprint = _open(recipe, recipe.model, "env.model")
        query_model = model
        if recipe.query_model is not None:
            query_model, query_fingerprint = _open(recipe, recipe.query_model, "env.recipe.query_model")
            fingerprint = f"documents {fingerprint}, queries {query_fingerprint}"
        similarity = {"cosine": "cos", "dot": "dot"}.get(str(model.similarity_fn_name or "cosine"))
        if recipe.similarity is None and similarity is None:
            raise ModelError(
                f"retriever {recipe.name!r}: the model compares by {model.similarity_fn_name!r}; only cosine and dot "
                "can be searched."
            )
        return cls(fill_in(recipe, model, query_model, similarity), model, fingerprint, query_model)

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embeddings (n, d) of query texts in the query template."""
        length = self.recipe.query_max_length or self.recipe.max_length
        return self._encode(self._query_model, [self.recipe.query_text(text) for text in texts], length, "query")

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of these query texts have more tokens in the query template than a query may have."""
        length = self.recipe.query_max_length or self.recipe.max_length
        if length is None:
            return 0
        # A token has at least one byte: a short text needs no tokenizer.
        long = [text for text in map(self.recipe.query_text, texts) if len(text.encode()) + _SPECIAL_TOKENS > length]
        if not long:
            return 0
        tokenizer = self._query_model.tokenizer
        ids = tokenizer(long, truncation=False, return_attention_mask=False, verbose=False)["input_ids"]
        return sum(len(tokens) > length for tokens in ids)

    def documents(self, texts: Sequence[Content], progress: Progress | None = None) -> Vectors:
        """Embeddings (n, d) of documents in the document template; `texts` come from the recipe's `content_of`."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        wrapped = [self.recipe.document_text(text) for text in texts]
        longest_first = np.argsort([-len("".join(text)) for text in wrapped], kind="stable")
        for start in range(0, len(texts), _CHUNK):
            chunk = longest_first[start : start + _CHUNK]
            parts = [wrapped[i] for i in chunk]
            vectors[chunk] = self._encode(self._model, parts, self.recipe.max_length, "document")
            if progress:
                progress(start + len(chunk), len(texts))
        return vectors

    def _encode(
        self,
        model: "SentenceTransformer",
        texts: Sequence[Content],
        length: int | None,
        task: Literal["query", "document"],
    ) -> Vectors:
        model.max_seq_length = length
        vectors: Vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for batch in token_batches(_token_counts(model, texts, length), BATCH_TOKENS):
            vectors[batch] = model.encode(
                [texts[i] for i in batch],
                batch_size=len(batch),
                show_progress_bar=False,
                convert_to_numpy=True,
                task=task,
            )
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"retriever {self.recipe.name!r}: {self.recipe.model!r} gave embeddings that are not finite numbers. "
                "Check that its weights are complete."
            )
        if self.recipe.similarity == "cos":
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Batches of positions, longest texts first, each of at most `budget` tokens padded, or of a single text."""
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def _token_counts(model: "SentenceTransformer", texts: Sequence[Content], length: int | None) -> list[int]:
    joined = [text if isinstance(text, str) else " ".join(text) for text in texts]
    encoding = model.tokenizer(joined, truncation=length is not None, max_length=length, return_attention_mask=False)
    return [max(1, len(ids)) for ids in encoding["input_ids"]]


def fingerprint_of(path: str, config: object) -> str:
    """Identifies a loaded model: sha256 of its folder, or Hub id and commit."""
    if Path(path).is_dir():
        return folder_sha256(Path(path))
    commit = getattr(config, "_commit_hash", None)
    return f"{path}@{commit}" if commit else path


class LoadingKwargs(TypedDict):
    """Arguments of the parts that sentence-transformers loads."""

    model_kwargs: dict[str, object]
    processor_kwargs: dict[str, object]
    config_kwargs: dict[str, object]


def loading_kwargs(dtype: Precision | None = None) -> LoadingKwargs:
    """Loading arguments for every sentence-transformers model: no remote code, weights in float32 or `dtype`."""
    import torch

    no_code: dict[str, object] = {"trust_remote_code": False}
    return {
        "model_kwargs": {**no_code, "dtype": getattr(torch, dtype or "float32")},
        "processor_kwargs": no_code,
        "config_kwargs": no_code,
    }


def _open(recipe: RetrieverRecipe, name: str, setting: str) -> tuple["SentenceTransformer", str]:
    path = resolve_model(name)
    try:
        model = _load(recipe, path)
    except Exception as error:
        raise ModelError(
            f"retriever {recipe.name!r}: {name!r} does not hold a usable text encoder "
            f"({type(error).__name__}: {error}). Give {setting} a sentence-transformers folder, a transformers "
            "folder with tokenizer and weights, or a Hub id that can be reached."
        ) from error
    model.default_prompt_name = None
    _check_pooling(recipe, name, model)
    return model, fingerprint_of(path, getattr(model[0], "config", None))


def _load(recipe: RetrieverRecipe, path: str) -> "SentenceTransformer":
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.util import is_sentence_transformer_model

    kwargs = loading_kwargs(recipe.dtype)
    if recipe.pooling is None or is_sentence_transformer_model(path):
        model = SentenceTransformer(path, trust_remote_code=False, **kwargs)
    else:
        transformer = Transformer(path, **kwargs)
        pooling = Pooling(transformer.get_embedding_dimension(), recipe.pooling)
        model = SentenceTransformer(modules=[transformer, pooling])
    if recipe.dtype is not None:
        model[0].register_forward_hook(_to_float32)
    return model


def _to_float32(_module: object, _inputs: object, features: dict[str, object]) -> dict[str, object]:
    """A forward hook that casts the transformer's outputs to float32 for the modules after it."""
    import torch

    return {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in features.items()
    }


def fill_in(
    recipe: RetrieverRecipe,
    model: "SentenceTransformer",
    query_model: "SentenceTransformer",
    similarity: str | None,
) -> RetrieverRecipe:
    """The recipe with the fields that it leaves to its models; `similarity` is that of the model."""
    prompts = model.prompts or {}
    prompt = prompts.get("document") or prompts.get("passage") or ""
    defaults = {
        "similarity": similarity,
        "query_template": f"{(query_model.prompts or {}).get('query') or ''}{TEXT}",
        "document_template": f"{prompt}{TEXT}",
        "max_length": model.max_seq_length,
    }
    if query_model is not model:
        defaults["query_max_length"] = query_model.max_seq_length
    return recipe.model_copy(
        update={field: value for field, value in defaults.items() if getattr(recipe, field) is None}
    )


def _check_pooling(recipe: RetrieverRecipe, name: str, model: "SentenceTransformer") -> None:
    actual = next((module.pooling_mode for module in model if hasattr(module, "pooling_mode")), recipe.pooling)
    if recipe.pooling is not None and actual != recipe.pooling:
        raise ModelError(
            f"retriever {recipe.name!r}: {name!r} brings its own pooling, {actual!r}; the recipe says "
            f"{recipe.pooling!r}. Remove env.recipe.pooling, or name a model that pools as the recipe says."
        )


@dataclass(frozen=True, slots=True)
class CorpusEncoder:
    """The encoder of a retriever, with the interface that near-duplicate removal needs (data/prepare.py)."""

    encoder: Encoder

    @property
    def identity(self) -> dict[str, object]:
        """Weights and recipe."""
        recipe = self.encoder.recipe.model_dump(mode="json", exclude={"trained"})
        return {"encoder": self.encoder.fingerprint, "recipe": recipe}

    def embed(self, documents: Sequence[Document]) -> Vectors:
        """(documents, dimension)."""
        return self.encoder.documents([self.encoder.recipe.content_of(document) for document in documents])


def open_corpus_encoder(config: EnvironmentConfig) -> CorpusEncoder:
    """The encoder of the configured retriever. Raises DataError if it has none, and as `Encoder.open`."""
    recipe = recipe_of(config)
    if recipe.kind != "dense":
        raise DataError(f"--encoder {config.retriever!r} is no encoder; expected a dense retriever's recipe or model.")
    return CorpusEncoder(Encoder.open(recipe))
