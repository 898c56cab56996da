"""One bit flipped, or the end cut off, in every file of an index, of a run and of an evaluation, and then opened.

An index is opened by `index verify`. A run that was stopped after its last but one step goes on with --resume; the
policy of a finished one rewrites questions and is evaluated; an evaluated one is evaluated again from its journals,
and exported.
"""

import os
import random
import shutil
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from attack_tally import Tally, refusal_problems
from attack_world import World

MEANS = "refused in one sentence that names the file, or the undisturbed result; no traceback, no other figure"
IGNORED = {"training_args.bin"}
"""Files that nothing of this project reads."""
BEFORE = {
    "verify": None, "resume": "train", "rewrite": "train", "eval": "train", "eval again": "eval", "export": "eval",
}  # fmt: skip
"""The undisturbed state whose files are damaged, by what is done next."""


def attack(world: World, tries: int, seed: int) -> Tally:
    """Try as many (file, damage) pairs, drawn without repetition and alternating over what is opened; 0: all."""
    tally, draw = Tally("rot", MEANS), random.Random(seed)
    world.prepare(["index", "train", "rewrite", "eval", "export"])
    pairs = {kind: [(file, how) for file in files for how in ("flip", "cut")] for kind, files in _files(world).items()}
    for several in pairs.values():
        draw.shuffle(several)
    outcomes: Counter[tuple[str, Path, str]] = Counter()
    total = sum(map(len, pairs.values()))
    while (any(pairs.values()) and not tries) or tally.tried < min(tries, total):
        for kind, several in pairs.items():
            if several and (not tries or tally.tried < tries):
                file, how = several.pop()
                outcomes[kind, file, _damage(world, tally, kind, file, how, draw)] += 1
    tally.notes.append(f"{tally.tried} of {total} pairs of file and damage")
    for kind in pairs:
        counts = sorted((file, outcome, count) for (damage, file, outcome), count in outcomes.items() if damage == kind)
        files = [f"{file} {outcome} {count}" for file, outcome, count in counts]
        tally.notes.append(f"{kind}: {', '.join(files)}")
    return tally


def _files(world: World) -> dict[str, list[Path]]:
    """What is damaged for each kind of opening, relative to the world's folder."""

    def below(after: str, part: Path, names: Iterable[str] = ("",)) -> list[Path]:
        folder = world.undisturbed / after / part.name
        roots = [folder / name for name in names]
        paths = [path for root in roots for path in ([root] if root.is_file() else root.rglob("*"))]
        files = [path for path in paths if path.is_file() and path.stat().st_size and path.name not in IGNORED]
        return sorted(part.relative_to(world.folder) / path.relative_to(folder) for path in files)

    def top(after: str) -> list[str]:
        return [path.name for path in (world.undisturbed / after / world.run.name).iterdir() if path.is_file()]

    trained = [*top("train"), "best", "warm_start"]
    earlier = _resumable(world)
    return {
        "verify": below("index", world.index) if world.builds_index else [],
        "resume": below("train", world.run, [*trained, f"checkpoints/{earlier.name}"]) if earlier else [],
        "rewrite": below("train", world.run, [*top("train"), "final"]),
        "eval": below("train", world.run, trained),
        "eval again": below("eval", world.run, [*(set(top("eval")) - set(top("train"))), "cells"]),
        "export": below("eval", world.run, [*top("eval"), "best"]),
    }


def _resumable(world: World) -> Path | None:
    """The latest checkpoint of the undisturbed run before its last step; None where it kept none."""
    steps = {_step(path): path for path in (world.undisturbed / "train" / world.run.name / "checkpoints").glob("*-*")}
    earlier = [step for step in steps if step < world.config.train.steps]
    return steps[max(earlier)] if earlier else None


def _step(checkpoint: Path) -> int:
    return int(checkpoint.name.rpartition("-")[2])


def _damage(world: World, tally: Tally, kind: str, file: Path, how: str, draw: random.Random) -> str:
    """One try; how it ended, in a word."""
    world.restore(BEFORE[kind])
    if kind == "resume":
        shutil.rmtree(world.run / "final")
        for path in (world.run / "checkpoints").glob(f"*-{world.config.train.steps}"):
            shutil.rmtree(path)
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
    name = {"resume": "train", "eval again": "eval"}.get(kind, kind)
    with tally.attempt(
        f"{kind}: {file}: {'cut to' if how == 'cut' else 'a bit flipped at byte'} {position} of {size}"
    ) as broken:
        child = world.child(name, *(["--resume"] if kind == "resume" else []))
        code = child.wait()
        if code != 0:
            broken += refusal_problems(code, child.error(), file.name, str(path.parent))
        elif kind == "verify":
            broken.append("the damage was not found")
        else:
            broken += [f"{changed} differs without a word" for changed in world.differences(name)]
        return "lost" if broken else "no effect" if code == 0 else "refused"
    return "lost"
