"""Inner-product search over document vectors: exact (Flat), or approximate with HNSW or IVF-PQ.

A search returns candidates, which `Dense` scores again with the stored vectors. So an approximate index may miss a
document but never gives one a wrong score. The vectors always stay on disk, memory-mapped.
"""

import os
from collections.abc import Callable
from functools import partial
from importlib.metadata import Distribution
from math import isqrt
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.environment import VectorsConfig
from ...errors import ConfigError, ModelError, RequestError, first_line
from ...sources import install_command
from ..index.manifest import VectorStore
from .gpu_index import MAX_NEIGHBOURS, check_gpus, on_gpus

if TYPE_CHECKING:
    import faiss


NEAREST = "nearest.faiss"
_ROWS = 2**16
"""Vectors converted, added or compared at once."""
_TRAINING_PER_LIST = 64
"""Training vectors of an IVF-PQ index per list."""
_OVERSAMPLING = 4
"""Candidates of an approximate search per requested document."""

Vectors = npt.NDArray[np.floating]
Nearest = Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.int64]]
"""(queries (q, d), depth) -> document positions (q, at least depth if there are as many), -1 for none."""


def vector_store(config: VectorsConfig, dimension: int, documents: int) -> VectorStore:
    """The settings with all defaults filled in.

    Raises ConfigError if they do not fit the vectors (IVF-PQ: at least 256 documents, `pq_bytes` divides d).
    """
    store = partial(VectorStore, dimension=dimension, dtype=config.dtype, search=config.search)
    if config.search == "flat":
        return store()
    if config.search == "hnsw":
        return store(hnsw_links=config.hnsw_links, hnsw_effort=config.hnsw_effort)
    lists = config.ivf_lists or max(1, min(4 * isqrt(documents), documents // 39))
    size = config.pq_bytes or next(n for n in range(max(1, dimension // 4), 0, -1) if dimension % n == 0)
    if documents < max(256, lists):
        raise ConfigError(
            f"env.vectors.search is 'ivfpq', which learns from at least {max(256, lists)} documents; this corpus has "
            f"{documents}. Use 'flat', which is exact, or fewer env.vectors.ivf_lists."
        )
    if dimension % size:
        raise ConfigError(
            f"env.vectors.pq_bytes is {size}, which does not divide the {dimension} dimensions of the vectors. "
            f"Name a divisor such as {next(n for n in range(size, 0, -1) if dimension % n == 0)}."
        )
    return store(ivf_lists=lists, pq_bytes=size)


def import_faiss() -> ModuleType:
    """The faiss module. If it is missing, ModelError names the extra that installs it."""
    if any(Distribution.discover(name="faiss-gpu")):
        import torch  # noqa: F401  # its libcurand.so.10 is CUDA 13's; FAISS loads CUDA 12's under the same name
    try:
        import faiss
    except ImportError as error:
        raise ModelError(
            f"dense retrievers search with FAISS, which is not installed. Install it: {install_command('cpu')}; on a "
            f"machine with a CUDA GPU {install_command('gpu')}."
        ) from error
    return faiss


def build(folder: Path, vectors: Vectors, store: VectorStore, config: VectorsConfig) -> None:
    """Write the search structure over the vectors (n, d); nothing for Flat. Deterministic for equal vectors."""
    if store.search == "flat":
        return
    faiss = import_faiss()
    if store.search == "hnsw":
        index = faiss.IndexHNSWFlat(store.dimension, store.hnsw_links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = store.hnsw_effort
    else:
        # np: skip polysemous training, which takes most of the build time and serves an unused filter
        index = faiss.index_factory(
            store.dimension, f"IVF{store.ivf_lists},PQ{store.pq_bytes}x8np", faiss.METRIC_INNER_PRODUCT
        )
        assert store.ivf_lists is not None
        sample_size = min(len(vectors), _TRAINING_PER_LIST * store.ivf_lists)
        rows = np.linspace(0, len(vectors) - 1, sample_size).astype(np.int64)
        index.train(vectors[rows].astype(np.float32))
    threads = faiss.omp_get_max_threads()
    try:
        if store.search == "hnsw":
            faiss.omp_set_num_threads(config.build_threads)
        for start in range(0, len(vectors), _ROWS):
            index.add(vectors[start : start + _ROWS].astype(np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    try:
        faiss.write_index(index, os.fspath(folder / NEAREST))
    except RuntimeError as error:
        raise OSError(f"{NEAREST} could not be written: {first_line(error)}") from error


def open_nearest(folder: Path, vectors: Vectors, store: VectorStore, config: VectorsConfig) -> Nearest:
    """The search over the vectors (n, d) of an index. ValueError if FAISS cannot read its file."""
    faiss = import_faiss()
    on_gpu = config.device == "gpu"
    if on_gpu:
        check_gpus(config)
    dtype = config.gpu_dtype or store.dtype
    if store.search == "flat":
        return _gpu_search(on_gpus(vectors, config, dtype), vectors, dtype != "float32") if on_gpu else flat(vectors)
    try:
        index = faiss.read_index(os.fspath(folder / NEAREST), faiss.IO_FLAG_MMAP_IFC)
    except RuntimeError as error:
        raise ValueError(f"{NEAREST}: {first_line(error)}") from error
    if (index.ntotal, index.d) != vectors.shape:
        raise ValueError(f"{NEAREST} holds {index.ntotal} vectors of {index.d}, vectors.npy {vectors.shape}")
    if store.search == "hnsw":
        index.hnsw.efSearch = config.hnsw_depth
    else:
        index.nprobe = config.ivf_probes
        if on_gpu:
            return _gpu_search(on_gpus(vectors, config, dtype, index), vectors, True)
    return lambda queries, depth: index.search(queries, min(depth * _OVERSAMPLING, len(vectors)))[1]


def _gpu_search(index: "faiss.Index", vectors: Vectors, approximate: bool) -> Nearest:
    """RequestError for more neighbours than a GPU finds; an approximate search looks for spare ones up to that."""

    def search(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        depth = min(depth, len(vectors))
        if depth > MAX_NEIGHBOURS:
            raise RequestError(
                f"a plan asks for so many documents that FAISS has to find {depth}; on a GPU it finds at most "
                f"{MAX_NEIGHBOURS}. Ask for fewer, or set env.vectors.device=cpu."
            )
        candidates = depth * _OVERSAMPLING if approximate else depth
        neighbours: npt.NDArray[np.int64] = index.search(queries, min(candidates, MAX_NEIGHBOURS, len(vectors)))[1]
        return neighbours

    return search


def flat(vectors: Vectors) -> Nearest:
    """Exact search over float32 vectors in place, or over float16 vectors converted piece by piece."""
    faiss = import_faiss()

    def search(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        depth = min(depth, len(vectors))
        if vectors.dtype == np.float32:
            neighbours: npt.NDArray[np.int64] = faiss.knn(queries, vectors, depth, metric=faiss.METRIC_INNER_PRODUCT)[1]
            return neighbours
        best_scores = np.empty((len(queries), 0), dtype=np.float32)
        best = np.empty((len(queries), 0), dtype=np.int64)
        for start in range(0, len(vectors), _ROWS):
            piece = vectors[start : start + _ROWS].astype(np.float32)
            scores, positions = faiss.knn(queries, piece, min(depth, len(piece)), metric=faiss.METRIC_INNER_PRODUCT)
            scores, positions = np.hstack([best_scores, scores]), np.hstack([best, positions + start])
            order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            best_scores, best = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
        return best

    return search
