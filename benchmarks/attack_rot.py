"""One byte flipped, or the end cut off, in every file of an index and of a run folder, and then opened.

An index is opened by `index verify`. A run that was stopped after its last but one step goes on with --resume; a
finished one is evaluated, and an evaluated one evaluated again, from its journals.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from attack_tally import Tally, said_in_a_sentence
from attack_world import STEPS, World

MEANS = "refused in one sentence that names the file, or the undisturbed result; no traceback, no other figure"
IGNORED = {"training_args.bin"}
"""Files that nothing of this project reads."""


def attack(world: World, tries: int, seed: int) -> Tally:
    """Try as many (file, damage) pairs, drawn without repetition and alternating over what is opened; 0: all."""
    tally, draw = Tally("rot", MEANS), random.Random(seed)
    world.prepare(["index", "train", "eval"])
    pairs = {kind: [(file, how) for file in files for how in ("flip", "cut")] for kind, files in _files(world).items()}
    for several in pairs.values():
        draw.shuffle(several)
    outcomes: Counter = Counter()
    total = sum(map(len, pairs.values()))
    while (any(pairs.values()) and not tries) or tally.tried < min(tries, total):
        for kind, several in pairs.items():
            if several and (not tries or tally.tried < tries):
                _damage(world, tally, kind, *several.pop(), draw, outcomes)
    tally.notes.append(f"{tally.tried} of {total} pairs of file and damage: {dict(outcomes)}")
    return tally


def _files(world: World) -> dict[str, list[Path]]:
    """What is damaged for each kind of opening, relative to the world's folder."""

    def below(after: str, part: Path, names: Iterator[str] | None = None) -> list[Path]:
        kept = world.undisturbed / after / part.name
        places = [kept / name for name in names] if names is not None else [kept]
        paths = [path for place in places for path in ([place] if place.is_file() else place.rglob("*"))]
        found = [path for path in paths if path.is_file() and path.stat().st_size and path.name not in IGNORED]
        return sorted(part.relative_to(world.folder) / path.relative_to(kept) for path in found)

    top = [path.name for path in (world.undisturbed / "train" / world.run.name).iterdir() if path.is_file()]
    return {
        "verify": below("index", world.index),
        "resume": below("train", world.run, iter([f"checkpoints/checkpoint-{STEPS - 1}", *top])),
        "eval": below("train", world.run, iter(["final", "config.yaml", "run.json", "base.json", "environment.json"])),
        "eval again": below("eval", world.run, iter(["cells"])),
    }


def _damage(
    world: World, tally: Tally, kind: str, file: Path, how: str, draw: random.Random, outcomes: Counter
) -> None:
    world.restore({"verify": None, "resume": "train", "eval": "train", "eval again": "eval"}[kind])
    if kind == "resume":
        shutil.rmtree(world.run / "final")
        shutil.rmtree(world.run / f"checkpoints/checkpoint-{STEPS}")
    path = world.folder / file
    size = path.stat().st_size
    position = draw.randrange(size)
    if how == "cut":
        os.truncate(path, position)
    else:
        with path.open("r+b") as opened:
            opened.seek(position)
            (byte,) = opened.read(1)
            opened.seek(position)
            opened.write(bytes([byte ^ (1 << draw.randrange(8))]))
    with tally.attempt(
        f"{kind}: {file}: {'cut to' if how == 'cut' else 'a bit flipped at byte'} {position} of {size}"
    ) as broken:
        if kind == "verify":
            child = world.child("verify")
        elif kind == "resume":
            child = world.child("train", "--resume")
        else:
            child = world.child("eval")
        code = child.wait()
        outcomes["equal" if code == 0 else "refused"] += 1
        if code != 0:
            broken += said_in_a_sentence(code, child.error(), file.name, str(path.parent))
        elif kind == "verify":
            broken.append("the damage was not found")
        else:
            broken += [
                f"{name} differs without a word" for name in world.differences("train" if kind == "resume" else "eval")
            ]
