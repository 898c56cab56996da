"""What a training step waits for: today's order, sampling ahead, and trees without a barrier between turns.

    python benchmarks/pipeline.py run RUN_FOLDER    # rates of the first half of a run predict the steps of the second
    python benchmarks/pipeline.py plan [--gpus 8] [--questions 512] [--model-billions 8] [--train-share 0.5] …

`plan` simulates the sampling of one step, sequence by sequence: an engine decodes all its active sequences together,
one token in `--token-ms` plus `--sequence-ms` for each of them, up to `--slots` at a time; lengths are log-normal and
cut at `--longest` times their mean, so there are tails. Update and retrieval are rates. All rates are assumptions to be
replaced by measured ones; the defaults are derived from an H100's memory bandwidth and FLOPs in `Rates`.

Rows: `in turns` is the loop of train.staleness=0 (sample the first turns, search, sample the second turns, train, on
all GPUs); `ahead` that of staleness 1, with `--train-share` of the GPUs training and the others sampling; `streamed`
searches a first turn as soon as it ends and samples its second turns at once. Idle is the share of GPU time in which
nothing is computed; a GPU that samples with fewer sequences than slots counts as idle for the missing ones.
"""

import argparse
import heapq
import json
import random
from collections import deque
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from statistics import median

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60


@dataclass(frozen=True)
class Rates:
    """Rates of one GPU."""

    token: float
    """Seconds of a decoding step, whatever the number of sequences: the weights are read once."""
    sequence: float
    """Seconds that each active sequence adds: its keys and values are read, its token is computed."""
    prefill: float
    """Prompt tokens a second."""
    slots: int
    """Most sequences at a time."""
    update: float
    """Packed tokens a second in the update."""

    @classmethod
    def of_h100(cls, billions: float, context: int) -> "Rates":
        """From 3.35 TB/s and 990 TFLOP/s (bfloat16), of which 70 % and 40 % are assumed to be reached."""
        weights, bandwidth, flops = 2e9 * billions, 0.7 * 3.35e12, 0.4 * 990e12
        cache = 18e3 * billions * context  # bytes of keys and values: 147 kB a token at 8 billion
        forward = 2e9 * billions / flops
        return cls(weights / bandwidth + 1e-3, cache / bandwidth + forward, 1 / forward, 256, 1 / (4 * forward))


@dataclass(frozen=True)
class Shape:
    """One step."""

    questions: int
    branching: tuple[int, int]
    prompt: int
    answers: tuple[int, int]
    """Mean tokens of an answer, by turn."""
    observation: int
    """Tokens of the documents that a second turn is shown."""
    longest: float
    """Longest answer, in means."""
    spread: float
    """Standard deviation of the logarithm of a length."""

    def packed_tokens(self) -> int:
        """Tokens of the update: shared prefixes once."""
        first, second = self.branching
        tree = self.prompt + first * (self.answers[0] + self.observation) + first * second * self.answers[1]
        return self.questions * tree


@dataclass
class Sampled:
    """One engine's part of a step: when it ended, and how many sequences were active when."""

    seconds: float
    busy: float
    """Seconds × sequences."""
    activity: list[tuple[float, int]]


class Engine:
    """Decodes sequences together. Times are in seconds."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.now = self.progress = self.busy = 0.0
        self.active: list[tuple[float, int, object]] = []
        self.waiting: deque[tuple[int, int, object]] = deque()
        self.activity: list[tuple[float, int]] = []
        self._number = count()

    def submit(self, prompt: int, tokens: int, label: object) -> None:
        """Queue a sequence that computes `prompt` tokens and then samples `tokens`."""
        self.waiting.append((prompt, tokens, label))

    def admit(self) -> None:
        """Start waiting sequences while there are slots; the others wait for their prompts."""
        while self.waiting and len(self.active) < self.rates.slots:
            prompt, tokens, label = self.waiting.popleft()
            self.advance(prompt / self.rates.prefill, decoding=False)
            heapq.heappush(self.active, (self.progress + tokens, next(self._number), label))
        self.activity.append((self.now, len(self.active)))

    def until_next(self) -> float:
        """Seconds until the next sequence ends."""
        step = self.rates.token + self.rates.sequence * len(self.active)
        return (self.active[0][0] - self.progress) * step if self.active else float("inf")

    def advance(self, seconds: float, decoding: bool = True) -> None:
        """Let time pass."""
        if decoding and self.active:
            self.progress += seconds / (self.rates.token + self.rates.sequence * len(self.active))
            self.busy += seconds * len(self.active)
        elif not decoding:
            self.busy += seconds * self.rates.slots
        self.now += seconds

    def finished(self) -> list[object]:
        """Labels of the sequences that have ended."""
        ended = []
        while self.active and self.active[0][0] <= self.progress + 1e-9:
            ended.append(heapq.heappop(self.active)[2])
        return ended


def draw_lengths(shape: Shape, mean: int, number: int, drawn: random.Random) -> list[int]:
    """Lengths of answers with this mean, before the cut."""
    scale = mean / 2.718281828 ** (shape.spread**2 / 2)
    return [
        max(1, int(min(shape.longest * mean, scale * drawn.lognormvariate(0, shape.spread)))) for _ in range(number)
    ]


def sample(shape: Shape, rates: Rates, questions: int, search: float, streamed: bool, seed: int) -> Sampled:
    """One engine's trees. search: seconds from the end of a first turn until its documents are there."""
    drawn, engine = random.Random(seed), Engine(rates)
    first, second = shape.branching
    searches: list[tuple[float, int]] = []
    for _ in range(questions):
        for number, tokens in enumerate(draw_lengths(shape, shape.answers[0], first, drawn)):
            engine.submit(0 if number else shape.prompt, tokens, "first")
    turns, results = count(), 0
    while engine.active or engine.waiting or searches:
        engine.admit()
        due = searches[0][0] - engine.now if searches else float("inf")
        if not streamed and (engine.active or engine.waiting):
            due = float("inf")
        elif not streamed:
            due = max(0.0, searches[-1][0] - engine.now)  # all first turns are searched together
        engine.advance(min(due, engine.until_next()))
        for label in engine.finished():
            if label == "first":
                heapq.heappush(searches, (engine.now + search, next(turns)))
        while searches and (searches[0][0] <= engine.now + 1e-9) and (streamed or not engine.active):
            heapq.heappop(searches)
            results += 1
            for number, tokens in enumerate(draw_lengths(shape, shape.answers[1], second, drawn)):
                engine.submit(0 if number else shape.observation, tokens, "second")
    assert results == questions * first, "every first turn is searched"
    return Sampled(engine.now, engine.busy, engine.activity)


def plan(shape: Shape, rates: Rates, gpus: int, train_share: float, search: float, sync: float) -> None:
    """Print a row for each way to run a step, and the time line of each."""
    update = shape.packed_tokens() / rates.update
    print(f"{'':22}{'s a step':>9}{'sampling':>10}{'update':>8}{'idle':>7}   active sequences over the sampling")
    for name, ahead, streamed in (
        ("in turns", False, False), ("in turns, streamed", False, True),
        ("ahead", True, False), ("ahead, streamed", True, True),
    ):  # fmt: skip
        samplers = max(1, round(gpus * (1 - train_share))) if ahead else gpus
        trainers = max(1, gpus - samplers) if ahead else gpus
        engines = [
            sample(shape, rates, shape.questions // samplers, search, streamed, seed) for seed in range(samplers)
        ]
        sampling, training = max(engine.seconds for engine in engines), update / trainers
        step = (max(sampling, training) if ahead else sampling + training) + sync
        used = sum(engine.busy for engine in engines) / rates.slots + training * trainers
        total = step * (samplers + trainers if ahead else gpus)
        print(
            f"{name:22}{step:9.0f}{sampling:10.0f}{training:8.0f}{1 - used / total:7.0%}   "
            f"{time_line(engines, sampling, rates.slots)}"
        )


def time_line(engines: list[Sampled], seconds: float, slots: int) -> str:
    """The share of slots that are active, as bars over the time of sampling."""
    bars = []
    for column in range(WIDTH):
        moment = seconds * (column + 0.5) / WIDTH
        active = sum(
            next((number for at, number in reversed(engine.activity) if at <= moment), 0)
            if moment < engine.seconds
            else 0
            for engine in engines
        )
        bars.append(BARS[round(active / (slots * len(engines)) * (len(BARS) - 1))])
    return "".join(bars)


def check(folder: Path) -> None:
    """Predict the second half of a run's steps from the rates of the first, and print the ratio."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    if len(rows) < 4 or "tokens/sampled" not in rows[0]:
        raise SystemExit(f"{folder} has {len(rows)} steps with tokens/sampled; expected at least 4.")
    half = len(rows) // 2
    per_sampled = median(row["seconds/generate"] / max(1, row["tokens/sampled"]) for row in rows[:half])
    per_packed = median(row["seconds/update"] / max(1, row["tokens/packed"]) for row in rows[:half])
    activities = ("seconds/generate", "seconds/update")
    other = median(row["seconds/step"] - sum(row[name] for name in activities) for row in rows[:half])
    ratios = [
        (per_sampled * row["tokens/sampled"] + per_packed * row["tokens/packed"] + other) / row["seconds/step"]
        for row in rows[half:]
    ]
    print(f"{1 / per_sampled:.0f} sampled and {1 / per_packed:.0f} packed tokens a second, {other:.2f} s besides")
    within = sum(abs(ratio - 1) <= 0.2 for ratio in ratios) / len(ratios)
    print(f"predicted / measured: median {median(ratios):.2f}, {within:.0%} of {len(ratios)} steps within 20 %")


def main() -> None:
    """Simulate or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    checked = commands.add_parser("run")
    checked.add_argument("folder", type=Path)
    planned = commands.add_parser("plan")
    planned.add_argument("--gpus", type=int, default=8)
    planned.add_argument("--questions", type=int, default=512)
    planned.add_argument("--model-billions", type=float, default=8.0)
    planned.add_argument("--train-share", type=float, default=0.5)
    planned.add_argument("--prompt", type=int, default=600)
    planned.add_argument("--answer", type=int, default=300)
    planned.add_argument("--observation", type=int, default=900)
    planned.add_argument("--longest", type=float, default=4.0)
    planned.add_argument("--spread", type=float, default=0.6)
    planned.add_argument("--search-seconds", type=float, default=2.0)
    planned.add_argument("--sync-seconds", type=float, default=3.0)
    planned.add_argument("--token-ms", type=float)
    planned.add_argument("--sequence-ms", type=float)
    planned.add_argument("--slots", type=int)
    planned.add_argument("--update-tokens", type=float, help="packed tokens a second of one GPU")
    given = parser.parse_args()
    if given.what == "run":
        check(given.folder)
        return
    answers = (given.answer, given.answer)
    shape = Shape(
        given.questions, (4, 4), given.prompt, answers, given.observation, given.longest, given.spread
    )  # fmt: skip
    rates = Rates.of_h100(given.model_billions, given.prompt + given.observation + given.answer)
    rates = Rates(
        given.token_ms / 1e3 if given.token_ms is not None else rates.token,
        given.sequence_ms / 1e3 if given.sequence_ms is not None else rates.sequence,
        rates.prefill,
        given.slots or rates.slots,
        given.update_tokens or rates.update,
    )
    print(
        f"a GPU decodes {rates.slots / (rates.token + rates.sequence * rates.slots):.0f} tokens a second in "
        f"{rates.slots} slots, and updates on {rates.update:.0f}"
    )
    plan(shape, rates, given.gpus, given.train_share, given.search_seconds, given.sync_seconds)


if __name__ == "__main__":
    main()
