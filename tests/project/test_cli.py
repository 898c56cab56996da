"""The command line: what each command calls, what it prints, and how it ends."""

import json
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from querylect import errors
from querylect.configs.load import load_config

from ..command import end, mistake

pytestmark = pytest.mark.server

HEAVY = {"torch", "transformers", "trl", "peft", "sentence_transformers", "faiss"}
HEAVY |= {"fastapi", "uvicorn", "wandb", "numpy"}
COMMANDS = ["index build", "index merge", "index verify", "serve", "train", "eval"]


def test_the_run_folder_is_printed_where_a_tracker_turned_the_output_away(monkeypatch, capsys):
    from querylect.train import run

    def train(config, resume, trust):
        monkeypatch.setattr(sys, "stdout", sys.stderr)
        return Path("runs/tiny")

    monkeypatch.setattr(run, "train", train)
    assert end("train", "tiny") == 0
    assert capsys.readouterr().out == "runs/tiny\n"


def in_a_process(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)


def test_configs_help_version_and_dry_runs_load_nothing_heavy():
    done = in_a_process("""
        import sys
        from querylect.configs.load import load_config
        load_config("demo", [])
        print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
        from querylect.cli import main
        for arguments in (["--help"], ["--version"], ["train", "--help"], ["train", "--dry-run"]):
            try:
                main(arguments)
            except SystemExit as stop:
                assert not stop.code, stop.code
        print(*sorted({name.split(".")[0] for name in sys.modules}), file=sys.stderr)
    """)
    assert done.returncode == 0, done.stderr
    for_config, for_commands = (set(line.split()) for line in done.stderr.splitlines())
    assert {"pydantic", "ruamel"} <= for_config
    assert not {*HEAVY, "typer", "httpx"} & for_config
    assert not HEAVY & for_commands


def test_help_names_every_command(capsys):
    assert end("--help") == 0
    stdout = capsys.readouterr().out
    for command in ("index", "serve", "train", "eval", "report", "rewrite"):
        assert f" {command} " in stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_a_dry_run_prints_a_config_that_loads_back_equal(command, capsys, tmp_path):
    assert end(*command.split(), "tiny", "train.steps=5", "policy.lora=null", "--dry-run") == 0
    printed = tmp_path / "printed.yaml"
    printed.write_text(capsys.readouterr().out)
    expected = load_config("tiny", ["train.steps=5", "policy.lora=null"])
    assert load_config(str(printed), []) == expected
    assert expected.train.steps == 5


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        (["train.questions_per_micro_batch=7"], "train.questions_per_micro_batch 7"),
        (["policy.lora=null", "policy.dtype=bfloat16"], "policy.dtype=auto"),
        (["train.staleness=1", "rollout.engine=vllm"], "train.staleness"),
        (["paper_contriever", "train.questions_per_step=12"], "12 is shared by 8 processes"),
    ],
)
def test_a_dry_run_of_training_refuses_settings_that_contradict_each_other(changes, fact, capsys):
    assert end("train", *changes, "--dry-run") == 2
    assert fact in capsys.readouterr().err


def test_a_dry_run_of_training_is_checked_for_the_processes_of_its_launcher(monkeypatch, capsys):
    twelve = ("train", "paper_contriever", "train.questions_per_step=12", "--dry-run")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert end(*twelve) == 0
    monkeypatch.setenv("ACCELERATE_USE_FSDP", "true")
    assert end(*twelve) == 2
    assert "FSDP" in capsys.readouterr().err


def test_index_build_missing_skips_existing_and_remote_indexes(replace_function, tmp_path):
    """A job that starts again: one of three indexes is built, one is searched elsewhere."""
    calls = replace_function("envs.build", "build_index", SimpleNamespace(documents=9000))
    members = {name: {"env": {"index": str(tmp_path / name)}} for name in ("built", "missing", "elsewhere")}
    members["elsewhere"]["client"] = {"urls": ["http://node-b:8000"]}
    (tmp_path / "built").mkdir()
    (tmp_path / "built" / "meta.json").touch()
    overrides = [f"mix={json.dumps({'environments': members})}"]
    assert end("index", "build", "tiny", *overrides, "--missing") == 0
    assert [arguments[0].index for arguments, _ in calls] == [str(tmp_path / "missing")]
    assert end("index", "build", "tiny", *overrides) == 0
    assert len(calls) == 4
    assert end("index", "build", "tiny", "--missing", "--shard", "1/2") == 2


@pytest.mark.parametrize(("secret", "token"), [("s3cret", "s3cret"), ("", None)])
def test_serve_takes_the_token_from_the_named_variable(secret, token, replace_function, monkeypatch, capsys):
    monkeypatch.setenv("MY_TOKEN", secret)
    calls = replace_function("envs.server.serve", "serve", lambda env, ready, **options: ready("http://127.0.0.1:4711"))
    assert end("serve", "tiny", "client.token_env=MY_TOKEN") == 0
    (args, options) = calls[0]
    assert args == (load_config("tiny", []).env,)
    assert options["token"] == token
    assert capsys.readouterr().out == "http://127.0.0.1:4711\n"


def test_eval_of_a_folder_without_a_config_is_the_users_mistake(tmp_path, capsys):
    assert mistake("eval", str(tmp_path)) is errors.ConfigError
    assert str(tmp_path) in capsys.readouterr().err


@pytest.mark.parametrize(("kind", "code"), [(errors.ConfigError, 2), (errors.StorageError, 1)])
def test_an_error_of_ours_is_one_sentence_and_its_exit_code(kind, code, replace_function, capsys):
    def fail(config, resume, trust):
        raise kind("the disk is full; free 2 GiB")

    replace_function("train.run", "train", fail)
    assert end("train", "tiny") == code
    printed = capsys.readouterr()
    assert printed.err == "error: the disk is full; free 2 GiB\n"
    assert printed.out == ""


def test_any_other_error_shows_its_traceback_and_asks_for_a_report(replace_function, capsys):
    def fail(config, resume, trust):
        raise EOFError("nobody expected this")

    replace_function("train.run", "train", fail)
    assert end("train", "tiny") == 1
    printed = capsys.readouterr().err
    assert "Traceback" in printed
    assert "EOFError: nobody expected this" in printed
    assert "please report it" in printed.splitlines()[-1]


def test_ctrl_c_ends_training_with_130_and_one_line_of_one_process(replace_function, capsys, monkeypatch):
    def interrupt(config, resume, trust):
        raise KeyboardInterrupt

    replace_function("train.run", "train", interrupt)
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        assert end("train", "tiny") == 130
    printed = capsys.readouterr().err
    assert "--resume" in printed
    assert printed.count("\n") == 1


def test_a_real_sigint_ends_the_process_with_130():
    child = subprocess.Popen(
        [
            sys.executable,
            "-c",
            textwrap.dedent("""
                import sys, threading, types
                from querylect.cli import main
                def train(config, resume, trust):
                    print("training", flush=True)
                    threading.Event().wait()
                sys.modules["querylect.train.run"] = types.SimpleNamespace(train=train)
                main(["train", "tiny"])
            """),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with child:
        assert child.stdout.readline() == "training\n"
        child.send_signal(signal.SIGINT)
        _, printed = child.communicate(timeout=60)
    assert child.returncode == 130
    assert printed.startswith("Interrupted")
    assert printed.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["train", "--resum"], ["--resum"]),
        (["train", "demo", "train.stps=1"], ["'train.stps=1'", "train.steps"]),
        (["train", "demo", "tiny"], ["'tiny'", "key=value"]),
        (["eval"], ["SPEC|RUN"]),
    ],
)
def test_what_the_user_mistyped_ends_with_2(arguments, facts, capsys):
    assert end(*arguments) == 2
    printed = capsys.readouterr()
    assert all(fact in printed.err for fact in facts), printed.err
    assert "Traceback" not in printed.err


def test_logging_shows_our_information_and_only_warnings_of_others():
    done = in_a_process("""
        import logging, sys
        from querylect.logs import set_up_logging
        set_up_logging()
        logging.getLogger("httpx").setLevel(logging.DEBUG)  # as some libraries do for themselves
        for name in ("querylect.train.run", "httpx"):
            for level in (logging.DEBUG, logging.INFO, logging.WARNING):
                logging.getLogger(name).log(level, "%s at %d", name, level)
        set_up_logging(verbose=True)
        logging.getLogger("querylect.cli").debug("now details")
        logging.getLogger("httpx").debug("not these")
    """)
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "querylect.train.run at 20",
        "warning (querylect.train.run): querylect.train.run at 30",
        "warning (httpx): httpx at 30",
        "debug (querylect.cli): now details",
    ]
