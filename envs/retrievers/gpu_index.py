"""A FAISS index on chosen GPUs: one index per GPU, over a part of the vectors.

The vectors of a GPU are added in one call. A second call would allocate the vectors a second time while it copies them,
and FAISS's own shards take no second call at all.
"""

import logging
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.environment import VectorsConfig
from ...errors import ModelError
from ...sources import install_command

if TYPE_CHECKING:
    import faiss

log = logging.getLogger(__name__)

MAX_NEIGHBOURS = 2048
"""Most neighbours of a search on a GPU (FAISS's GPU_MAX_SELECTION_K)."""


def to_gpu(index: "faiss.Index", gpu: int, dtype: str) -> "faiss.Index":
    """A copy of the index on a GPU. The only function here that needs one.

    float16: a flat index keeps its vectors in it and rounds queries to it, IVF-PQ its lookup tables.
    """
    import faiss

    options = faiss.GpuClonerOptions()
    options.useFloat16 = dtype == "float16"
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), gpu, index, options)


def check_gpus(config: VectorsConfig) -> None:
    """Raises ModelError if the GPUs of the settings are not there, or not for this search."""
    import faiss

    count = getattr(faiss, "get_num_gpus", lambda: 0)()
    missing = [gpu for gpu in config.gpus if gpu >= count]
    if missing or config.search == "hnsw":
        if not count:
            problem = f"this FAISS sees no GPU ({install_command('gpu')})"
        elif missing:
            problem = f"env.vectors.gpus names GPU {missing[0]}; FAISS sees {count}, numbered from 0"
        else:
            problem = "HNSW is searched on the CPU only"
        raise ModelError(
            f"env.vectors.device is 'gpu', but {problem}. "
            "Use device=cpu, or search=flat or ivfpq on GPUs that this process sees."
        )


def on_gpus(
    vectors: npt.NDArray[np.floating], config: VectorsConfig, ivfpq: "faiss.IndexIVFPQ | None" = None
) -> "faiss.Index":
    """The index over vectors (n, d), n > 0, or over the codes of an IVF-PQ index, on `config.gpus`."""
    import faiss

    documents, dimension = vectors.shape
    gpus = config.gpus[:documents]
    # an IVF-PQ index knows the position of each vector, a flat one counts from 0
    shards = faiss.IndexShards(dimension, True, ivfpq is None)  # type: ignore[call-arg]  # not in its stubs
    bounds = [documents * number // len(gpus) for number in range(len(gpus) + 1)]
    for gpu, (first, last) in zip(gpus, pairwise(bounds), strict=True):
        log.info("FAISS on GPU %d: vectors %d to %d of %d, %s", gpu, first, last - 1, documents, config.dtype)
        if ivfpq is None:
            part = to_gpu(faiss.IndexFlatIP(dimension), gpu, config.dtype)
            part.add(np.asarray(vectors[first:last], dtype=np.float32))
        else:
            part = to_gpu(_codes(ivfpq, first, last), gpu, config.dtype)
        shards.add_shard(part)
    return shards


def _codes(index: "faiss.IndexIVFPQ", first: int, last: int) -> "faiss.IndexIVFPQ":
    """The IVF-PQ index over the vectors at first ≤ position < last."""
    import faiss

    if last - first == index.ntotal:
        return index
    pq = index.pq
    part = faiss.IndexIVFPQ(index.quantizer, index.d, index.nlist, pq.M, pq.nbits, index.metric_type)
    part.pq, part.by_residual, part.is_trained, part.nprobe = pq, index.by_residual, True, index.nprobe
    by_position = faiss.InvertedLists.SUBSET_TYPE_ID_RANGE  # type: ignore[attr-defined]  # not in its stubs
    index.copy_subset_to(part, by_position, first, last)
    return part
