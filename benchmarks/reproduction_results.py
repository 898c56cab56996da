"""What is finished in the folder of the reproduction, read from run folders and records."""

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import fmean

import pandas as pd
from paired import compare_paired
from querylect.eval.records import METRICS, EvalRecord, read_records
from querylect.eval.statistics import PairedComparison
from querylect.eval.table import frame_of
from querylect.storage import logged_objects
from reproduction_arms import Arm, Options

RESAMPLES = PERMUTATIONS = 10_000


def last_step(run: Path) -> int:
    """The step of the newest checkpoint of a run; 0 where there is none."""
    return max((int(path.name.split("-")[1]) for path in (run / "checkpoints").glob("checkpoint-*")), default=0)


def sampled_tokens(run: Path) -> list[int]:
    """Tokens that the policy wrote, for each step up to the newest checkpoint."""
    newest = last_step(run)
    return [int(line["tokens/sampled"]) for line in logged_objects(run / "metrics.jsonl") if line["step"] <= newest]


def is_complete(run: Path, steps: int) -> bool:
    """Whether a run has so many steps, or more, and its last one was validated."""
    newest = last_step(run)
    validated = any(line["step"] == newest for line in logged_objects(run / "validation.jsonl"))
    return newest >= steps and validated and (run / "final").exists()


class Results:
    """Everything that tables, figures and verdicts are made from."""

    def __init__(self, options: Options) -> None:
        self.options = options

    def seeds(self, arm: Arm) -> list[int]:
        """Seeds whose policy was tested on every retriever of the arm."""
        seeds = self.options.seeds
        return [seed for seed in seeds if all(self._file(arm, seed, name).exists() for name in arm.tested_on)]

    def steps(self, arm: Arm, seed: int) -> int:
        """Optimizer steps of a run."""
        return last_step(self.options.run_folder(arm, seed))

    def tokens(self, arm: Arm, seed: int) -> list[int]:
        """Sampled tokens of a run by step."""
        return sampled_tokens(self.options.run_folder(arm, seed))

    def metric(self, arm: Arm, seed: int, name: str) -> list[float]:
        """A figure of metrics.jsonl by step; missing values are left out."""
        lines = logged_objects(self.options.run_folder(arm, seed) / "metrics.jsonl")
        return [line[name] for line in lines if name in line]

    def validation(self, arm: Arm, seed: int, turn: int) -> dict[int, float]:
        """nDCG@10 of the validation questions at a turn, by step."""
        lines = logged_objects(self.options.run_folder(arm, seed) / "validation.jsonl")
        return {line["step"]: line[f"ndcg/turn{turn}"] for line in lines if f"ndcg/turn{turn}" in line}

    def answers(self, arm: Arm, seed: int, retriever: str, trained: bool = True) -> list[EvalRecord]:
        """The records of the test: raw questions at turn 0, the policy at turns 1 and on."""
        return records(self._file(arm, seed, retriever, trained))

    def scores(self, arm: Arm, retriever: str, turn: int, seeds: Sequence[int] | None = None) -> list[list[float]]:
        """nDCG@10 of every test question at a turn, a list for each seed (None: all); turn 0 is the raw question."""
        chosen = self.seeds(arm) if seeds is None else seeds
        return [scores(self._file(arm, seed, retriever), turn) for seed in chosen]

    def untrained(self, arm: Arm, retriever: str, turn: int) -> list[float]:
        """The same before training."""
        return scores(self._file(arm, 0, retriever, trained=False), turn)

    def raw(self, arm: Arm, retriever: str) -> list[float]:
        """The same of the questions as they stand."""
        return scores(self._file(arm, 0, retriever, trained=False), 0)

    def written(self, arm: Arm, retriever: str, turn: int, trained: bool = True) -> list[pd.Series]:
        """What the policy writes at a turn of the test, by seed: means of the columns of `frame_of`; before training
        there is one policy for all seeds."""
        means = []
        for seed in self.seeds(arm) if trained else (0,):
            answers = self.answers(arm, seed, retriever, trained)
            ids = list(dict.fromkeys(record.question_id for record in answers))
            means.append(frame_of(answers, {"": ids}, METRICS).xs(turn, level="turn").mean(numeric_only=True))
        return means

    def _file(self, arm: Arm, seed: int, retriever: str, trained: bool = True) -> Path:
        step = self.steps(arm, seed) if trained else 0
        path = self.options.records(arm, seed, step, retriever)
        return path if step or not trained else path.with_name("none")


@cache
def records(file: Path) -> list[EvalRecord]:
    return read_records(file)


@cache
def scores(file: Path, turn: int) -> list[float]:
    """nDCG@10 of every question at a turn. Raises ValueError for a failed search: the test has to be made again."""
    values = [record.metrics[METRICS[0]] for record in records(file) if record.turn == turn]
    scored = [value for value in values if value is not None]
    if len(scored) != len(values) or not scored:
        raise ValueError(
            f"{file}: {len(values) - len(scored)} of {len(values)} questions at turn {turn} have no score; remove the "
            "file and run again"
        )
    return scored


def mean_of_seeds(by_seed: Sequence[Sequence[float]]) -> list[float]:
    """Question by question, the mean over seeds."""
    return [fmean(values) for values in zip(*by_seed, strict=True)]


def compare(a: Sequence[float], b: Sequence[float]) -> PairedComparison:
    """Paired permutation test and bootstrap interval over questions."""
    return compare_paired(a, b, resamples=RESAMPLES, permutations=PERMUTATIONS, seed=0)
