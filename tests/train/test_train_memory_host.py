"""The host memory of a node by hand, and whether the job scripts ask for it."""

import pytest
from querylect.configs.load import load_config
from querylect.slurm.preflight import check_job
from querylect.slurm.requests import FOLDER, ONE_GPU, header
from querylect.train.memory.estimate import GIB, ProcessLayout, planner_of
from querylect.train.memory.host import PROCESS, host_memory
from querylect.train.memory.model_shape import KNOWN, shape_of

from ..raising import logged

POLICY = 8_191_000_000


@pytest.mark.parametrize(
    ("changes", "layout", "expected"),
    [
        (["train.beta=0"], ProcessLayout(8), {"loading": 32, "training": 0, "saving": 4}),
        (["train.beta=0.01"], ProcessLayout(8), {"loading": 32, "training": 32, "saving": 36}),
        (["train.beta=0"], ProcessLayout(8, 2), {"loading": 16, "training": 0, "saving": 16}),
        (["train.beta=0.01"], ProcessLayout(8, 2), {"loading": 32, "training": 16, "saving": 32}),
        (["train.beta=0"], ProcessLayout(8, 3), {"loading": 16, "training": 0, "saving": 2}),
        (["train.beta=0.01"], ProcessLayout(16, fsdp=True), {"loading": 32, "training": 0, "saving": 8}),
        (["train.beta=0.01"], ProcessLayout(1), {"loading": 4, "training": 4, "saving": 8}),
    ],
)
def test_host_memory_by_hand(changes, layout, expected):
    """Bytes of each parameter of the policy, on a node of eight processes."""
    run = load_config("paper_contriever", changes)
    host = host_memory(planner_of(run, shape_of(run.policy.model)), layout)
    processes = min(8, layout.processes)
    assert {name: (size - processes * PROCESS) / POLICY for name, size in host.items()} == expected


def test_adapters_that_fit_one_gpu_fit_the_host_memory_that_is_requested_for_it():
    """128 GB for one GPU; the scripts of whole nodes request all that a node has."""
    one_gpu = int(ONE_GPU["mem"].removesuffix("G")) * GIB
    for name in KNOWN:
        run = load_config("paper_contriever", [f"policy.model={name}", "policy.lora={}"])
        planner = planner_of(run, shape_of(name))
        assert max(host_memory(planner, ProcessLayout()).values()) < one_gpu, name
    assert {header(path.stem)["mem"] for path in FOLDER.glob("grpo_*.sh")} == {"0"}


@pytest.mark.parametrize(("megabytes", "warned"), [("250000", True), ("290000", False), ("0", False), (None, False)])
def test_a_job_warns_where_its_host_memory_is_too_small(megabytes, warned, monkeypatch, caplog):
    monkeypatch.delenv("SLURM_MEM_PER_NODE", raising=False)
    if megabytes is not None:
        monkeypatch.setenv("SLURM_MEM_PER_NODE", megabytes)
    check_job(load_config("paper_contriever", []), ProcessLayout(8, 2))
    records = logged(caplog, "slurm.preflight")
    assert len(records) == warned
    if warned:
        assert f"{records[0][0]:.1f}" == "276.1", "GiB, as the plan of docs/scale.md says"


def test_a_process_on_the_cpu_has_no_memory_beside_its_estimate():
    run = load_config("demo", [])
    assert host_memory(planner_of(run, shape_of(run.policy.model)), ProcessLayout(gpu_gib=None)) == {}
