"""A FAISS index on the first GPU that the process sees.

All vectors are added in one call: a second one would allocate them a second time while it copies them.
"""

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ...configs.environment import VectorsConfig
from ...errors import ModelError
from ...sources import install_command

if TYPE_CHECKING:
    import faiss

MAX_NEIGHBOURS = 2048
"""Most neighbours of a search on a GPU (FAISS's GPU_MAX_SELECTION_K)."""


def to_gpu(index: "faiss.Index", dtype: str) -> "faiss.Index":
    """A copy of the index on the GPU. The only function here that needs one.

    float16: a flat index keeps its vectors in it and rounds queries to it, IVF-PQ its lookup tables.
    """
    import faiss

    options = faiss.GpuClonerOptions()
    options.useFloat16 = dtype == "float16"
    return faiss.index_cpu_to_gpu(faiss.StandardGpuResources(), 0, index, options)


def check_gpu(config: VectorsConfig) -> None:
    """Raises ModelError if there is no GPU, or none for this search."""
    import faiss

    if getattr(faiss, "get_num_gpus", lambda: 0)() and config.search != "hnsw":
        return
    problem = "HNSW is searched on the CPU only"
    if config.search != "hnsw":
        problem = f"this FAISS sees no GPU ({install_command('gpu')})"
    raise ModelError(f"env.vectors.device is 'gpu', but {problem}. Use device=cpu, or search=flat or ivfpq.")


def flat_on_gpu(vectors: npt.NDArray[np.floating], dtype: str) -> "faiss.Index":
    """An exact index over vectors (n, d) on the GPU."""
    import faiss

    index = to_gpu(faiss.IndexFlatIP(vectors.shape[1]), dtype)
    index.add(np.asarray(vectors, dtype=np.float32))
    return index
