"""Each part of benchmarks/attack.py once: what it counts, what it writes, and that a break is counted as lost."""

import sys
from importlib import import_module
from pathlib import Path

import httpx
import pytest
from querylect.configs.load import load_config
from querylect.errors import ConfigError

from ..raising import refused

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture(scope="module", autouse=True)
def _importable():
    """The benchmarks, which are scripts beside each other."""
    sys.path.insert(0, str(BENCHMARKS))
    yield
    sys.path.remove(str(BENCHMARKS))


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    from attack_world import World

    world = World(tmp_path_factory.mktemp("attack") / "world")
    yield world
    world.service.kill()


PARTS = [("attack_kills", 9), ("attack_disks", 4), ("attack_services", 3), ("attack_trainers", 1), ("attack_rot", 6)]


@pytest.mark.parametrize(("part", "tries"), PARTS)
def test_a_part_survives(world, part, tries):
    """Worth its minutes: real processes die in every phase, and each ends at the bytes of the undisturbed one."""
    tally = import_module(part).attack(world, tries, seed=3)
    assert (tally.tried, tally.lost) == (tries, [])


def test_what_differs_from_the_undisturbed_is_lost(world):
    from attack_tally import Tally

    marks = world.prepare(["index", "train"])
    assert {name for _, name in marks["train"]} >= {"warm start", "rollout", "update", "checkpoint", "validation"}
    world.restore("train")
    assert world.differences("train") == []
    with (world.run / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 5}\n')
    (world.run / "final/adapter_model.safetensors").unlink()
    assert world.differences("train") == ["final/adapter_model.safetensors", "metrics.jsonl"]
    tally = Tally("kills", "…")
    with tally.attempt("rollout 1") as broken:
        broken += world.differences("train")
    assert len(tally.lost) == 1


def test_kills_and_rot_take_a_config_of_the_user(tmp_path):
    from attack_world import World

    tiny = World(tmp_path / "tiny")
    world = World(tmp_path / "named", str(tiny.yaml), ["client.urls=local", "train.steps=2", "name=mine"])
    for part, tries in (("attack_kills", 1), ("attack_rot", 2)):
        tally = import_module(part).attack(world, tries, seed=3)
        assert (tally.tried, tally.lost) == (tries, [])
    assert not tiny.run.exists()


@pytest.fixture
def yaml(tmp_path):
    """A run folder of the user."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/config.yaml").write_text(
        f"name: mine\noutput: {tmp_path}\nenv: {{index: {tmp_path}/index}}\npolicy: {{model: org/name}}\n"
    )
    return tmp_path / "mine/config.yaml"


def test_a_config_of_the_user_is_run_in_a_folder_of_the_attack(yaml, tmp_path):
    from attack_world import World

    for name in (yaml, yaml.parent):
        world = World(tmp_path / "attack", str(name), ["train.steps=3"])
        config = load_config(str(world.yaml))
        assert (config.train.steps, config.name, config.policy.model) == (3, "mine", "org/name")
        assert (config.output, config.env.index) == (str(tmp_path / "attack/runs"), str(tmp_path / "attack/index"))
        assert world.builds_index
        assert world.command("eval") == ["eval", str(tmp_path / "attack/runs/mine")]
    assert not World(tmp_path / "attack", str(yaml), ["client.urls=[http://a:1]"]).builds_index
    with refused(ConfigError, "mix"):
        World(tmp_path / "attack", "mix_bm25_minilm")


def test_training_that_does_not_repeat_is_refused_before_it_is_attacked(yaml, tmp_path, monkeypatch):
    import attack_world

    runs = []

    class Trained:
        started, stdout = 0.0, tmp_path / "stdout"

        def __init__(self, arguments, *_):
            runs.append(arguments)
            final = tmp_path / "attack/runs/mine/final"
            final.mkdir(parents=True)
            (final / "adapter_model.safetensors").write_bytes(bytes([len(runs)]))

        def wait(self):
            return 0

        def marks(self):
            return []

    Trained.stdout.touch()
    monkeypatch.setattr(attack_world, "Child", Trained)
    with pytest.raises(RuntimeError, match=r"final/adapter_model\.safetensors"):
        attack_world.World(tmp_path / "attack", str(yaml)).prepare(["train"])
    assert len(runs) == 2


def test_a_part_without_a_target_refuses_one(monkeypatch, capsys):
    from attack import main

    for arguments in (["disks", "demo"], ["all", "demo"], ["requests", "http://a", "train.steps=3"]):
        monkeypatch.setattr(sys, "argv", ["attack.py", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == 2
        assert " ".join(arguments[1:]) in capsys.readouterr().err


def test_a_refusal_is_a_sentence_with_a_name_and_an_exit_code():
    from attack_tally import refusal_problems

    assert refusal_problems(2, "error: a/b.json is damaged", "b.json") == []
    for code, error in (
        (0, "b.json"),
        (None, ""),
        (-11, "b.json"),
        (2, "error: something"),
        (1, "Traceback …\nb.json"),
    ):
        assert refusal_problems(code, error, "b.json"), (code, error)


def test_a_service_survives_hostile_requests_and_one_that_answers_wrong_does_not(lessons, run_app):
    from attack_requests import attack
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    config = lessons.model_copy(update={"read_seconds": 2.0})  # which slow senders are waited for
    with run_app(create_app(Environment.open(config), config)) as url:
        tally = attack(url, None, read_seconds=config.read_seconds, tries=60, seed=1)
    assert tally.tried >= 60
    assert tally.lost == []

    app, answered = create_app(Environment.open(config), config), 0

    async def other_rewards(scope, receive, send):
        nonlocal answered
        answered += scope.get("path") == "/v1/step"

        async def changed(message):
            if message["type"] == "http.response.body" and scope["path"] == "/v1/step" and answered > 40:
                message = {**message, "body": message["body"].replace(b'"reward":', b'"Reward":')}
            await send(message)

        await app(scope, receive, changed if scope["type"] == "http" else send)

    with run_app(other_rewards) as url:
        lost = attack(url, None, read_seconds=config.read_seconds, tries=30, seed=1).lost
    assert any(what.startswith("beside: answered 200") for what in lost)
    assert any(what.startswith("pipelined: ") for what in lost)


def test_a_row_is_written_into_the_table_of_a_page_in_place_of_the_earlier_one(tmp_path):
    from attack_tally import BEGIN, END, Tally, write_row

    page = tmp_path / "page.md"
    page.write_text(f"# Page\n\n{BEGIN}\n{END}\n\nafter\n")
    for tally, how in (
        (Tally("rot", "a | b", tried=2, lost=["x"]), "first"),
        (Tally("kills", "same", tried=9), "one"),
        (Tally("rot", "a | b", tried=3, lost=["x", "x"]), "second"),
    ):
        write_row(page, tally, how, ["kills", "disks", "rot"])
    rows = [line for line in page.read_text().splitlines() if line.startswith("|")][2:]
    assert rows == ["| kills | 9 | 9 | 0 | same | one |", "| rot | 3 | 1 | 2 | a \\| b | second |"]
    assert [line for line in page.read_text().splitlines() if line.startswith("- ")] == ["- rot: x (2 times)"]
    assert page.read_text().endswith(f"{END}\n\nafter\n")


def test_a_url_without_a_service_is_refused(run_app):
    from attack_requests import GoodRequest

    async def nothing(scope, receive, send):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    with run_app(nothing) as url, pytest.raises(httpx.HTTPStatusError):
        GoodRequest.from_service(url, {})
