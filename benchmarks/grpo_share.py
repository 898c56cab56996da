"""What GRPO adds to the warm start: one run, and its policy after each of the two on the validation questions.

    querylect index build hpo --overwrite
    python benchmarks/grpo_share.py [KEY=VALUE …]

Settings are those of `hpo`. Prints nDCG@10 of the last turn, greedy, and the paired permutation test between the two
and against the raw question.
"""

import sys
import tempfile
from statistics import fmean

from greedy import greedy_trees
from machine import describe
from paired import compare_paired
from querylect.configs.load import load_config
from querylect.envs.client.connect import open_environment
from querylect.eval.answering import run_raw
from querylect.eval.records import METRICS
from querylect.logs import set_up_logging
from querylect.rollouts.tree import Tree
from querylect.train.run import train


def main(*overrides: str) -> None:
    """Train into a temporary folder, evaluate both policies and print the table."""
    set_up_logging()
    with tempfile.TemporaryDirectory() as folder:
        config = load_config(
            "hpo", [f"output={folder}", "tracking.wandb=disabled", "train.validate_steps=0", *overrides]
        )
        run = train(config)
        with open_environment(config.env, config.client) as client:
            questions = client.questions("validation")
            scores = {"raw question": [record.metrics[METRICS[0]] for record in run_raw(client, questions)]}
            for name, checkpoint in (("after the warm start", "warm_start"), ("after GRPO", "final")):
                scores[name] = last_scores(greedy_trees(config, client, run / checkpoint, questions))
    print(describe())
    print(f"{config.train.warm_start.questions} demonstrations, {config.train.steps} steps; {len(questions)} questions")
    for name, values in scores.items():
        print(f"  {name:20} {fmean(value for value in values if value is not None):.4f}")
    pairs = (
        ("after GRPO", "after the warm start"),
        ("after the warm start", "raw question"),
        ("after GRPO", "raw question"),
    )
    for better, than in pairs:
        test = compare_paired(scores[better], scores[than], resamples=10_000, permutations=10_000, seed=config.seed)
        print(
            f"  {better} against {than}: {test.difference:+.4f}, p = {test.p:.4f}, "
            f"{test.wins} better, {test.losses} worse"
        )


def last_scores(trees: list[Tree]) -> list[float | None]:
    """nDCG@10 of the last turn; None where it is unscorable."""
    last = [next(iter(tree.paths()))[-1] for tree in trees]
    return [node.metrics.get(METRICS[0]) if node.reward is not None else None for node in last]


if __name__ == "__main__":
    main(*sys.argv[1:])
