"""What a training step waits for: sampling in turns with the update, sampling one step ahead, and streamed trees.

    python benchmarks/pipeline.py [--gpus 8] [--train-gpus 5] [--questions 510] …

Simulates the sampling of one step, sequence by sequence: an engine on each GPU decodes all its active sequences
together, as many as `--slots` and the memory for their keys and values allow; lengths are log-normal and cut at
`--max-new-tokens`. The update is a rate. Rates are assumptions, derived in `Rates` from an H100's bandwidth and FLOPs.

A process searches the turns of the questions that it trains, with at most `--requests` requests at a time; the next one
takes all turns that have ended. A request takes `--search-seconds` and waits for the service, which computes
`--plan-ms` for every plan of the requests before it and of its own, divided by the services (one for eight GPUs).

Rows: `in turns` is train.staleness=0 (sample, search, sample, search, train, on all GPUs); `ahead` is staleness 1, with
`--train-gpus` training and the others sampling; `streamed` searches a turn as soon as it ends. Idle is the share of GPU
time in which nothing is computed: fewer sequences than slots, or waiting for an engine that samples longer (tail), only
searches (retrieval), training GPUs without trees (sampling), sampling GPUs that wait for the update (update), the
weights are sent (transfer).
"""

import argparse
import heapq
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count
from math import ceil
from operator import mul
from typing import NamedTuple

KV_BYTES = 18e3
"""Bytes of keys and values that a token takes, for a billion parameters: 147 kB at Qwen3-8B."""
GPU_GIB, WORKSPACE_GIB = 79.0, 3.0
"""Memory of an H100, and what vLLM computes in (assumed)."""
OWN_GPU_SHARE = 0.9
"""Of a GPU's memory that vLLM takes where nothing trains on it, its default."""
WAITS = ("tail", "retrieval", "sampling", "update", "transfer")


@dataclass(frozen=True)
class Rates:
    """Seconds of a decoding step, and those that each active sequence adds; prompt tokens a second; most sequences at a
    time; packed tokens a second in the update of a GPU."""

    token: float
    sequence: float
    prefill: float
    slots: int
    update: float

    @classmethod
    def of_h100(cls, billions: float, context: int, slots: int, passes: int) -> "Rates":
        """From 3.35 TB/s and 990 TFLOP/s (bfloat16), of which 70 % and 40 % are assumed to be reached; `passes` are the
        forward passes that an update costs."""
        bandwidth, forward = 0.7 * 3.35e12, 2e9 * billions / (0.4 * 990e12)
        sequence = KV_BYTES * billions * context / bandwidth + forward
        return cls(2e9 * billions / bandwidth + 1e-3, sequence, 1 / forward, slots, 1 / (passes * forward))


@dataclass(frozen=True)
class Service:
    """Seconds of a request and of each of its plans, of which the service computes one at a time; most requests of a
    process at a time, where trees are streamed."""

    request: float
    plan: float = 0.0
    requests: int = 1


@dataclass(frozen=True)
class Shape:
    """One step: tokens of the prompt, of an answer by turn (mean; longest, in means; standard deviation of the
    logarithm) and of the documents that a later turn is shown."""

    questions: int
    branching: tuple[int, ...]
    prompt: int
    answers: tuple[float, ...]
    observation: int
    longest: float
    spread: float

    def nodes(self) -> list[int]:
        """Turns of a tree, by depth."""
        return list(accumulate(self.branching, mul))

    def packed_tokens(self) -> float:
        """Tokens of a tree: shared prefixes once."""
        nodes = self.nodes()
        answers = sum(number * answer for number, answer in zip(nodes, self.answers, strict=True))
        return self.prompt + answers + sum(nodes[:-1]) * self.observation


def slots_of(shape: Shape, billions: float, share: float, max_slots: int) -> int:
    """Sequences that an engine decodes at a time: up to `max_slots`, or what their keys and values leave room for in
    `share` of the memory beside the weights. Common prefixes are kept once."""
    free = GPU_GIB * share - 2e9 * billions / 2**30 - WORKSPACE_GIB
    sequence = shape.packed_tokens() / shape.nodes()[-1] * KV_BYTES * billions / 2**30
    if free < sequence:
        raise SystemExit(f"{share:.0%} of a GPU has no room for a sequence; expected a larger share.")
    return min(max_slots, int(free / sequence))


class Turn(NamedTuple):
    """An answer of a tree, by its number among those of its depth."""

    question: int
    depth: int
    number: int


class Engine:
    """Decodes sequences together. Times are in seconds; `busy` in seconds × sequences."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.now = self.progress = self.busy = self.searching = 0.0
        self.active: list[tuple[float, int, Turn]] = []
        self.queue: deque[tuple[int, float, Turn]] = deque()
        """Prompt tokens to compute and tokens to sample."""
        self._number = count()

    def admit(self) -> None:
        """Start queued sequences while there are slots; the others wait for their prompts."""
        while self.queue and len(self.active) < self.rates.slots:
            prompt, tokens, turn = self.queue.popleft()
            self.busy += prompt / self.rates.prefill * self.rates.slots
            self.now += prompt / self.rates.prefill
            heapq.heappush(self.active, (self.progress + tokens, next(self._number), turn))

    def step_seconds(self) -> float:
        return self.rates.token + self.rates.sequence * len(self.active)

    def next_end(self) -> float:
        """When the next sequence ends."""
        return self.now + (self.active[0][0] - self.progress) * self.step_seconds() if self.active else float("inf")

    def advance_to(self, moment: float) -> None:
        """Decode until then; what comes while prompts are computed waits for them."""
        seconds = max(0.0, moment - self.now)
        if self.active:
            self.progress += seconds / self.step_seconds()
            self.busy += seconds * len(self.active)
        else:
            self.searching += seconds
        self.now += seconds

    def finished(self) -> list[Turn]:
        """The sequences that have ended."""
        ended = []
        while self.active and self.active[0][0] <= self.progress + 1e-6:
            ended.append(heapq.heappop(self.active)[2])
        return ended


@dataclass(eq=False)
class Process:
    """Searches the turns of its questions: those sampled or queued, those that have ended and no request has taken."""

    sampling: int = 0
    requests: int = 0
    ended: list[Turn] = field(default_factory=list)


class Rollout:
    """The trees of a step on some engines, each on one; the processes take turns, too, in getting a question."""

    def __init__(
        self, shape: Shape, rates: Rates, engines: int, processes: int, service: Service, streamed: bool
    ) -> None:
        self.shape, self.service, self.streamed = shape, service, streamed
        self.engines = [Engine(rates) for _ in range(engines)]
        self.processes = [Process() for _ in range(processes)]
        self.max_searches = 0
        """Most plans in requests at a time."""
        self._lengths = [draw_lengths(shape, random.Random(f"0 {number}")) for number in range(shape.questions)]
        self._requests: list[tuple[float, int, Process, list[Turn]]] = []
        """When each ends, in this order."""
        self._number = count()
        self._service_free = 0.0

    def run(self) -> list[Engine]:
        """Sample all trees; the engines say what they did."""
        self._answered(0.0, [Turn(question, -1, 0) for question in range(self.shape.questions)])
        while True:
            engine = min(self.engines, key=Engine.next_end)
            moment = engine.next_end()
            if self._requests and self._requests[0][0] <= moment:
                moment, _, process, turns = heapq.heappop(self._requests)
                process.requests -= 1
                self._answered(moment, turns)
                self._search(process, moment)
            elif engine.active:
                engine.advance_to(moment)
                ended = engine.finished()
                engine.admit()
                owners = [self.processes[turn.question % len(self.processes)] for turn in ended]
                for process, turn in zip(owners, ended, strict=True):
                    process.sampling -= 1
                    process.ended.append(turn)
                for process in dict.fromkeys(owners):
                    self._search(process, moment)
            else:
                return self.engines

    def _answered(self, moment: float, turns: list[Turn]) -> None:
        """Sample the turns below these, whose documents have arrived."""
        engines = {turn.question % len(self.engines): self.engines[turn.question % len(self.engines)] for turn in turns}
        for engine in engines.values():
            engine.advance_to(moment)
        for turn in turns:
            depth = turn.depth + 1
            if depth == len(self.shape.branching):
                continue
            width, lengths = self.shape.branching[depth], self._lengths[turn.question][depth]
            context = self.shape.observation if depth else self.shape.prompt
            for number in range(turn.number * width, (turn.number + 1) * width):
                prompt = 0 if number % width else context
                below = Turn(turn.question, depth, number)
                engines[turn.question % len(self.engines)].queue.append((prompt, lengths[number], below))
            self.processes[turn.question % len(self.processes)].sampling += width
        for engine in engines.values():
            engine.admit()

    def _search(self, process: Process, moment: float) -> None:
        """Send what has ended, if a request may be sent: without streaming, once all turns of a depth have ended."""
        waits = process.requests >= self.service.requests if self.streamed else process.sampling > 0
        if waits or not process.ended:
            return
        turns, process.ended = process.ended, []
        self._service_free = max(self._service_free, moment) + self.service.plan * len(turns)
        heapq.heappush(self._requests, (self._service_free + self.service.request, next(self._number), process, turns))
        process.requests += 1
        self.max_searches = max(self.max_searches, sum(len(request[3]) for request in self._requests))


def draw_lengths(shape: Shape, drawn: random.Random) -> list[list[float]]:
    """Lengths of the answers of a tree, by depth."""
    lengths = []
    for mean, number in zip(shape.answers, shape.nodes(), strict=True):
        scale = mean / 2.718281828 ** (shape.spread**2 / 2)
        drawn_lengths = (scale * drawn.lognormvariate(0, shape.spread) for _ in range(number))
        lengths.append([max(1.0, min(shape.longest * mean, length)) for length in drawn_lengths])
    return lengths


def idle(engines: Sequence[Engine], trainers: int, update: float, sync: float) -> tuple[float, list[float]]:
    """Seconds of a step, and the shares of the GPU time of `WAITS`; `trainers` 0: all GPUs sample and then train."""
    samplers, slots = len(engines), engines[0].rates.slots
    sampling = max(engine.now for engine in engines)
    computing = max(sampling, update) if trainers else sampling + update
    seconds = computing + sync
    retrieval = sum(engine.searching for engine in engines)
    tail = samplers * sampling - sum(engine.busy for engine in engines) / slots - retrieval
    waits = [tail, retrieval, trainers * (computing - update), 0.0, (samplers + trainers) * sync]
    waits[3] = samplers * (computing - sampling) if trainers else 0.0
    return seconds, [max(0.0, wait) / ((samplers + trainers) * seconds) for wait in waits]


def plan(shape: Shape, rates: dict[bool, Rates], gpus: int, train: int, service: Service, sync: float) -> None:
    """Print a row for each way to run a step. `rates`: by whether sampling is ahead, with `train` of the GPUs."""
    print(f"\n{shape.questions} questions a step, shares of the GPU time idle, most searches at a time")
    print(f"{'':18}{'s a step':>9}{'idle':>6}" + "".join(f"{name:>10}" for name in WAITS) + f"{'searches':>10}")
    for ahead, streamed in ((ahead, streamed) for ahead in rates for streamed in (False, True)):
        samplers, trainers = (gpus - train, train) if ahead else (gpus, gpus)
        rollout = Rollout(shape, rates[ahead], samplers, trainers, service, streamed)
        update = shape.questions * shape.packed_tokens() / rates[ahead].update / trainers
        seconds, shares = idle(rollout.run(), train if ahead else 0, update, sync)
        name = ("ahead" if ahead else "in turns") + (", streamed" if streamed else "")
        columns = "".join(f"{share:10.0%}" for share in shares)
        print(f"{name:18}{seconds:9.0f}{sum(shares):6.0%}{columns}{rollout.max_searches:10}")


OPTIONS = {
    **{"gpus": 8, "train-gpus": 5, "questions": 512, "model-billions": 8.0},
    **{"prompt": 600, "answer": 300, "observation": 900, "max-new-tokens": 1024, "spread": 0.6},
    **{"search-seconds": 2.0, "plan-ms": 0.5, "requests": 4, "sync-seconds": 3.0},
    **{"slots": 256, "engine-share": 0.28, "update-passes": 5},
}
"""`engine-share`: of the memory of a GPU that also trains. `update-passes`: forward passes that an update costs, with
activations computed again: 4, or 3 where only adapters are trained, and 1 for the reference model."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default)
    args = parser.parse_args()
    answers, longest = (args.answer, args.answer), args.max_new_tokens / args.answer
    shape = Shape(args.questions, (4, 4), args.prompt, answers, args.observation, longest, args.spread)
    context = args.prompt + args.observation + args.answer
    rates = {}
    shares = {False: args.engine_share, True: OWN_GPU_SHARE} if args.gpus > 1 else {False: args.engine_share}
    for ahead, share in shares.items():
        slots = slots_of(shape, args.model_billions, share, args.slots)
        rates[ahead] = Rates.of_h100(args.model_billions, context, slots, args.update_passes)
        rate = slots / (rates[ahead].token + rates[ahead].sequence * slots)
        print(f"{'ahead' if ahead else 'in turns'}: an engine decodes {rate:.0f} tokens a second in {slots} slots")
    service = Service(args.search_seconds, args.plan_ms / 1e3 / ceil(args.gpus / 8), args.requests)
    plan(shape, rates, args.gpus, args.train_gpus, service, args.sync_seconds)


if __name__ == "__main__":
    main()
