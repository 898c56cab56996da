"""Attack a service and a trainer, and count what survives.

    python benchmarks/attack.py requests URL [--token-env NAME] [--read-seconds 20]
    python benchmarks/attack.py kills | two-trainers | rot [CONFIG [KEY=VALUE ...]]
    python benchmarks/attack.py disks | services
    python benchmarks/attack.py all --page docs/reliability.md

Every part takes --tries N and --seed S and prints one row "n tried, n survived, n lost" with what is meant by survived;
exit code 1 where something was lost. --page writes the row into the table of that page, between its marks, with the
machine and its load. `requests` attacks any running service of this project, and `kills`, `two-trainers` and `rot` the
training of any CONFIG: a packaged name, a YAML file or a run folder, whose config.yaml is meant. Index, run, evaluation
and export are made anew in a temporary folder. Without a target, and in all other parts, a service and a trainer of a
tiny corpus and policy are attacked. It needs a checkout with the extra dev.

The parts are in attack_requests.py, attack_kills.py, attack_disks.py, attack_services.py, attack_trainers.py and
attack_rot.py.
"""

import argparse
import logging
import os
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import attack_disks
import attack_kills
import attack_requests
import attack_rot
import attack_services
import attack_trainers
from attack_tally import Tally, write_row
from attack_world import World
from machine import describe
from querylect.errors import QuerylectError

PARTS = {"requests": 2000, "kills": 50, "disks": 16, "services": 18, "two-trainers": 6, "rot": 60}
"""Every part with the tries of the published table."""
ATTACKS = {
    "kills": attack_kills.attack,
    "disks": attack_disks.attack,
    "services": attack_services.attack,
    "two-trainers": attack_trainers.attack,
    "rot": attack_rot.attack,
}
"""Those on a trainer."""
TARGETS = ("requests", "kills", "two-trainers", "rot")
"""The parts that attack what the user names."""


def main() -> int:
    """Run the chosen parts; 1 where something was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=[*PARTS, "all"])
    parser.add_argument(
        "target",
        nargs="*",
        help="of `requests` the URL of a service, of `kills`, `two-trainers` and `rot` a config and overrides",
    )
    parser.add_argument("--tries", type=int, help=f"by default {PARTS}")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--token-env", help="environment variable with the service's token")
    parser.add_argument("--read-seconds", type=float, default=20.0, help="env.read_seconds of the service")
    parser.add_argument("--page", type=Path, help="write the rows into the table of this page")
    parser.add_argument("--keep", type=Path, help="a new folder for all files, which are kept there")
    args = parser.parse_intermixed_args()
    if args.target and (args.part not in TARGETS or (args.part == "requests" and len(args.target) > 1)):
        parser.error(f"{args.part} was given {' '.join(args.target)}; only {', '.join(TARGETS)} have a target")
    logging.getLogger("querylect").setLevel(logging.CRITICAL)  # what clients are refused is counted here
    machine = describe("torch", "uvicorn")
    print(machine)
    lost = 0
    with tempfile.TemporaryDirectory(prefix="attack-") as scratch, ExitStack() as cleanup:
        world = None
        if args.part != "requests" or not args.target:
            world = World(args.keep or Path(scratch) / "world", *args.target[:1], overrides=args.target[1:])
            cleanup.callback(world.service.kill)
        for part in PARTS if args.part == "all" else [args.part]:
            started, tries = time.perf_counter(), PARTS[part] if args.tries is None else args.tries
            tally = run(part, world, tries, args)
            lost += len(tally.lost)
            print(tally.row())
            print("\n".join([*(f"  LOST {what}" for what in tally.lost), *(f"  {note}" for note in tally.notes)]))
            if args.page:
                command = " ".join([part, *args.target, f"--tries {tries} --seed {args.seed}"])
                how = f"`{command}`, {time.perf_counter() - started:.0f} s on {machine}"
                write_row(args.page, tally, how, list(PARTS))
    return 1 if lost else 0


def run(part: str, world: World | None, tries: int, args: argparse.Namespace) -> Tally:
    if world is None:
        token = os.environ.get(args.token_env or "")
        return attack_requests.attack(args.target[0], token, args.read_seconds, tries, args.seed)
    if part == "requests":
        world.prepare(["index", "train"])
        read_seconds = world.config.env.read_seconds
        return attack_requests.attack(world.service.url, None, read_seconds, tries, args.seed)
    return ATTACKS[part](world, tries, args.seed)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (QuerylectError, RuntimeError) as error:  # a config or settings that cannot be attacked
        sys.exit(f"error: {error}")
