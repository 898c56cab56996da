"""What is known of a training before it is submitted: whether its processes could train, and whether they fit the GPUs.

Imports no PyTorch: it is read at the start of every job and by dry runs.
"""

import logging
import os

from ..configs.schema import RunConfig
from ..train.arguments import check_combinations
from ..train.memory.estimate import GIB, HEADROOM, MemoryEstimate, ProcessLayout, planner_of
from ..train.memory.host import host_memory
from ..train.memory.model_shape import shape_of

log = logging.getLogger(__name__)


def check_job(config: RunConfig, layout: ProcessLayout) -> None:
    """Raise ConfigError where the processes of a job would refuse to train `config`; warn where they do not fit the
    GPUs, or the host memory of the job, and where SHARDING is set for one process."""
    check_combinations(config, layout.processes, sharded=layout.zero > 0)
    sharding = os.environ.get("SHARDING", "ddp")
    if sharding != "ddp" and layout.processes == 1 and not layout.sharding:
        log.warning(
            "SHARDING=%s splits nothing, because one process trains. Adapters are trained on all GPUs by "
            "slurm/grpo_nodes.sh; all weights by every script, if the job has more than one GPU",
            sharding,
        )
    shape = shape_of(config.policy.model)
    if shape is not None:
        planner = planner_of(config, shape)
        warn_if_too_large(planner.estimate(layout))
        granted = int(os.environ.get("SLURM_MEM_PER_NODE") or 0) * 2**20  # not set, or 0, where a job has all of it
        needed = max(host_memory(planner, layout).values())
        if 0 < granted < needed:
            log.warning(
                "the training is estimated to need %.1f GiB of host memory on a node, and the job has %.1f GiB of it: "
                "raise --mem, or request all memory of the node with --mem=0",
                needed / GIB,
                granted / GIB,
            )


def warn_if_too_large(expected: MemoryEstimate) -> None:
    """Log a warning if a training is estimated to need more than its GPUs have."""
    if not expected.fits():
        log.warning(
            "the training does not fit its GPUs: it is estimated to need %s; they are taken to be H100s, with %s. "
            "`querylect doctor CONFIG --gpus %d` names the nearest settings that fit",
            expected.lines()[0],
            capacity_of(expected.layout),
            expected.layout.processes,
        )


def capacity_of(layout: ProcessLayout) -> str:
    """The memory of each GPU, for people."""
    return f"{layout.gpu_gib or 0:.0f} GiB each, of which {HEADROOM:.0%} may be taken"
