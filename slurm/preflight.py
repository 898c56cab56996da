"""What is known of a training before it is submitted: whether its processes could train, and whether they fit the GPUs.

Imports no PyTorch: it is read at the start of every job and by dry runs.
"""

import logging

from ..configs.schema import RunConfig
from ..train.arguments import check_combinations
from ..train.memory.estimate import HEADROOM, MemoryEstimate, ProcessLayout, planner_of
from ..train.memory.model_shape import shape_of

log = logging.getLogger(__name__)


def check_job(config: RunConfig, layout: ProcessLayout) -> None:
    """Raise ConfigError where the processes of a job would refuse to train `config`; warn where they do not fit."""
    check_combinations(config, layout.processes, sharded=layout.zero > 0)
    shape = shape_of(config.policy.model)
    if shape is not None:
        warn_if_too_large(planner_of(config, shape).estimate(layout))


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
