"""Embeds texts with the encoder of a preset, or with its two encoders, one for documents and one for queries.

Embeddings are computed in float32 on every device, so that an index does not depend on the machine's default, or in the
precision that the preset names; pooling and everything after it is float32. Code in a model folder is never run.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
import numpy.typing as npt

from ...configs.environment import EnvironmentConfig, Precision
from ...data.types import Document
from ...errors import DataError, ModelError
from ...logs import Progress
from ...sources import resolve_model
from ...storage import folder_sha256
from ..presets import RetrieverPreset, preset_of

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Vectors = npt.NDArray[np.float32]
Text = str | tuple[str, str]
"""A text, or title and text as a pair."""

_CHUNK = 256
_SPECIAL_TOKENS = 8
"""Maximum number of special tokens that a tokenizer adds to a text."""
BATCH_TOKENS = 4096
"""Tokens, padding included, that go through the encoder at once: short queries by the hundred, long documents by the
handful, so that the memory of a batch is bounded and its padding small."""


class Encoder:
    """The encoders of a dense preset, on the first GPU if there is one."""

    def __init__(self, preset: RetrieverPreset) -> None:
        """Load the models. Raises ModelError if one does not exist, cannot be loaded, pools differently from its
        preset, or compares otherwise than by cosine or dot."""
        assert preset.model is not None, "a dense preset names its model"
        self._model, self.fingerprint = _open(preset, preset.model, "env.model")
        """`fingerprint`: sha256 of the model folder, or Hub id and commit: what an index must be built with."""
        self._query_model = self._model
        if preset.query_model is not None:
            self._query_model, query_fingerprint = _open(preset, preset.query_model, "env.recipe.query_model")
            self.fingerprint = f"documents {self.fingerprint}, queries {query_fingerprint}"
        self.dimension = cast("int", self._model.get_embedding_dimension())  # None only of models without a pooling
        self.preset = preset.model_copy(
            update={k: v for k, v in self._defaults().items() if getattr(preset, k) is None}
        )
        """With every field filled in that was left to the model."""
        if self.preset.similarity is None:
            raise ModelError(
                f"retriever {preset.name!r}: the model compares by {self._model.similarity_fn_name!r}; only cosine and "
                "dot can be searched."
            )

    def _defaults(self) -> dict[str, object]:
        prompts, query_prompts = self._model.prompts or {}, self._query_model.prompts or {}
        defaults: dict[str, object] = {
            "similarity": {"cosine": "cos", "dot": "dot"}.get(str(self._model.similarity_fn_name or "cosine")),
            "query_prompt": query_prompts.get("query") or "",
            "document_prompt": prompts.get("document") or prompts.get("passage") or "",
            "max_length": self._model.max_seq_length,
        }
        if self._query_model is not self._model:
            defaults["query_max_length"] = self._query_model.max_seq_length
        return defaults

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embeddings (n, d) of query texts after the query prompt."""
        length = self.preset.query_max_length or self.preset.max_length
        return self._encode(self._query_model, texts, self.preset.query_prompt, length, "query")

    def truncated(self, texts: Sequence[str]) -> int:
        """How many of these query texts have more tokens, those of the query prompt included, than a query may have."""
        length = self.preset.query_max_length or self.preset.max_length
        if length is None:
            return 0
        prompted = [f"{self.preset.query_prompt}{text}" for text in texts]
        # A token has at least one byte: a short text needs no tokenizer.
        long = [text for text in prompted if len(text.encode()) + _SPECIAL_TOKENS > length]
        if not long:
            return 0
        tokenizer = self._query_model.tokenizer
        ids = tokenizer(long, truncation=False, return_attention_mask=False, verbose=False)["input_ids"]
        return sum(len(tokens) > length for tokens in ids)

    def documents(self, documents: Sequence[Document], progress: Progress | None = None) -> Vectors:
        """Embeddings (n, d) of documents after the document prompt, or of pairs of title and text."""
        vectors = np.empty((len(documents), self.dimension), dtype=np.float32)
        pair, prompt = self.preset.pair, self.preset.document_prompt
        texts: list[Text] = [(item.title, item.text) if pair else item.contents for item in documents]
        longest_first = np.argsort([-len("".join(text)) for text in texts], kind="stable")
        for start in range(0, len(texts), _CHUNK):
            chunk = longest_first[start : start + _CHUNK]
            parts = [texts[i] for i in chunk]
            vectors[chunk] = self._encode(self._model, parts, prompt, self.preset.max_length, "document")
            if progress:
                progress(start + len(chunk), len(texts))
        return vectors

    def _encode(
        self,
        model: "SentenceTransformer",
        texts: Sequence[Text],
        prompt: str | None,
        length: int | None,
        task: Literal["query", "document"],
    ) -> Vectors:
        model.max_seq_length = length
        vectors: Vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        for batch in token_batches(_token_counts(model, texts, prompt or "", length), BATCH_TOKENS):
            vectors[batch] = model.encode(
                [texts[i] for i in batch],
                prompt=prompt or None,
                batch_size=len(batch),
                show_progress_bar=False,
                convert_to_numpy=True,
                task=task,
            )
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"retriever {self.preset.name!r}: {self.preset.model!r} gave embeddings that are not finite numbers. "
                "Check that its weights are complete."
            )
        if self.preset.similarity == "cos":
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


def open_encoder(config: EnvironmentConfig) -> Encoder:
    """The encoder of the configured retriever. Raises DataError if it has none, and as `Encoder`."""
    preset = preset_of(config)
    if preset.kind != "dense":
        raise DataError(f"--encoder {config.retriever!r} is no encoder; expected a dense retriever's preset or model.")
    return Encoder(preset)


def token_batches(lengths: Sequence[int], budget: int) -> list[list[int]]:
    """Batches of positions, longest texts first, each of at most `budget` tokens padded, or of a single text."""
    batches: list[list[int]] = []
    for position in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= budget:
            batches[-1].append(position)
        else:
            batches.append([position])
    return batches


def _token_counts(model: "SentenceTransformer", texts: Sequence[Text], prompt: str, length: int | None) -> list[int]:
    joined = [prompt + (text if isinstance(text, str) else " ".join(text)) for text in texts]
    encoding = model.tokenizer(joined, truncation=length is not None, max_length=length, return_attention_mask=False)
    return [max(1, len(ids)) for ids in encoding["input_ids"]]


def fingerprint_of(path: str, config: object) -> str:
    """Identifies a loaded model: sha256 of its folder, or Hub id and commit."""
    if Path(path).is_dir():
        return folder_sha256(Path(path))
    commit = getattr(config, "_commit_hash", None)
    return f"{path}@{commit}" if commit else path


def loading_kwargs(dtype: Precision = "float32") -> dict[str, Any]:
    """Loading arguments for every sentence-transformers model: no remote code, weights in `dtype`."""
    import torch

    return {"trust_remote_code": False, "model_kwargs": {"dtype": getattr(torch, dtype)}}


def _open(preset: RetrieverPreset, name: str, setting: str) -> tuple["SentenceTransformer", str]:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from sentence_transformers.util import is_sentence_transformer_model

    path = resolve_model(name)
    try:
        model = SentenceTransformer(path, **loading_kwargs(preset.dtype))
    except Exception as error:
        raise ModelError(
            f"retriever {preset.name!r}: {name!r} does not hold a usable text encoder "
            f"({type(error).__name__}: {error}). Give {setting} a sentence-transformers folder, a transformers "
            "folder with tokenizer and weights, or a Hub id that can be reached."
        ) from error
    if preset.pooling is not None:
        if not is_sentence_transformer_model(path):
            transformer: Any = model[0]
            model[1] = Pooling(transformer.get_embedding_dimension(), preset.pooling)
        actual = next((module.pooling_mode for module in model if hasattr(module, "pooling_mode")), preset.pooling)
        if actual != preset.pooling:
            raise ModelError(
                f"retriever {preset.name!r}: {name!r} brings its own pooling, {actual!r}; the preset says "
                f"{preset.pooling!r}. Remove env.recipe.pooling, or name a model that pools like that."
            )
    if preset.dtype != "float32":
        model[0].register_forward_hook(_to_float32)
    model.default_prompt_name = None
    return model, fingerprint_of(path, getattr(model[0], "config", None))


def _to_float32(_module: object, _inputs: object, features: dict[str, object]) -> dict[str, object]:
    """A forward hook that casts the transformer's outputs to float32 for the modules after it."""
    import torch

    return {
        name: value.float() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in features.items()
    }
