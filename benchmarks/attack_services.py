"""A service stopped, killed, restarted or swapped for another one while a trainer and a client use it.

Every reward that the trainer records, and every one that the client takes, is computed again from the right index and
judgements.
"""

import json
import random
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

from attack_judge import judge_answers, judge_run
from attack_kills import COMMANDS, phase_spans
from attack_service import Service
from attack_tally import Tally, refusal_problems
from attack_world import World
from querylect.configs.load import dump_config
from querylect.configs.schema import RunConfig
from querylect.envs.client.client import SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.errors import QuerylectError

MEANS = (
    "no reward is wrong, and the run reaches the undisturbed result: by itself, or with --resume after it refused "
    "another service in one sentence"
)
KINDS = ("stopped", "killed", "restarted", "other index", "other judgements", "resumed with other judgements")
OTHER = ("other index", "other judgements", "resumed with other judgements")
IN_FLIGHT_SECONDS = 5.0
"""How long a frozen service waits for a request to die with."""
STOPPED_SECONDS = (0.5, 8.0)
"""Beyond client.timeout at times."""


def attack(world: World, tries: int, seed: int) -> Tally:
    """The kinds in turn, each at a random moment of training after its first rollout began."""
    tally, draw = Tally("services", MEANS), random.Random(seed)
    marks = world.prepare(["index", "train"])["train"]
    environment = Environment.open(world.config.env)
    yamls = {kind: other_settings(world, kind) for kind in OTHER[:2]}
    yamls[OTHER[2]] = yamls[OTHER[1]]
    phases = [phase for phase in COMMANDS if COMMANDS[phase] == "train" and phase != "warm start"]
    compared: Counter = Counter()
    for number in range(tries):
        kind, phase = KINDS[number % len(KINDS)], draw.choice(phases)
        spans = phase_spans(marks, phase)
        at = draw.randrange(max(1, len(spans) - 1))  # not in the last: there would be nothing left to ask
        world.restore(None)
        over, beside = threading.Event(), list[str]()
        clients = threading.Thread(
            target=_ask_meanwhile, args=(world, environment, random.Random(number), over, beside, compared)
        )
        clients.start()
        child = world.child("train")
        with tally.attempt(f"{kind} in {phase} {at + 1}") as broken:
            try:
                child.wait_for_mark(phase, at + 1)
                time.sleep(draw.random() * spans[at])
                if kind.startswith("resumed"):
                    child.send(signal.SIGKILL)
                    child.wait()
                _disturb(world.service, kind, yamls.get(kind), draw)
                if kind.startswith("resumed"):
                    child = world.again("train")
                code = child.wait()
            finally:
                over.set()
                clients.join()
                if kind in OTHER:
                    world.service.kill()
                    world.service.start(world.yaml)
            broken += sorted(set(beside))[:2]
            _judge(world, environment, broken, compared)
            if code != 0 and kind in OTHER:
                broken += refusal_problems(code, child.error())
                again = world.again("train")
                code = again.wait()
                _judge(world, environment, broken, compared)
            if code != 0:
                broken.append(f"exit code {code}: {child.error().strip()[-300:]}")
            elif not broken:
                broken += [f"{path} differs" for path in world.differences("train")]
    tally.notes.append(f"rewards computed again: {dict(compared)}")
    return tally


def other_settings(world: World, kind: str) -> Path:
    """A config file of a service on the same port with another corpus and index, or other judgements."""
    data = world.folder / kind.replace(" ", "-")
    shutil.copytree(world.config.env.dataset.path, data)
    plain = world.config.model_dump()
    plain["env"]["dataset"]["path"] = str(data)
    if kind == "other index":
        plain["env"]["index"] = str(data / "index")
        with (data / "corpus.jsonl").open("a", encoding="utf-8") as corpus:
            corpus.writelines(
                json.dumps({"_id": f"e{n}", "title": "blood", "text": "statin blood head"}) + "\n" for n in range(9)
            )
    else:
        for qrels in (data / "qrels").iterdir():
            lines = qrels.read_text().splitlines()
            ids = [line.split("\t")[1] for line in lines[1:]]
            turned = [line.split("\t") for line in lines[1:]]
            rows = [
                "\t".join([query, document, grade])
                for (query, _, grade), document in zip(turned, ids[1:] + ids[:1], strict=True)
            ]
            qrels.write_text("\n".join([lines[0], *dict.fromkeys(rows)]) + "\n")
    path = world.folder / f"{data.name}.yaml"
    path.write_text(dump_config(RunConfig.model_validate(plain)))
    if kind == "other index":
        world.build(path)
    return path


def _disturb(service: Service, kind: str, other_config: Path | None, draw: random.Random) -> None:
    if kind == "stopped":
        service.send(signal.SIGSTOP)
        time.sleep(draw.uniform(*STOPPED_SECONDS))
        service.send(signal.SIGCONT)
    elif kind == "restarted":
        service.stop()
        service.start()
    else:
        if not kind.startswith("resumed"):  # then nobody would ask
            service.kill_in_flight(IN_FLIGHT_SECONDS)
        service.kill()
        service.start(other_config)


def _ask_meanwhile(
    world: World,
    environment: Environment,
    draw: random.Random,
    over: threading.Event,
    wrong: list[str],
    compared: Counter,
) -> None:
    """One client with a short deadline: what it takes must be right; a refusal or an outage is no reward."""
    settings = world.config.client.model_copy(update={"deadline": 2.0, "timeout": 2.0})
    with SyncEnvironmentClient(settings, [world.service.url]) as client:
        while not over.wait(0.2):
            try:
                taken, broken = judge_answers(environment, client, 4, draw)
            except QuerylectError as error:
                compared[f"client: {type(error).__name__}"] += 1
                continue
            compared["client"] += taken
            wrong += broken


def _judge(world: World, environment: Environment, broken: list[str], compared: Counter) -> None:
    number, wrong = judge_run(world.run, world.config, environment)
    compared["trainer"] += number
    broken += wrong[:2]
    if len(wrong) > 2:
        broken.append(f"and {len(wrong) - 2} more like that")
