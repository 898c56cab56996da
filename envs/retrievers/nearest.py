"""Inner-product search over document vectors: exact (Flat), or approximate with HNSW.

A search returns candidates, which `Dense` scores again with the stored vectors. So an approximate index may miss a
document but never gives one a wrong score. On the CPU the vectors stay on disk, memory-mapped.
"""

import os
from collections.abc import Callable
from importlib.metadata import Distribution
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.environment import VectorsConfig
from ...errors import ModelError, RequestError
from ...sources import install_command, optional_packages
from .base import SPARE

if TYPE_CHECKING:
    import faiss

NEAREST = "nearest.faiss"
_GROUPS = "groups.npy"
"""Where HNSW has fewer nodes than there are documents: the node of each document, (documents,) int64."""
_ROWS = 2**16
"""Vectors converted, added or compared at once."""
_HASHED = 2**12
"""Vectors hashed at once."""
_HNSW_LINKS, _HNSW_EFFORT, _HNSW_DEPTH = 32, 200, 128
"""Neighbours of a vector in the graph (M), candidates for them (efConstruction), candidates of a search (efSearch)."""
_ROUNDING = 1e-6
"""Relative difference between scores of equal vectors, which FAISS adds up in several orders."""
_MOST_EQUAL = 4096
"""Documents with the same score that are put in order."""
_OVERSAMPLING = 4
"""Candidates of an approximate search per requested document."""
_MAX_GPU_NEIGHBOURS = 2048
"""Most neighbours of a search on a GPU (FAISS's GPU_MAX_SELECTION_K)."""

Vectors = npt.NDArray[np.floating]
Nearest = Callable[[npt.NDArray[np.float32], int], npt.NDArray[np.int64]]
"""(queries (q, d), depth) -> document positions (q, at least depth if there are as many), -1 for none."""


def import_faiss() -> ModuleType:
    """The faiss module. Raises as `optional_packages`."""
    if any(Distribution.discover(name="faiss-gpu")):
        import torch  # noqa: F401  # its libcurand.so.10 is CUDA 13's; FAISS loads CUDA 12's under the same name
    with optional_packages("cpu"):
        import faiss
    return faiss


def build(folder: Path, vectors: Vectors, config: VectorsConfig) -> None:
    """Write the HNSW graph over the vectors (n, d); nothing for Flat. Deterministic for equal vectors.

    It has one node for equal vectors: many copies would link to each other alone, and nothing else be found.
    """
    if config.search == "flat":
        return
    faiss = import_faiss()
    groups = equal_rows(vectors)
    rows = np.unique(groups, return_index=True)[1]
    if len(rows) < len(vectors):
        np.save(folder / _GROUPS, groups)
    index = faiss.IndexHNSWFlat(vectors.shape[1], _HNSW_LINKS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = _HNSW_EFFORT
    threads = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(1)  # with more, no two builds are equal
    try:
        for start in range(0, len(rows), _ROWS):
            index.add(vectors[rows[start : start + _ROWS]].astype(np.float32))
    finally:
        faiss.omp_set_num_threads(threads)
    faiss.write_index(index, os.fspath(folder / NEAREST))


def open_nearest(folder: Path, vectors: Vectors, config: VectorsConfig) -> Nearest:
    """The search over the vectors (n, d) of an index. ModelError if it needs a GPU that is not there."""
    if config.device == "gpu":
        return _on_gpu(vectors, config)
    if config.search == "flat":
        return flat(vectors)
    faiss = import_faiss()
    index = faiss.read_index(os.fspath(folder / NEAREST), faiss.IO_FLAG_MMAP_IFC)
    index.hnsw.efSearch = _HNSW_DEPTH

    def search(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        positions: npt.NDArray[np.int64] = index.search(queries, min(depth * _OVERSAMPLING, index.ntotal))[1]
        return positions

    groups = folder / _GROUPS
    return expanded(search, np.load(groups)) if groups.exists() else search


def equal_rows(vectors: Vectors) -> npt.NDArray[np.int64]:
    """For each row of (n, d) the number of its group of equal rows, (n,); groups in the order of their first rows.

    Rows of float32 are compared to 11 bits: an encoder gives the same text other last bits in another batch.
    """
    factors = np.random.default_rng(0).integers(2**63, size=vectors.shape[1], dtype=np.uint64) * 2 + 1
    hashes = np.empty(len(vectors), np.uint64)
    for start in range(0, len(vectors), _HASHED):
        piece = np.ascontiguousarray(vectors[start : start + _HASHED])
        bits = (piece.view(np.uint32) + 0x800) >> 12 if piece.dtype == np.float32 else piece.view(np.uint16)
        hashes[start : start + _HASHED] = (bits * factors).sum(axis=1)
    _, firsts, group = np.unique(hashes, return_index=True, return_inverse=True)
    numbers = np.empty(len(firsts), np.int64)
    numbers[np.argsort(firsts)] = np.arange(len(firsts))
    return numbers[group]


def expanded(search: Nearest, groups: npt.NDArray[np.int64]) -> Nearest:
    """A search over groups of documents as one over documents, those of a group in corpus order."""
    order = np.argsort(groups, kind="stable")
    ends = np.cumsum(np.bincount(groups))
    starts = np.concatenate([[0], ends[:-1]])

    def documents(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        rows: list[npt.NDArray[np.int64]] = []
        for nodes in search(queries, depth):
            members = [order[starts[node] : ends[node]][:depth] for node in nodes[nodes >= 0]]
            rows.append(np.concatenate([*members, np.empty(0, np.int64)])[: depth * _OVERSAMPLING])
        result = np.full((len(rows), max(map(len, rows), default=0)), -1)
        for row, positions in zip(result, rows, strict=True):
            row[: len(positions)] = positions
        return result

    return documents


def flat(vectors: Vectors) -> Nearest:
    """Exact search over float32 vectors in place, or over float16 vectors converted piece by piece.

    Of documents with the same score FAISS keeps any, so where those that are asked for may be among them it is asked
    for up to _MOST_EQUAL: which of them are returned is then decided by their order in the corpus (`Dense`).
    """
    faiss = import_faiss()
    step = len(vectors) if vectors.dtype == np.float32 else _ROWS

    def at_most(queries: npt.NDArray[np.float32], depth: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
        best_scores = np.empty((len(queries), 0), dtype=np.float32)
        best = np.empty((len(queries), 0), dtype=np.int64)
        for start in range(0, len(vectors), step):
            piece = vectors[start : start + step].astype(np.float32, copy=False)
            scores, positions = faiss.knn(queries, piece, min(depth, len(piece)), metric=faiss.METRIC_INNER_PRODUCT)
            scores, positions = np.hstack([best_scores, scores]), np.hstack([best, positions + start])
            order = np.argsort(-scores, axis=1, kind="stable")[:, :depth]
            best_scores, best = np.take_along_axis(scores, order, 1), np.take_along_axis(positions, order, 1)
        return best_scores, best

    def search(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        depth, deeper = min(depth, len(vectors)), min(_MOST_EQUAL, len(vectors))
        scores, positions = at_most(queries, depth)
        last = scores[:, max(1, depth - SPARE) - 1]  # of those that are asked for
        tied = np.flatnonzero(scores[:, -1] >= last - _ROUNDING * abs(last))
        if depth >= deeper or not len(tied):
            return positions
        more = np.full((len(queries), deeper), -1)
        more[:, :depth] = positions
        more[tied] = at_most(queries[tied], deeper)[1]
        return more

    return search


def _on_gpu(vectors: Vectors, config: VectorsConfig) -> Nearest:
    """Exact search on a GPU; over vectors rounded to float16 it looks for spare candidates.

    ModelError where FAISS sees no GPU, RequestError for more neighbours than a GPU finds.
    """
    faiss = import_faiss()
    if config.search != "flat" or not getattr(faiss, "get_num_gpus", lambda: 0)():
        problem = f"FAISS sees none ({install_command('gpu')})" if config.search == "flat" else "it searches flat alone"
        raise ModelError(f"env.vectors.device is 'gpu', and {problem}. Use device=cpu, or search=flat.")
    index = to_gpu(faiss.IndexFlatIP(vectors.shape[1]), config.dtype)
    index.add(np.asarray(vectors, dtype=np.float32))  # in one call: a second one would copy them

    def search(queries: npt.NDArray[np.float32], depth: int) -> npt.NDArray[np.int64]:
        depth = min(depth, index.ntotal)
        if depth > _MAX_GPU_NEIGHBOURS:
            raise RequestError(
                f"a plan asks for so many documents that FAISS has to find {depth}; on a GPU it finds at most "
                f"{_MAX_GPU_NEIGHBOURS}. Ask for fewer, or set env.vectors.device=cpu."
            )
        candidates = depth if config.dtype == "float32" else depth * _OVERSAMPLING
        positions: npt.NDArray[np.int64] = index.search(queries, min(candidates, _MAX_GPU_NEIGHBOURS, index.ntotal))[1]
        return positions

    return search


def to_gpu(index: "faiss.Index", dtype: str) -> "faiss.Index":
    """A copy of the index on the first GPU that the process sees; in float16 it rounds vectors and queries to it. The
    only function here that needs one."""
    import faiss

    options = faiss.GpuClonerOptions()
    options.useFloat16 = dtype == "float16"
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index, options)
