"""kill -9 at random moments of every phase, then the same command again: the result must be the undisturbed one."""

import itertools
import random
import signal
import time

from attack_tally import Tally
from attack_world import World

MEANS = "after the same command again every weight, record and file equals the undisturbed, times aside"
COMMANDS = {
    "index parts": "index", "index merge": "index", "warm start": "train", "rollout": "train", "update": "train",
    "checkpoint": "train", "validation": "train", "eval": "eval", "export": "export",
}  # fmt: skip
BEFORE = {"index": None, "train": None, "eval": "train", "export": "eval"}
"""The undisturbed state that each command starts from."""


def attack(world: World, tries: int, seed: int) -> Tally:
    """Kill so many times, the phases in turn."""
    tally, draw = Tally("kills", MEANS), random.Random(seed)
    marks = world.prepare()
    phases = [phase for phase in COMMANDS if phase_spans(marks.get(COMMANDS[phase], []), phase)]
    tally.notes.append(f"phases in turn: {', '.join(phases)}")
    while tally.tried < tries:
        phase = phases[tally.tried % len(phases)]
        command = COMMANDS[phase]
        spans = phase_spans(marks[command], phase)
        number = draw.randrange(len(spans))
        moment = draw.random() * spans[number]
        world.restore(BEFORE[command])
        if command == "index":
            world.remove_index(parts_only=draw.random() < 0.5)
        child = world.child(command)
        if not child.wait_for_mark(phase, number + 1):
            raise RuntimeError(f"{command} ended before {phase} {number + 1}: {child.error()[-500:]}")
        time.sleep(moment)
        child.send(signal.SIGKILL)
        if child.wait() != -signal.SIGKILL:
            continue  # it was faster than the undisturbed one and over already
        with tally.attempt(f"{phase} {number + 1} after {moment:.2f} s") as broken:
            again = world.again(command)
            code = again.wait()
            if code != 0:
                ended = "it did not end in time" if code is None else f"exit code {code}"
                broken.append(f"{ended}: {again.error().strip()[-300:]}")
            broken += [f"{path} differs" for path in world.differences(command)]
            broken += [f"{path} was left" for path in world.leftovers()]
    return tally


def phase_spans(marks: list[tuple[float, str]], phase: str) -> list[float]:
    """Seconds of every occurrence of a phase, each until the next mark."""
    return [after[0] - at for (at, name), after in itertools.pairwise(marks) if name == phase]
