"""What a training step waits for: today's order, sampling ahead, and trees without a barrier between turns.

    python benchmarks/pipeline.py run RUN_FOLDER [--rates-of OTHER_RUN]    # rates of one run predict steps of another
    python benchmarks/pipeline.py plan [--gpus 8] [--train-gpus 5] [--questions 510] [--tensor-parallel 1] …

Both simulate the sampling of one step, sequence by sequence: an engine decodes all its active sequences together,
one token in `--token-ms` plus `--sequence-ms` for each of them, as many at a time as `--slots` and the memory for
their keys and values allow; lengths are log-normal and cut at `--max-new-tokens`, so there are tails. The update is a
rate. All rates of `plan` are assumptions to be replaced by measured ones; the defaults are derived from an H100's
memory bandwidth and FLOPs in `Rates`. `run` takes those that a run measured (seconds of a sampled token, a search, a
packed token of the update, and the rest of a step) and gives each step its own numbers of tokens and searches.

A process searches the turns of the questions that it trains, with at most `--requests` requests at a time
(rollouts/streaming.py); the next one takes all turns that have ended. A request takes `--search-seconds` and waits for
the service, which computes `--plan-ms` for every plan of the requests before it and of its own; with several
services (`--services`, by default one for eight GPUs) that share is divided by their number.

Rows: `in turns` is the loop of train.staleness=0 (sample the first turns, search, sample the second turns, search,
train, on all GPUs); `ahead` that of `--staleness` 1 or more, `--train-gpus` of two or more GPUs training, the others
sampling; `streamed` searches a turn as soon as it ends and samples what follows it at once. With `--tensor-parallel n`
an engine has n GPUs; one in the process of the trainer is then not streamed. Idle is the share of GPU time in which
nothing is computed, and the columns after it say where:

    tail        a GPU samples with fewer sequences than slots, or waits for one that samples longer
    retrieval   a GPU that samples has no sequence, only searches
    sampling    the GPUs that train wait for trees
    update      the GPUs that sample wait for the update
    transfer    all wait for the weights

A time line is one step: bars are active sequences, `r` retrieval, `u` the update, `t` the transfer.
"""

import argparse
import heapq
import json
import random
from bisect import bisect
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate, count, pairwise
from math import ceil
from operator import mul
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import yaml

BARS = " ▁▂▃▄▅▆▇█"
WIDTH = 60
STEPS = 240
"""Steps of which the second half shows the pace of training and sampling ahead."""
KV_BYTES = 18e3
"""Bytes of keys and values that a token takes, for a billion parameters: 147 kB at Qwen3-8B."""
GIB = 2**30
GPU_GIB, WORKSPACE_GIB = 79.0, 3.0
"""Memory of an H100, and what vLLM computes in (assumed)."""
OWN_GPU_SHARE = 0.9
"""Of a GPU's memory that vLLM takes where nothing trains on it, its default."""
ALL_REDUCES = 72
"""Of a decoding step with tensor parallelism: two for each of Qwen3-8B's 36 layers."""
ALL_REDUCE_SECONDS = 15e-6
"""Assumed, within a node; the activations of one token of each sequence are small."""


@dataclass(frozen=True)
class Rates:
    """Rates of an engine, and of one GPU that trains."""

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
    def of_h100(cls, billions: float, context: int, slots: int, gpus: int = 1, passes: int = 5) -> "Rates":
        """From 3.35 TB/s and 990 TFLOP/s (bfloat16), of which 70 % and 40 % are assumed to be reached.

        `slots` and `gpus` are those of an engine, `passes` the forward passes that an update costs (`update_passes`).
        """
        weights, bandwidth, flops = 2e9 * billions, 0.7 * 3.35e12, 0.4 * 990e12
        cache = KV_BYTES * billions * context
        forward = 2e9 * billions / flops
        exchange = ALL_REDUCES * ALL_REDUCE_SECONDS if gpus > 1 else 0.0
        token, sequence = weights / bandwidth / gpus + 1e-3 + exchange, (cache / bandwidth + forward) / gpus
        return cls(token, sequence, gpus / forward, slots, 1 / (passes * forward))


def update_passes(reference: bool, lora: bool) -> int:
    """Forward passes that an update costs: one, one that computes activations again, and a backward pass of two, or of
    one where only adapters have gradients. With `reference` (train.beta above 0) one more."""
    return (3 if lora else 4) + reference


@dataclass(frozen=True)
class Service:
    """Rates of retrieval."""

    request: float
    """Seconds of a request, besides those of its plans."""
    plan: float = 0.0
    """Seconds of a plan: the service computes one at a time."""
    requests: int = 1
    """Most requests of a process at a time, where trees are streamed."""


@dataclass(frozen=True)
class Shape:
    """One step."""

    questions: int
    branching: tuple[int, ...]
    prompt: int
    answers: tuple[float, ...]
    """Mean tokens of an answer, by turn."""
    observation: int
    """Tokens of the documents that a later turn is shown."""
    longest: float
    """Longest answer, in means."""
    spread: float
    """Standard deviation of the logarithm of a length."""

    def nodes(self) -> list[int]:
        """Turns of a tree, by depth."""
        return list(accumulate(self.branching, mul))

    def packed_tokens(self) -> float:
        """Tokens of a tree: shared prefixes once."""
        nodes = self.nodes()
        answers = sum(number * answer for number, answer in zip(nodes, self.answers, strict=True))
        return self.prompt + answers + sum(nodes[:-1]) * self.observation


def slots_of(shape: Shape, billions: float, share: float, gpus: int, max_slots: int) -> int:
    """Sequences that an engine of `gpus` decodes at a time: up to `max_slots` on a GPU, or what their keys and values
    leave room for in `share` of the memory beside the weights. Common prefixes are kept once."""
    free = GPU_GIB * share - 2e9 * billions / gpus / GIB - WORKSPACE_GIB
    sequence = shape.packed_tokens() / shape.nodes()[-1] * KV_BYTES * billions / GIB
    if free < sequence:
        raise SystemExit(f"{share:.0%} of each of {gpus} GPUs has no room for a sequence; expected a larger share.")
    return gpus * min(max_slots, int(free / sequence))


@dataclass
class Sampled:
    """One engine's part of a step: when it ended, and how many sequences were active when."""

    seconds: float
    busy: float
    """Seconds × sequences."""
    searching: float
    """Seconds without a sequence."""
    activity: list[tuple[float, int]]


class Turn(NamedTuple):
    """An answer of a tree."""

    question: int
    depth: int
    number: int
    """Among the answers of this depth in its tree."""


class Engine:
    """Decodes sequences together. Times are in seconds."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.now = self.progress = self.busy = self.searching = 0.0
        self.active: list[tuple[float, int, Turn]] = []
        self.queue: deque[tuple[int, float, Turn]] = deque()
        self.activity: list[tuple[float, int]] = []
        self._number = count()

    def submit(self, prompt: int, tokens: float, turn: Turn) -> None:
        """Queue a sequence that computes `prompt` tokens and then samples `tokens`."""
        self.queue.append((prompt, tokens, turn))

    def admit(self) -> None:
        """Start queued sequences while there are slots; the others wait for their prompts."""
        while self.queue and len(self.active) < self.rates.slots:
            prompt, tokens, turn = self.queue.popleft()
            self.advance(prompt / self.rates.prefill, decoding=False)
            heapq.heappush(self.active, (self.progress + tokens, next(self._number), turn))
        self.activity.append((self.now, len(self.active)))

    def next_end(self) -> float:
        """When the next sequence ends."""
        step = self.rates.token + self.rates.sequence * len(self.active)
        return self.now + (self.active[0][0] - self.progress) * step if self.active else float("inf")

    def advance(self, seconds: float, decoding: bool = True) -> None:
        if decoding and self.active:
            self.progress += seconds / (self.rates.token + self.rates.sequence * len(self.active))
            self.busy += seconds * len(self.active)
        elif decoding:
            self.searching += seconds
        else:
            self.busy += seconds * self.rates.slots
        self.now += seconds

    def advance_to(self, moment: float) -> None:
        """Decode until then; what comes while prompts are computed waits for them."""
        self.advance(max(0.0, moment - self.now))

    def finished(self) -> list[Turn]:
        """The sequences that have ended."""
        ended = []
        while self.active and self.active[0][0] <= self.progress + 1e-6:
            ended.append(heapq.heappop(self.active)[2])
        return ended

    def sampled(self) -> Sampled:
        return Sampled(self.now, self.busy, self.searching, self.activity)


@dataclass(eq=False)
class Process:
    """Searches the turns of its questions."""

    sampling: int = 0
    """The number of turns that are sampled or queued."""
    requests: int = 0
    """Under way."""
    ended: list[Turn] = field(default_factory=list)
    """Turns that no request has taken yet."""


class Rollout:
    """The trees of a step on some engines, each on one; the processes take turns, too, in getting a question."""

    def __init__(
        self, shape: Shape, rates: Rates, engines: int, processes: int, service: Service, streamed: bool, seed: int = 0
    ) -> None:
        self.shape, self.service, self.streamed = shape, service, streamed
        self.engines = [Engine(rates) for _ in range(engines)]
        self.processes = [Process() for _ in range(processes)]
        self.max_searches = 0
        """Most plans in requests at a time."""
        self._lengths = [draw_lengths(shape, random.Random(f"{seed} {number}")) for number in range(shape.questions)]
        self._requests: list[tuple[float, int, Process, list[Turn]]] = []
        """When each ends, in this order."""
        self._number = count()
        self._service_free = 0.0

    def run(self) -> list[Sampled]:
        """Sample all trees; what each engine did."""
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
                return [engine.sampled() for engine in self.engines]

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
                engines[turn.question % len(self.engines)].submit(prompt, lengths[number], below)
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


def schedule(
    sampling: Sequence[float], update: Sequence[float], sync: float, staleness: int
) -> tuple[list[float], list[bool]]:
    """When each step begins its update, given the seconds of its sampling and update, and whether weights are sent
    then, as train/ahead.py orders them with `staleness` of 1 or more.

    Sampling of a step begins when that of the step before has ended and the weights are at most `staleness` updates
    older than those that the step will train. Weights are sent when training takes the trees of a step and no step is
    being sampled; training and sampling wait for them. With weights in flight they would be sent at every step.
    """
    now = free = 0.0  # when training and sampling go on
    newest = 0  # the last step that the weights may sample
    ready, begun, sent = list[float](), list[float](), list[bool]()

    def begin(until: float) -> None:
        nonlocal free
        while len(ready) <= min(newest, len(sampling) - 1) and free <= until:
            free += sampling[len(ready)]
            ready.append(free)

    for step, seconds in enumerate(update):
        begin(now)
        while len(ready) <= step:
            begin(free)
        now = max(now, ready[step])
        begin(now)
        sent.append(free <= now)
        if sent[-1]:
            now += sync
            newest = step + staleness
        free = max(free, now)
        begun.append(now)
        now += seconds
    return begun, sent


def pace(sampling: float, update: float, sync: float, staleness: int) -> tuple[float, float]:
    """Seconds of a step in the long run, and the share of the steps that send weights."""
    half, steps = STEPS // 2, STEPS + staleness + 1  # the last ones have nothing more to sample
    begun, sent = schedule([sampling] * steps, [update] * steps, sync, staleness)
    return (begun[STEPS - 1] - begun[half - 1]) / half, sum(sent[half:STEPS]) / half


@dataclass
class Step:
    """A step on some GPUs. Times are in seconds."""

    engines: list[Sampled]
    trainers: int
    staleness: int
    slots: int
    update: float
    sending: float
    """Seconds to send the weights."""
    engine_gpus: int = 1

    @property
    def ahead(self) -> bool:
        """Whether GPUs sample while others train."""
        return self.staleness > 0

    @property
    def sync(self) -> float:
        """Seconds of a step in which weights are sent, on average."""
        return self.sending * (pace(self.sampling, self.update, self.sending, self.staleness)[1] if self.ahead else 1)

    @property
    def sampling(self) -> float:
        """Until the slowest engine has its trees."""
        return max(engine.seconds for engine in self.engines)

    @property
    def computing(self) -> float:
        if not self.ahead:
            return self.sampling + self.update
        return pace(self.sampling, self.update, self.sending, self.staleness)[0] - self.sync

    @property
    def seconds(self) -> float:
        """The whole step."""
        return self.computing + self.sync

    def idle(self) -> dict[str, float]:
        """Shares of the GPU time in which nothing is computed, by what is waited for."""
        samplers = len(self.engines) * self.engine_gpus
        gpus = samplers + self.trainers if self.ahead else samplers
        retrieval = sum(engine.searching for engine in self.engines) * self.engine_gpus
        busy = sum(engine.busy for engine in self.engines) / self.slots * self.engine_gpus
        waits = {
            "tail": samplers * self.sampling - busy - retrieval,
            "retrieval": retrieval,
            "sampling": self.trainers * (self.computing - self.update) if self.ahead else 0.0,
            "update": samplers * (self.computing - self.sampling) if self.ahead else 0.0,
            "transfer": gpus * self.sync,
        }
        return {name: max(0.0, wait) / (gpus * self.seconds) for name, wait in waits.items()}

    def time_lines(self) -> list[str]:
        """What the GPUs do, over the step: those that sample, and those that only train."""
        samplers, trainers = [], []
        for column in range(WIDTH):
            moment = self.seconds * (column + 0.5) / WIDTH
            samplers.append(self._sampler_at(moment))
            trainers.append("t" if moment >= self.computing else "u" if moment < self.update else " ")
        return ["".join(samplers), "".join(trainers)] if self.ahead else ["".join(samplers)]

    def _sampler_at(self, moment: float) -> str:
        if moment >= self.computing:
            return "t"
        if moment >= self.sampling:
            return " " if self.ahead else "u"
        active = [
            engine.activity[bisect(engine.activity, (moment, self.slots)) - 1][1]
            for engine in self.engines
            if moment < engine.seconds
        ]
        return BARS[ceil(sum(active) / (self.slots * len(self.engines)) * (len(BARS) - 1))] if any(active) else "r"


WAYS = (("in turns", False, False), ("in turns, streamed", False, True), ("ahead", True, False),
        ("ahead, streamed", True, True))  # fmt: skip
"""Name, whether sampling and update overlap, whether trees are searched while they are sampled."""


@dataclass(frozen=True)
class Gpus:
    """Which GPUs do what."""

    all: int
    train: int
    """Those that train while the others sample, with sampling ahead."""
    engine: int
    """GPUs of an engine."""


def plan(
    shape: Shape, rates: dict[bool, Rates], gpus: Gpus, service: Service, sync: float, staleness: int = 1, seed: int = 0
) -> None:
    """Print a row for each way to run a step, and the time line of each. `rates`: by whether sampling is ahead."""
    waits = ("tail", "retrieval", "sampling", "update", "transfer")
    print(f"\n{shape.questions} questions a step, shares of the GPU time idle, most searches at a time")
    print(f"{'':18}{'s a step':>9}{'idle':>6}" + "".join(f"{name:>10}" for name in waits) + f"{'searches':>10}")
    lines = []
    for name, ahead, streamed in WAYS:
        if (ahead and gpus.all < 2) or (streamed and not ahead and gpus.engine > 1):
            continue
        engine_rates, trainers = rates[ahead], gpus.train if ahead else gpus.all
        samplers = (gpus.all - gpus.train if ahead else gpus.all) // gpus.engine
        rollout = Rollout(shape, engine_rates, samplers, trainers if ahead else samplers, service, streamed, seed)
        engines = rollout.run()
        update = shape.questions * shape.packed_tokens() / engine_rates.update / trainers
        step = Step(engines, trainers, staleness if ahead else 0, engine_rates.slots, update, sync, gpus.engine)
        idle = step.idle()
        columns = "".join(f"{idle[wait]:10.0%}" for wait in waits)
        print(f"{name:18}{step.seconds:9.0f}{sum(idle.values()):6.0%}{columns}{rollout.max_searches:10}")
        lines += [f"{'' if number else name:18} |{line}|" for number, line in enumerate(step.time_lines())]
    print("\n".join(lines))


Row = dict[str, float]
"""What a run measured of a step."""


def read_run(folder: Path) -> tuple[dict[str, Any], list[Row]]:
    """The config of a run, and its steps."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row.get("tokens/sampled")]
    return yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), rows


@dataclass(frozen=True)
class Measured:
    """Rates of a run on CPUs: medians over its steps of seconds by amount."""

    token: float
    """Seconds of generation, by sampled token."""
    search: float
    update: float
    """Seconds, by packed token."""
    besides: float
    """Seconds of a step besides generation, retrieval and update; sampling ahead goes on meanwhile."""

    @classmethod
    def of(cls, rows: list[Row], staleness: int) -> "Measured":
        computed = overlapped(
            [row["seconds/generate"] + row["seconds/retrieve"] for row in rows],
            [row["seconds/update"] for row in rows],
            staleness,
        )

        def seconds_by(activity: str, amount: str) -> float:
            return median([row[f"seconds/{activity}"] / row[amount] for row in rows if row[amount]] or [0.0])

        return cls(
            seconds_by("generate", "tokens/sampled"),
            seconds_by("retrieve", "searches"),
            seconds_by("update", "tokens/packed"),
            median(row["seconds/step"] - seconds for row, seconds in zip(rows, computed, strict=True)),
        )

    def predict(self, rows: list[Row], config: dict[str, Any]) -> list[float]:
        """Seconds of each step of a run, with the tokens and searches of its rows."""
        return overlapped(
            [self._sampling(row, config) for row in rows],
            [self.update * row["tokens/packed"] + self.besides for row in rows],
            staleness_of(config),
        )

    def _sampling(self, row: Row, config: dict[str, Any]) -> float:
        branching, questions = tuple(config["rollout"]["branching"]), config["train"]["questions_per_step"]
        answer = row["tokens/sampled"] / (questions * sum(accumulate(branching, mul)))
        shape = Shape(questions, branching, 0, (answer,) * len(branching), 0, 1.0, 0.0)
        rates = Rates(0.0, self.token, float("inf"), config["rollout"]["micro_batch"], 0.0)
        service = Service(self.search * row["searches"] / len(branching))
        (engine,) = Rollout(shape, rates, 1, 1, service, False).run()
        return engine.seconds


def staleness_of(config: dict[str, Any]) -> int:
    """train.staleness. Exits where the order of a run is not simulated."""
    train = config["train"]
    staleness = int(train.get("staleness", 0))
    if staleness > 1 and train.get("in_flight_updates"):
        raise SystemExit(
            f"train.staleness is {staleness} with train.in_flight_updates; expected at most 1 or weights that are sent "
            "between steps of sampling, the order that is simulated."
        )
    return staleness


def overlapped(sampling: list[float], update: list[float], staleness: int) -> list[float]:
    """Seconds of each step from the end of the one before it, given those of its sampling and of its update with all
    that follows."""
    if not staleness:
        return [sum(both) for both in zip(sampling, update, strict=True)]
    begun, _ = schedule(sampling, update, 0.0, staleness)
    ends = [start + seconds for start, seconds in zip(begun, update, strict=True)]
    return [end - before for before, end in pairwise([0.0, *ends])]


def check(folder: Path, rates_of: Path | None = None) -> None:
    """Predict every step of a run by the rates of another one; without one, the second half by those of the first."""
    config, rows = read_run(folder)
    source, measured = read_run(rates_of) if rates_of else (config, rows[: len(rows) // 2])
    first = 0 if rates_of else len(measured)
    if min(len(measured), len(rows) - first) < 2:
        raise SystemExit(
            f"{len(measured)} steps for the rates and {len(rows) - first} to predict; expected at least 2 of each."
        )
    rates = Measured.of(measured, staleness_of(source))
    print(
        f"rates of {len(measured)} steps: {1e3 * rates.token:.2f} ms a sampled token, {1e3 * rates.search:.2f} ms a "
        f"search, {1e3 * rates.update:.2f} ms a packed token of the update, {rates.besides:.2f} s besides"
    )
    usual = median(row["seconds/step"] for row in measured)
    for name, predicted in (("predicted", rates.predict(rows, config)), ("median step", [usual] * len(rows))):
        pairs = list(zip(predicted, rows, strict=True))[first:]
        ratios = [seconds / row["seconds/step"] for seconds, row in pairs]
        within = sum(abs(ratio - 1) <= 0.2 for ratio in ratios)
        total = sum(seconds for seconds, _ in pairs) / sum(row["seconds/step"] for _, row in pairs)
        print(
            f"{name + ' / measured':24} median {median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}; "
            f"{within} of {len(ratios)} steps within 20 %; all steps {total:.2f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="what", required=True)
    checked = commands.add_parser("run")
    checked.add_argument("folder", type=Path)
    checked.add_argument("--rates-of", type=Path, help="another run; default: the first half of this one")
    planned = commands.add_parser("plan")
    planned.add_argument("--gpus", type=int, default=8)
    planned.add_argument("--train-gpus", type=int, help="default: 5 of 8, where sampling and training overlap")
    planned.add_argument("--tensor-parallel", type=int, default=1, help="GPUs of an engine")
    planned.add_argument("--staleness", type=int, default=1, help="of the rows `ahead`: train.staleness")
    planned.add_argument("--questions", type=int, default=512)
    planned.add_argument("--model-billions", type=float, default=8.0)
    planned.add_argument("--no-reference", action="store_true", help="train.beta is 0")
    planned.add_argument("--lora", action="store_true", help="only adapters are trained")
    planned.add_argument("--prompt", type=int, default=600)
    planned.add_argument("--answer", type=int, default=300)
    planned.add_argument("--observation", type=int, default=900)
    planned.add_argument("--max-new-tokens", type=int, default=1024)
    planned.add_argument("--spread", type=float, default=0.6)
    planned.add_argument("--search-seconds", type=float, default=2.0, help="of a request, whatever its plans")
    planned.add_argument("--plan-ms", type=float, default=0.5, help="of the service, for each plan of a request")
    planned.add_argument("--services", type=int, help="default: one for eight GPUs")
    planned.add_argument("--requests", type=int, default=4, help="most of a process at a time, where it streams")
    planned.add_argument("--sync-seconds", type=float, default=3.0)
    planned.add_argument("--token-ms", type=float)
    planned.add_argument("--sequence-ms", type=float)
    planned.add_argument("--slots", type=int, default=256, help="most sequences at a time, on a GPU")
    planned.add_argument("--engine-share", type=float, default=0.28, help="of a GPU's memory, where it also trains")
    planned.add_argument("--update-tokens", type=float, help="packed tokens a second of one GPU")
    planned.add_argument("--seed", type=int, default=0, help="of the lengths")
    args = parser.parse_args()
    if args.what == "run":
        check(args.folder, args.rates_of)
        return
    answers = (args.answer, args.answer)
    longest, engine_gpus = args.max_new_tokens / args.answer, args.tensor_parallel
    train_gpus = args.train_gpus or max(1, args.gpus * 5 // 8)
    if args.gpus > 1 and ((args.gpus - train_gpus) % engine_gpus or not 0 < train_gpus < args.gpus):
        raise SystemExit(
            f"--train-gpus {train_gpus} of --gpus {args.gpus} leaves {args.gpus - train_gpus} to sample; expected a "
            f"multiple of --tensor-parallel {engine_gpus} above 0."
        )
    shape = Shape(args.questions, (4, 4), args.prompt, answers, args.observation, longest, args.spread)
    context = args.prompt + args.observation + args.answer
    rates = {}
    for ahead in (False, True) if args.gpus > 1 else (False,):
        share = OWN_GPU_SHARE if ahead else args.engine_share
        slots = slots_of(shape, args.model_billions, share, engine_gpus, args.slots)
        passes = update_passes(not args.no_reference, args.lora)
        h100 = Rates.of_h100(args.model_billions, context, slots, engine_gpus, passes)
        token = args.token_ms / 1e3 if args.token_ms is not None else h100.token
        sequence = args.sequence_ms / 1e3 if args.sequence_ms is not None else h100.sequence
        update = args.update_tokens or h100.update
        rates[ahead] = Rates(token, sequence, h100.prefill, h100.slots, update)
        print(
            f"{'ahead' if ahead else 'in turns'}: an engine decodes {slots / (token + sequence * slots):.0f} tokens a "
            f"second in {slots} slots, and a GPU updates on {update:.0f}"
        )
    services = args.services or ceil(args.gpus / 8)
    service = Service(args.search_seconds, args.plan_ms / 1e3 / services, args.requests)
    plan(shape, rates, Gpus(args.gpus, train_gpus, engine_gpus), service, args.sync_seconds, args.staleness, args.seed)


if __name__ == "__main__":
    main()
