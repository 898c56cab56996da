"""The command line: what each command calls, what it prints, and how it ends."""

import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from querylect import errors
from querylect.configs.load import load_config

from ..command import end

pytestmark = pytest.mark.server

HEAVY = {"torch", "transformers", "trl", "peft", "sentence_transformers", "faiss"}
HEAVY |= {"fastapi", "uvicorn", "wandb", "numpy"}
COMMANDS = ["index build", "serve", "train", "eval"]


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
