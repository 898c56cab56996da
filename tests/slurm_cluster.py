"""A real Slurm of two nodes on this machine, without systemd: munge, slurmctld and two slurmd in a temporary folder.

Everything listens on loopback at free ports, and nothing is left behind. The nodes believe that they have GPUs and
memory enough for the job scripts as they are; nothing enforces it. Skipped where Debian's packages slurmctld, slurmd,
slurm-client and munge are missing, or this is not root; a failure instead where QUERYLECT_SLURM_TESTS is set, as
`.ci/run` does.
"""

import os
import re
import secrets
import shutil
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from .several import free_port
from .waiting import until

NODES = ("node-a", "node-b")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
ENDED = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY"}
SETTINGS = """
ClusterName=querylect
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock,cred_expire=5
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1
GresTypes=gpu
JobRequeue=1
KillWait=90
MinJobAge=600
ReturnToService=2
SlurmdParameters=config_overrides
NodeName=node-a NodeHostname=localhost NodeAddr=127.0.0.1 Port={first} CPUs=64 RealMemory=400000 Gres=gpu:8
NodeName=node-b NodeHostname=localhost NodeAddr=127.0.0.1 Port={second} CPUs=64 RealMemory=400000 Gres=gpu:8
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass(frozen=True)
class Cluster:
    """A running Slurm and the environment of its commands."""

    folder: Path
    environment: dict[str, str]

    def run(
        self, *command: str, cwd: Path | None = None, check: bool = True, **more: str
    ) -> subprocess.CompletedProcess:
        """A command with this Slurm."""
        return subprocess.run(
            command, env=self.environment | more, cwd=cwd, check=check, capture_output=True, text=True
        )

    def submit(self, *arguments: str, cwd: Path, **more: str) -> str:
        """The id of a job that sbatch took."""
        process = self.run("sbatch", "--parsable", *arguments, cwd=cwd, check=False, **more)
        assert process.returncode == 0, process.stderr
        return process.stdout.strip()

    def state(self, job: str) -> str:
        """The state of a job."""
        description = self.run("scontrol", "show", "job", job, "-o").stdout
        return re.search(r"JobState=(\w+)", description)[1]

    def wait(self, job: str) -> str:
        """The state in which a job ended."""
        until(lambda: self.state(job) in ENDED, lambda: f"job {job} is {self.state(job)}")
        return self.state(job)


def start(folder: Path) -> Cluster:
    """Start the daemons and wait for the nodes."""
    for name in ("state", *(f"spool-{node}" for node in NODES)):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(secrets.token_bytes(64))
    key.chmod(0o600)
    ports = {name: free_port() for name in ("controller", "first", "second")}
    (folder / "slurm.conf").write_text(SETTINGS.format(folder=folder, **ports))
    for number in range(8):
        (folder / f"gpu{number}").touch()
    (folder / "gres.conf").write_text(f"Name=gpu File={folder}/gpu[0-7]\n")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH"))}
    cluster = Cluster(folder, environment | {"SLURM_CONF": str(folder / "slurm.conf")})
    try:
        _start_daemons(cluster, key)
    except BaseException:
        stop(cluster)
        raise
    return cluster


def _start_daemons(cluster: Cluster, key: Path) -> None:
    folder = cluster.folder
    at = [f"--{name}={folder}/munge.{name.split('-')[0]}" for name in ("pid-file", "log-file", "seed-file")]
    cluster.run("munged", "--force", f"--key-file={key}", f"--socket={folder}/munge.sock", "--num-threads=2", *at)
    cluster.run("slurmctld")
    for node in NODES:
        cluster.run("slurmd", "-N", node)

    def are_idle() -> bool:
        states = cluster.run("sinfo", "--noheader", "--Node", "--format=%t", check=False).stdout.split()
        return states == ["idle"] * len(NODES)

    until(are_idle, lambda: "\n".join(path.read_text()[-2000:] for path in folder.glob("slurm*.log")))


def stop(cluster: Cluster) -> None:
    """End every daemon, and whatever still runs of a job."""
    cluster.run("scancel", "--user=root", check=False)
    job_processes = [info.process for info in processes() if belongs(info, cluster)]
    daemons = []
    for path in cluster.folder.glob("*.pid"):
        with suppress(psutil.NoSuchProcess, ValueError):  # one that has died keeps nobody from ending the others
            daemons.append(psutil.Process(int(path.read_text())))
    for process in [*daemons, *job_processes]:
        try:
            process.terminate()
        except psutil.NoSuchProcess:
            continue
    _, left = psutil.wait_procs([*daemons, *job_processes], timeout=60)
    for process in left:
        with suppress(psutil.NoSuchProcess):
            process.kill()


@dataclass(frozen=True)
class ProcessInfo:
    """A process with its environment and command line at the time of the listing."""

    process: psutil.Process
    environ: dict[str, str]
    cmdline: list[str]


def processes() -> list[ProcessInfo]:
    """Every process of this machine. Not psutil's iterator: its processes are shared between threads."""
    infos = []
    for pid in psutil.pids():
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            infos.append(ProcessInfo(process, process.environ(), process.cmdline()))
    return infos


def belongs(info: ProcessInfo, cluster: Cluster) -> bool:
    """Whether a job of this Slurm started the process."""
    return info.environ.get("SLURM_CONF") == cluster.environment["SLURM_CONF"]


def processes_of(cluster: Cluster, job: str) -> list[ProcessInfo]:
    """The running processes of a job."""
    return [info for info in processes() if belongs(info, cluster) and info.environ.get("SLURM_JOB_ID") == job]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A Slurm for the tests of one module."""
    missing = [program for program in PROGRAMS if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    reason = f"no {', '.join(missing)}: apt-get install slurmctld slurmd slurm-client munge" if missing else ""
    if os.geteuid() != 0:
        reason = "this is not root, which the daemons of a test cluster run as"
    if reason:
        (pytest.fail if os.environ.get("QUERYLECT_SLURM_TESTS") else pytest.skip)(reason)
    running = start(tmp_path_factory.mktemp("slurm"))
    yield running
    stop(running)
