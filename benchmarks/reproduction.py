"""The paper's comparisons on the reverse dictionary of `demo`, three seeds each: trains, tests and judges.

    python benchmarks/reproduction.py run [--only a b c] [--seeds 0 1 2] [--steps 60] [KEY=VALUE …]
    python benchmarks/reproduction.py table [--only a b c] [--page docs/reproduction.md]

(a) turn, trajectory: 4×4 trees with credit per turn against 16×1 with credit per trajectory, at equal numbers of
    sampled tokens: 16×1 is trained for --steps, 4×4 until it has sampled as many tokens as 16×1 of the same seed;
(b) bm25, minilm: trained with BM25 and with all-MiniLM-L6-v2, each policy tested on both retrievers;
(c) general, explore, direct: three levels of guidance, as few-shot prompts (benchmarks/prompts).

`run` does what is missing, seed after seed: a run that was stopped is resumed from its last checkpoint, a finished
evaluation is not repeated. It takes many hours; stop it (Ctrl-C, or `timeout 300m`) and give it again as often as it
takes. More steps may be asked for later. Parts may run side by side, one process each (--only).
`table` measures nothing; with --page it writes the tables of these parts into the page and their drawings beside it.
Everything lies in --folder. `--tiny` does two steps on a few questions: it shows that every part works and says nothing
about the paper.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from math import floor
from pathlib import Path

from greedy import greedy_trees
from machine import describe
from querylect.configs.schema import RunConfig
from querylect.data import sampling
from querylect.data.leakage import same_questions
from querylect.envs.build import build_index
from querylect.envs.client.base import EnvironmentApi
from querylect.envs.client.connect import open_environment
from querylect.errors import QuerylectError
from querylect.eval.answering import run_raw
from querylect.eval.environments import SAMPLE_SEED
from querylect.eval.records import TRAINED, UNTRAINED, records_of_trees, write_records
from querylect.logs import set_up_logging
from querylect.train.run import train
from reproduction_arms import ARMS, Arm, Options, write_tiny_data
from reproduction_results import Results, is_complete, last_step, sampled_tokens
from reproduction_tables import BEGIN, END, draw, render, write_page

log = logging.getLogger("querylect.reproduction")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run what is missing, or print what is there."""
    args = _parse(arguments)
    options = Options(
        folder=args.folder or Path("runs/reproduction-tiny" if args.tiny else "runs/reproduction"),
        seeds=tuple(args.seeds),
        parts=tuple(args.only),
        steps=args.steps,
        tiny=args.tiny,
        changes=args.changes,
    )
    set_up_logging()
    if args.what == "run":
        log.info("%s; parts %s, seeds %s", describe(), " ".join(options.parts), options.seeds)
        run(options)
        return
    results = Results(options)
    for part in options.parts:
        curves = args.page and args.page.with_name(f"{args.page.stem}-{part}.svg")
        text = render(results, part, curves and curves.name)
        print(text, end="\n\n")
        if curves:
            draw(results, part, curves)
            write_page(args.page, text, BEGIN.format(part), END.format(part))


def run(options: Options) -> None:
    """Train and test what is missing."""
    if options.tiny and not (options.folder / "data").exists():
        write_tiny_data(options.folder / "data")
    with Environments() as environments:
        for seed in options.seeds:
            for arm in options.arms:
                train_arm(options, arm, seed)
                step = last_step(options.run_folder(arm, seed))
                for retriever in arm.tested_on:
                    for number in (step, 0):
                        answer(options, arm, seed, number, retriever, environments)


def train_arm(options: Options, arm: Arm, seed: int) -> None:
    """Train a run to its number of steps, or of sampled tokens, unless it is there."""
    config, folder = options.config(arm, seed), options.run_folder(arm, seed)
    while True:
        steps = config.train.steps
        if arm.tokens_of is not None:
            budget = sum(sampled_tokens(options.run_folder(ARMS[arm.tokens_of], seed)))
            steps = next_steps(sampled_tokens(folder), budget, options.save_steps) or last_step(folder)
        if is_complete(folder, steps):
            return
        _build(config)
        longer = config.model_copy(update={"train": config.train.model_copy(update={"steps": steps})})
        log.info("%s: training to step %d", folder.name, steps)
        train(longer, resume=(folder / "config.yaml").exists())


def next_steps(sampled: Sequence[int], budget: int, first: int) -> int | None:
    """Steps to train to next, so that a run samples `budget` tokens and less than a step more; None where it has.

    `sampled` are the tokens of the steps so far. The number is rounded down: the budget is approached from below.
    """
    missing = budget - sum(sampled)
    if missing <= 0:
        return None
    if not sampled:
        return first
    newest = sampled[-10:]
    return len(sampled) + max(1, floor(0.95 * missing * len(newest) / sum(newest)))


def answer(options: Options, arm: Arm, seed: int, step: int, retriever: str, environments: "Environments") -> None:
    """Answer the test questions greedily with the policy of a step, unless that is done, and write the records of it
    and of the raw questions."""
    path = options.records(arm, seed, step, retriever)
    if path.exists():
        return
    config = options.config(arm, seed, retriever)
    client = environments.open(config)
    split = client.questions(config.eval.split)
    leaked = {leak.question.id for leak in same_questions(config.eval.split, split, "train", client.questions("train"))}
    held_out = [question for question in split if question.id not in leaked]
    questions = sampling.draw(held_out, config.eval.limit, SAMPLE_SEED)
    log.info("%s: %d questions", path.stem, len(questions))
    checkpoint = options.run_folder(arm, seed) / "checkpoints" / f"checkpoint-{step}" if step else None
    answered = greedy_trees(config, client, checkpoint, questions)
    name = TRAINED if step else UNTRAINED
    write_records(path, [*run_raw(client, questions), *records_of_trees(name, answered)])


class Environments(ExitStack):
    """A client for each index, opened when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self._clients: dict[str, EnvironmentApi] = {}

    def open(self, config: RunConfig) -> EnvironmentApi:
        """The client of a config, whose index is built where it is missing."""
        if config.env.index not in self._clients:
            _build(config)
            self._clients[config.env.index] = self.enter_context(open_environment(config.env, config.client))
        return self._clients[config.env.index]


def _build(config: RunConfig) -> None:
    if not Path(config.env.index).exists():
        log.info("building %s", config.env.index)
        build_index(config.env)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["run", "table"])
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE", help="settings to change in every run")
    parser.add_argument(
        "--only", nargs="+", choices=["a", "b", "c"], default=["a", "b", "c"], help="parts to run, or to print"
    )
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--steps", type=int, help="optimizer steps of every arm but `turn` (60)")
    parser.add_argument("--tiny", action="store_true", help="two steps on a few questions")
    parser.add_argument("--folder", type=Path, help="where everything is kept (runs/reproduction)")
    parser.add_argument(
        "--page", type=Path, metavar="FILE", help="with table: write the results into this page, a drawing beside it"
    )
    return parser.parse_intermixed_args(arguments)


if __name__ == "__main__":
    try:
        main()
    except QuerylectError as error:
        sys.exit(f"{type(error).__name__}: {error}")
