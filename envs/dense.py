"""Dense retrieval: a sentence encoder, one vector per document, exact inner-product search with FAISS.

A probe is the vector Σ wᵢ·e(tᵢ), e being the recipe's embedding of the text in the query template, of length 1 where
the similarity is cos. The sum is not brought back to length 1: that would divide every score of the probe by the same
number, and `sum` and `max` fusion would then forget how far the terms of a probe agree.
Embeddings are computed in float32 on every device, so that an index does not depend on what the machine prefers.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..configs.schema import VectorsConfig
from ..errors import ModelError
from ..sources import resolve_model
from . import nearest
from .arrays import NpyWriter, mapped
from .fusion import NOTHING, Scored, best
from .hashing import folder_sha256
from .nearest import VectorStore
from .plan import Probe
from .recipes import TEXT, RetrieverRecipe

Progress = Callable[[int, int], None]
Vectors = npt.NDArray[np.float32]

VECTORS = "vectors.npy"
_CHUNK = 256
_BATCH = 32
_SPARE = 16
_CACHE_BYTES = 128 * 2**20


class Encoder:
    """A loaded encoder and its recipe, with everything filled in that the recipe left to the model."""

    def __init__(self, recipe: RetrieverRecipe, model: Any, fingerprint: str) -> None:
        self.recipe = recipe
        self.fingerprint = fingerprint
        """sha256 of the model folder, or Hub id and commit: what an index must have been built with."""
        self.dimension: int = model.get_embedding_dimension()
        self._model = model

    @classmethod
    def open(cls, recipe: RetrieverRecipe) -> "Encoder":
        """Load the model of a dense recipe; code that a model brings along is never run.

        Raises ModelError where it does not exist, cannot be loaded, or tokenises differently from its recipe.
        """
        assert recipe.model is not None, "a dense recipe names its model"
        path = resolve_model(recipe.model)
        try:
            model = _load(recipe, path)
        except Exception as error:
            raise ModelError(
                f"retriever {recipe.name!r}: {recipe.model!r} does not hold a usable text encoder "
                f"({type(error).__name__}: {error}). Give env.model a sentence-transformers folder, a transformers "
                "folder with tokenizer and weights, or a Hub id that can be reached."
            ) from error
        if recipe.max_length is not None:
            model.max_seq_length = recipe.max_length
        model.default_prompt_name = None
        recipe = _fill_in(recipe, model)
        _check_closing_token(recipe, model.tokenizer)
        return cls(recipe, model, folder_sha256(Path(path)) if Path(path).is_dir() else _hub_revision(path, model))

    def queries(self, texts: Sequence[str]) -> Vectors:
        """Embeddings (n, d) of query texts in the query template."""
        return self._encode(_wrapped(self.recipe.query_template, texts))

    def documents(self, texts: Sequence[str], progress: Progress | None = None) -> Vectors:
        """Embeddings (n, d) of document texts in the document template."""
        vectors = np.empty((len(texts), self.dimension), dtype=np.float32)
        wrapped = _wrapped(self.recipe.document_template, texts)
        longest_first = np.argsort([-len(text) for text in wrapped], kind="stable")
        for start in range(0, len(texts), _CHUNK):
            chunk = longest_first[start : start + _CHUNK]
            vectors[chunk] = self._encode([wrapped[i] for i in chunk])
            if progress:
                progress(start + len(chunk), len(texts))
        return vectors

    def _encode(self, texts: list[str]) -> Vectors:
        encoded = self._model.encode(texts, batch_size=_BATCH, show_progress_bar=False, convert_to_numpy=True)
        vectors: Vectors = np.array(encoded, dtype=np.float32).reshape(len(texts), self.dimension)
        if not np.isfinite(vectors).all():
            raise ModelError(
                f"retriever {self.recipe.name!r}: {self.recipe.model!r} gave embeddings that are not finite numbers. "
                "Check that its weights are complete."
            )
        if self.recipe.similarity == "cos":
            vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return vectors


class Dense:
    """Ranks probes by the inner product of Σ wᵢ·e(tᵢ) with every document vector."""

    def __init__(self, encoder: Encoder, vectors: nearest.Vectors, near: nearest.Nearest | None = None) -> None:
        """`vectors`: (documents, d) of float32 or float16, may be memory-mapped. `near` gives candidates, None all."""
        self._encoder = encoder
        self._vectors = vectors
        self._near = near or nearest.flat(vectors, import_faiss())
        self._known: OrderedDict[str, Vectors] = OrderedDict()
        self._room = max(1, _CACHE_BYTES // (4 * encoder.dimension))

    def rank(self, probes: Sequence[Probe], limits: Sequence[int]) -> list[Scored]:
        """The ranking of each probe, at most limits[i] documents; every distinct text is embedded once.

        A blank text adds nothing, and a probe whose vector is 0 says nothing: its ranking is empty. Scores are inner
        products summed in float64 in a fixed order, so that equal vectors get equal scores in any batch.
        """
        embedded = self._embed(term.text for probe in probes for term in probe.terms if _speaks(term.text, term.weight))
        sums = np.zeros((len(probes), self._encoder.dimension), dtype=np.float64)
        for row, probe in enumerate(probes):
            for term in probe.terms:
                if _speaks(term.text, term.weight):
                    sums[row] += term.weight * embedded[term.text].astype(np.float64)
        rankings = [NOTHING] * len(probes)
        rows: list[int] = np.flatnonzero(sums.any(axis=1)).tolist()
        if not rows:
            return rankings
        near = self._near(sums[rows].astype(np.float32), max(limits[row] for row in rows) + _SPARE)
        for row, candidates in zip(rows, near, strict=True):
            found = candidates[candidates >= 0]
            scores = np.einsum("nd,d->n", self._vectors[found].astype(np.float64), sums[row])
            rankings[row] = best(found, scores.astype(np.float32).astype(np.float64), limits[row])
        return rankings

    def _embed(self, texts: Iterable[str]) -> dict[str, Vectors]:
        wanted = dict.fromkeys(texts)
        new = [text for text in wanted if text not in self._known]
        fresh = dict(zip(new, self._encoder.queries(new), strict=True)) if new else {}
        found = {text: fresh[text] if text in fresh else self._known[text] for text in wanted}
        for text, vector in found.items():
            self._known[text] = vector
            self._known.move_to_end(text)
        while len(self._known) > self._room:
            self._known.popitem(last=False)
        return found


def write_part(
    folder: Path, texts: Sequence[str], encoder: Encoder, dtype: str, progress: Progress | None = None
) -> None:
    """Embed a block of the corpus and write its vectors. ModelError where they do not fit into `dtype`."""
    with np.errstate(over="ignore"):
        vectors = encoder.documents(texts, progress).astype(dtype)
    if not np.isfinite(vectors).all():
        raise ModelError(
            f"retriever {encoder.recipe.name!r} gives embeddings too large for {dtype}. Use env.vectors.dtype=float32."
        )
    np.save(folder / VECTORS, vectors)


def dimension_of(part: Path) -> int:
    """The length of the vectors of a part."""
    return int(mapped(part / VECTORS).shape[1])


def merge(parts: Sequence[Path], folder: Path, store: VectorStore, config: VectorsConfig) -> None:
    """Write what `load` needs: all vectors in corpus order, and the FAISS index where the search is not flat."""
    pieces = [mapped(part / VECTORS) for part in parts]
    with NpyWriter(folder / VECTORS, store.dtype, (sum(map(len, pieces)), store.dimension)) as file:
        for piece in pieces:
            file.write(piece)
    nearest.build(folder, mapped(folder / VECTORS), store, config, import_faiss())


def load(folder: Path, encoder: Encoder, store: VectorStore, config: VectorsConfig) -> Dense:
    """Open what `merge` wrote; vectors stay on disk (memory-mapped)."""
    vectors = mapped(folder / VECTORS)
    if vectors.dtype.name != store.dtype or vectors.shape[1:] != (encoder.dimension,):
        raise ValueError(f"{VECTORS} holds {vectors.dtype} of shape {vectors.shape}; expected {store}")
    return Dense(encoder, vectors, nearest.open_nearest(folder, vectors, store, config, import_faiss()))


def import_faiss() -> Any:
    """The faiss module. ModelError naming the extra that installs it where it is missing."""
    try:
        import faiss
    except ImportError as error:
        raise ModelError(
            "dense retrievers search with FAISS, which is not installed. Install it with "
            '`pip install "querylect[cpu]"`, or `pip install "querylect[gpu]"` on a machine with a CUDA GPU.'
        ) from error
    return faiss


def _load(recipe: RetrieverRecipe, path: str) -> Any:
    import torch
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
    from sentence_transformers.util import is_sentence_transformer_model

    no_code = {"trust_remote_code": False}
    weights = {**no_code, "dtype": torch.float32}
    tokenizer = {**no_code, "padding_side": recipe.padding_side} if recipe.padding_side else no_code
    if recipe.pooling is None or is_sentence_transformer_model(path):
        return SentenceTransformer(path, trust_remote_code=False, model_kwargs=weights, processor_kwargs=tokenizer)
    transformer = Transformer(path, model_kwargs=weights, processor_kwargs=tokenizer, config_kwargs=no_code)
    return SentenceTransformer(modules=[transformer, Pooling(transformer.get_embedding_dimension(), recipe.pooling)])


def _fill_in(recipe: RetrieverRecipe, model: Any) -> RetrieverRecipe:
    known = {"cosine": "cos", "dot": "dot"}
    said = str(model.similarity_fn_name or "cosine")
    if recipe.similarity is None and said not in known:
        raise ModelError(
            f"retriever {recipe.name!r}: the model compares by {said!r}; only cosine and dot can be searched."
        )
    prompts = model.prompts or {}
    prompt = prompts.get("document") or prompts.get("passage") or ""
    defaults = {
        "similarity": known.get(said),
        "query_template": f"{prompts.get('query') or ''}{TEXT}",
        "document_template": f"{prompt}{TEXT}",
        "max_length": model.max_seq_length,
    }
    return recipe.model_copy(
        update={field: value for field, value in defaults.items() if getattr(recipe, field) is None}
    )


def _check_closing_token(recipe: RetrieverRecipe, tokenizer: Any) -> None:
    if recipe.closing_token is None:
        return
    last = tokenizer.convert_ids_to_tokens(tokenizer("a")["input_ids"])[-1]
    if last != recipe.closing_token:
        raise ModelError(
            f"retriever {recipe.name!r}: its tokenizer ends a text with {last!r}; expected {recipe.closing_token!r}, "
            "whose vector is the embedding. Give env.model the folder of the embedding model, not of its base model."
        )


def _hub_revision(name: str, model: Any) -> str:
    commit = getattr(model[0].config, "_commit_hash", None)
    return f"{name}@{commit}" if commit else name


def _wrapped(template: str | None, texts: Sequence[str]) -> list[str]:
    assert template is not None, "templates are filled in when the encoder is opened"
    return [template.replace(TEXT, text) for text in texts]


def _speaks(text: str, weight: float) -> bool:
    return weight != 0 and bool(text.strip())
