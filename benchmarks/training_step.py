"""Seconds of a training step by activity, from a real run of a few steps against the served environment.

    querylect index build demo --overwrite
    python benchmarks/training_step.py [CONFIG] [STEPS]

The first step is left out: it pays for warming up. Retrieval should take under 5 % of a step.
"""

import json
import sys
import tempfile
from statistics import fmean

from machine import describe
from querylect.configs.load import load_config
from querylect.logs import set_up_logging
from querylect.train.run import train


def main(config: str = "demo", steps: str = "4") -> None:
    """Train into a temporary folder and print where the time went."""
    set_up_logging()
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"output={folder}", f"train.steps={int(steps) + 1}", "tracking.wandb=disabled"]
        overrides.append("train.warm_start.questions=0")
        run = train(load_config(config, overrides))
        lines = (run / "metrics.jsonl").read_text().splitlines()[1:]
    records = [json.loads(line) for line in lines]
    total = fmean(record["seconds/step"] for record in records)
    print(describe())
    print(f"{config}: mean of {len(records)} steps, {total:.2f} s a step")
    for activity in ("generate", "retrieve", "score", "update"):
        seconds = fmean(record[f"seconds/{activity}"] for record in records)
        print(f"  {activity:9} {seconds:7.3f} s  {100 * seconds / total:5.1f} %")
    packed, flat = (fmean(record[f"tokens/{kind}"] for record in records) for kind in ("packed", "flat"))
    print(f"  update tokens: {packed:.0f} packed, {flat:.0f} as separate rows ({flat / packed:.1f} times as many)")


if __name__ == "__main__":
    main(*sys.argv[1:])
