"""A second process on the folder of a living run: it must be refused, and the first must notice nothing.

The first is frozen (SIGSTOP) at a random moment while the second tries, so that it cannot be over before.
"""

import random
import signal
import time

from attack_kills import COMMANDS, phase_spans
from attack_tally import Tally, refusal_problems
from attack_world import World

MEANS = "the second ends with a sentence and an exit code other than 0, and the first reaches the undisturbed result"
SECONDS = {"train": ["train"], "train --resume": ["train", "--resume"], "eval": ["eval"]}


def attack(world: World, tries: int, seed: int) -> Tally:
    """A second train, a --resume and an eval in turn."""
    tally, draw = Tally("two-trainers", MEANS), random.Random(seed)
    marks = world.prepare(["index", "train"])["train"]
    phases = [phase for phase in COMMANDS if phase_spans(marks, phase)]
    for number in range(tries):
        second = list(SECONDS)[number % len(SECONDS)]
        phase = draw.choice(phases)
        spans = phase_spans(marks, phase)
        at = draw.randrange(len(spans))
        world.restore(None)
        first = world.child("train")
        first.wait_for_mark(phase, at + 1)
        time.sleep(draw.random() * spans[at])
        first.send(signal.SIGSTOP)
        with tally.attempt(f"{second} beside a run in {phase} {at + 1}") as broken:
            try:
                name, *more = SECONDS[second]
                second_process = world.child(name, *more, beside=True)
                code = second_process.wait(120)
                broken += [f"the second: {what}" for what in refusal_problems(code, second_process.error())]
            finally:
                first.send(signal.SIGCONT)
            code = first.wait()
            if code != 0:
                broken.append(f"the first: exit code {code}: {first.error().strip()[-300:]}")
            broken += [f"{path} differs" for path in world.differences("train")]
    return tally
