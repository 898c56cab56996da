"""Disks that take no more, are read-only, or lose the folder of a run, while a command writes."""

import os
import random
import shutil
import subprocess
import time
from contextlib import suppress
from pathlib import Path

from attack_kills import BEFORE, COMMANDS, phase_spans
from attack_tally import Tally, refusal_problems
from attack_world import World

MEANS = "the command ends with one sentence, and given again on a good disk it reaches the undisturbed result"
LEAST_BYTES = 8000
"""Room for what the command says on stderr, which is a file here."""
MIB = 2**20


def attack(world: World, tries: int, seed: int) -> Tally:
    """Files that may not grow, a full tmpfs, a folder made read-only and a folder removed, in turn."""
    tally, draw = Tally("disks", MEANS), random.Random(seed)
    marks = world.prepare()
    kinds = ["limit", "removed"]
    disk = world.folder / "runs"
    if _mount(disk, "size=64m", "tmpfs"):
        kinds = ["limit", "full", "read-only", "removed"]
    else:
        tally.notes.append("no right to mount a tmpfs: full and read-only file systems were not tried")
    try:
        for number in range(tries):
            kind = kinds[number % len(kinds)]
            if kind == "limit":
                command = draw.choice(list(BEFORE))
                growth = max(_largest(world, command), LEAST_BYTES + 1) / LEAST_BYTES
                _limited(world, tally, command, int(LEAST_BYTES * growth ** draw.random()))
            elif kind == "full":
                _full(world, tally, disk, draw.uniform(0.05, 0.95))
            else:
                phase = draw.choice([phase for phase in COMMANDS if COMMANDS[phase] == "train"])
                _folder_lost(world, tally, disk, kind, phase, draw, marks["train"])
    finally:
        if "full" in kinds:
            subprocess.run(["umount", "--lazy", disk], check=False)
    return tally


def _limited(world: World, tally: Tally, command: str, size: int) -> None:
    world.restore(BEFORE[command])
    if command == "index":
        world.remove_index()
    with tally.attempt(f"{command}, no file over {size} bytes") as broken:
        child = world.child(command, limit=size)
        code = child.wait()
        if code != 0:
            broken += refusal_problems(code, child.error(), str(world.folder))
        _again(world, command, broken)


def _full(world: World, tally: Tally, disk: Path, share: float) -> None:
    page = os.sysconf("SC_PAGE_SIZE")
    paths = (world.undisturbed / "train" / world.run.name).rglob("*")
    size = int(share * sum(-(-path.stat().st_size // page) * page for path in paths if path.is_file()))
    world.restore(None)
    _mount(disk, f"remount,size={max(size, page)}")
    with tally.attempt(f"train on a disk of {size} bytes") as broken:
        try:
            child = world.child("train")
            code = child.wait()
            if code != 0:
                broken += refusal_problems(code, child.error(), str(world.folder))
                broken += [f"{path} was left" for path in world.leftovers()]
        finally:
            _mount(disk, "remount,size=64m")
        _again(world, "train", broken)


def _folder_lost(
    world: World, tally: Tally, disk: Path, kind: str, phase: str, draw: random.Random, marks: list[tuple[float, str]]
) -> None:
    world.restore(None)
    spans = phase_spans(marks, phase)
    number = draw.randrange(len(spans))
    moment = draw.random() * spans[number]
    child = world.child("train")
    with tally.attempt(f"{kind} in {phase} {number + 1} after {moment:.2f} s") as broken:
        try:
            child.wait_for_mark(phase, number + 1)
            time.sleep(moment)
            if kind == "removed":
                moved = world.run.with_name("gone")  # at once: a file that is written meanwhile would keep its folder
                with suppress(FileNotFoundError):
                    shutil.rmtree(world.run.rename(moved), ignore_errors=True)
            elif not _mount(disk, "remount,ro"):
                # Linux refuses that while a file is open for writing; a bind mount does it at any time
                _mount(disk, "remount,ro,bind")
            code = child.wait()
            if code != 0:
                broken += refusal_problems(code, child.error(), str(world.folder))
            elif kind == "removed" and world.differences("train"):
                broken.append("it ended with 0 without its results")
        finally:
            if kind == "read-only":
                _mount(disk, "remount,rw")
                _mount(disk, "remount,rw,bind")
        _again(world, "train", broken)


def _again(world: World, command: str, broken: list[str]) -> None:
    if not world.differences(command):
        return
    again = world.again(command)
    code = again.wait()
    if code != 0:
        broken.append(f"again: exit code {code}: {again.error().strip()[-300:]}")
    broken += [f"{path} differs" for path in world.differences(command)]


def _mount(mount_point: Path, options: str, *what: str) -> bool:
    mount_point.mkdir(exist_ok=True)
    command = ["mount", *(["-t", "tmpfs"] if what else []), "-o", options, *what, str(mount_point)]
    return os.getuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0


def _largest(world: World, command: str) -> int:
    part = {"index": world.index, "export": world.exported}.get(command, world.run)
    paths = (world.undisturbed / command / part.name).rglob("*")
    return max(path.stat().st_size for path in paths if path.is_file())
