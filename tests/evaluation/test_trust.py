"""A run folder or an export from elsewhere is data: without --trust it runs no code, asks no host, reads no variable
and no file outside, in any command; with --trust it does. What the user made is used as it is."""

import hashlib
import http.server
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from querylect.cli import main
from querylect.configs.environment import EnvironmentConfig
from querylect.configs.load import dump_config, known_configs, load_config
from querylect.configs.run_settings import load_run_config
from querylect.configs.schema import RunConfig
from querylect.configs.trust import is_own_run, untrusted_in
from querylect.envs.builder.build import build_index
from querylect.envs.index.manifest import INDEX
from querylect.errors import CheckpointError, ConfigError
from querylect.inference.load import open_trained
from querylect.inference.rewriter import Rewriter
from querylect.train.run_folder import RunFolder

from ..hub import answered_by
from ..lessons import change
from ..raising import refused
from ..unit.test_hub_strangers import LLM, OBEYED_BY_NOBODY, exported, write
from ..used import make_own, select_turn

SECRET = "the token of another service"


@pytest.fixture(scope="module")
def listening():
    """A server that answers nothing useful; its URL, and what it was asked as (path, Authorization)."""
    requests = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            requests.append((self.path, self.headers.get("Authorization")))
            self.send_error(401)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    with answered_by(Handler) as url:
        yield url, requests


@pytest.fixture
def listener(listening, monkeypatch):
    """That server without requests so far, and a secret for another one."""
    listening[1].clear()
    monkeypatch.setenv("SOMEBODYS_TOKEN", SECRET)
    return listening


@pytest.fixture(scope="module")
def contained(trained_run, speaking, lessons, tmp_path_factory):
    """A function: a copy of a run folder that holds all that it needs, and its settings."""
    config, run = trained_run
    source = Path(shutil.copytree(run, tmp_path_factory.mktemp("contained") / "run"))
    select_turn(source, 2)
    shutil.copytree(speaking, source / "model")
    shutil.copytree(lessons.index, source / "index")
    shutil.copytree(lessons.dataset.path, source / "data")
    shutil.copy(config.rewriter.prompt, source / "prompt.yaml")
    (source / "eval.jsonl").touch()  # `answers` reads what was found

    def copy(folder):
        shutil.copytree(source, folder)
        return change(
            config,
            **{
                "output": "/scratch/of/somebody",
                "client.urls": "local",
                "env.index": str(folder / "index"),
                "env.dataset.path": str(folder / "data"),
                "policy.model": str(folder / "model"),
                "rewriter.prompt": str(folder / "prompt.yaml"),
            },
        )

    return copy


def configure(folder, config):
    """Write the settings of a folder from elsewhere."""
    settings = config.model_dump(mode="json", exclude_defaults=True)
    (folder / "config.yaml").write_text(json.dumps(settings))  # JSON is YAML
    assert not is_own_run(folder)


@pytest.fixture
def stranger(contained, tmp_path):
    """A function: a run folder from elsewhere that holds all that it needs, with its settings changed."""
    folder = tmp_path / "from-elsewhere" / "run"
    config = contained(folder)

    def with_settings(**changes):
        configure(folder, change(config, **changes))
        return folder

    return with_settings


def model_code(folder, url):
    """The model's folder brings a class of its own."""
    (folder / "model" / "evil.py").write_text(f"open({str(folder.parent / 'marker')!r}, 'w')\nclass Evil: pass\n")
    path = folder / "model" / "config.json"
    values = json.loads(path.read_text()) | {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}}
    path.write_text(json.dumps(values))
    return {"policy.trust_remote_code": True}


def retriever_code(folder, url):
    """A retriever in Python, with the index that belongs to it."""
    body = "class Retriever:\n    def __init__(self, documents): pass\n    def rank(self, probes, limits): return []\n"
    (folder / "evil.py").write_text(f"open({str(folder.parent / 'marker')!r}, 'w')\n{body}")
    changes = {"env.retriever": f"python:{folder / 'evil.py'}", "env.index": str(folder / "own-index")}
    dataset = {"kind": "beir", "path": str(folder / "data")}
    env = {"dataset": dataset, **{key.removeprefix("env."): value for key, value in changes.items()}}
    build_index(EnvironmentConfig.model_validate(env))
    (folder.parent / "marker").unlink()
    return changes


def service(folder, url):
    """A service that is sent the user's questions, and a token that is for another."""
    return {"client.urls": [url], "client.token_env": "SOMEBODYS_TOKEN"}


def search_service(folder, url):
    """A search service behind the local retriever."""
    manifest = INDEX.read(folder / "index", "").model_copy(update={"engine": None})
    INDEX.write(folder / "index", manifest)
    return {"env.remote": {"url": url, "index": "x", "auth_env": "SOMEBODYS_TOKEN", "deadline": 1.0}}


def language_model(folder, url):
    """A frozen model that is sent the user's questions and a key."""
    llm = {"model": "x", "base_url": f"{url}/v1", "api_key_env": "SOMEBODYS_TOKEN", "cache": None}
    return {"rewriter.name": "hcqr", "rewriter.llm": llm}


def written_file(folder, url):
    """A file of the user's that would be opened for writing."""
    return {
        "rewriter.name": "hcqr",
        "rewriter.llm": {"model": str(folder / "model"), "cache": str(folder.parent / "marker")},
    }


def link(folder, url):
    """A link in the folder through which a file of the user's is emptied."""
    (folder.parent / "precious").write_text("precious")
    (folder / "cells").mkdir()
    (folder / "cells" / ".lock").symlink_to(folder.parent / "precious")
    return {}


NAMED = {
    model_code: "policy.trust_remote_code",
    retriever_code: "env.retriever",
    service: "client.urls",
    search_service: "env.remote.url",
    language_model: "rewriter.llm.base_url",
    written_file: "rewriter.llm.cache",
    link: "cells/.lock",
}
"""The setting that the refusal of each channel names. Others differ in their value alone: see `untrusted_in` below."""

UNUSED = {"serve": ("env", "client"), "plan": ("client",)}
"""Sections that a command does not use: it searches with what the user named."""

ASKING = ["-q", "my head hurts"]


@pytest.fixture(scope="module")
def folders(contained, listening, tmp_path_factory):
    """A folder from elsewhere for each channel; not to be changed, whatever a command is asked to do with it."""
    run_folders = {}
    for channel in NAMED:
        folder = tmp_path_factory.mktemp(channel.__name__) / "run"
        config = contained(folder)
        configure(folder, change(config, **channel(folder, listening[0])))
        run_folders[channel] = folder
    return run_folders


def command_of(name, folder, tmp_path):
    """The arguments of a command that takes the folder."""
    out = str(tmp_path / "out")
    return {
        "rewrite": ["rewrite", str(folder), *ASKING],
        "eval": ["eval", str(folder)],
        "answers": ["answers", str(folder)],
        "export": ["export", str(folder), "--to", out, "--merge-lora", "--without-evaluation"],
        "export-trec": ["env", "export-trec", str(folder), "--to", out],
        "serve": ["serve", str(tmp_path / "mine.yaml"), "--rewriter", str(folder)],
    }[name]


def refused_by(arguments, capfd):
    """What a command that must not do it writes to stderr."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    stderr = capfd.readouterr().err
    assert stop.value.code in (1, 2), stderr
    assert "--trust" in stderr
    assert SECRET not in stderr
    return stderr


def is_untouched(folder):
    precious = folder.parent / "precious"
    return not (folder.parent / "marker").exists() and (not precious.exists() or precious.read_text() == "precious")


@pytest.mark.parametrize("name", ["rewrite", "eval", "answers", "export", "export-trec", "serve"])
def test_a_folder_from_elsewhere_does_nothing_beyond_its_data_in_any_command(
    name, folders, lessons, listener, tmp_path, capfd
):
    (tmp_path / "mine.yaml").write_text(json.dumps({"env": lessons.model_dump(mode="json")}))
    for channel, folder in folders.items():
        section = NAMED[channel].partition(".")[0]
        if section in UNUSED.get(name, ()):
            continue
        stderr = refused_by(command_of(name, folder, tmp_path), capfd)
        if name != "rewrite" or section not in ("env", "client"):  # that there is nothing to search says less
            assert NAMED[channel] in stderr, channel.__name__
        assert is_untouched(folder), channel.__name__
        assert not listener[1], channel.__name__


def test_a_plan_does_nothing_beyond_the_data_of_its_runs(folders, lessons, listener, tmp_path, capfd):
    """One evaluation with a run for each channel, all of which fail."""
    of_plan = {channel: run for channel, run in folders.items() if not NAMED[channel].startswith(UNUSED["plan"])}
    out = [f"output={tmp_path / 'out'}", f"indexes={tmp_path / 'out'}", "training_free=[]"]
    runs = [part for channel, run in of_plan.items() for part in ("--run", f"{channel.__name__}={run}")]
    stderr = refused_by(["eval", "--dataset", lessons.dataset.path, "--retriever", "bm25", *runs, *out], capfd)
    results = json.loads(next(tmp_path.glob("out/*/results.json")).read_text())
    failed = {entry["system"]: entry["message"] for entry in results["failed"]}
    for channel, folder in of_plan.items():
        assert NAMED[channel] in failed[channel.__name__]
        assert "--trust" in failed[channel.__name__]
        assert is_untouched(folder), channel.__name__
    assert SECRET not in f"{stderr} {failed}"
    assert not listener[1]


@pytest.mark.parametrize("channel", [model_code, retriever_code, service, search_service, language_model, written_file])
def test_trust_on_the_very_call_uses_what_the_folder_names(channel, stranger, listener, capfd):
    url, requests = listener
    folder = stranger()
    stranger(**channel(folder, url))
    with suppress(SystemExit, Exception):  # what they name is of no use
        main(["rewrite", str(folder), *ASKING, "--trust"])
    captured = capfd.readouterr()
    if channel in (model_code, retriever_code, written_file):
        assert (folder.parent / "marker").exists(), captured
    else:
        assert {authorization for _, authorization in requests} & {f"Bearer {SECRET}", SECRET}, (requests, captured)


def test_what_the_user_sets_is_not_the_folders_word(stranger, listener, lesson_url):
    url, requests = listener
    folder = stranger(**service(stranger(), url))
    settings = [f'client.urls=["{lesson_url}"]', "client.token_env=QUERYLECT_TOKEN"]
    assert not open_trained(str(folder), settings=settings[:1]).searchable, "the folder still chooses the variable"
    trained = open_trained(str(folder), settings=settings)
    assert trained.searchable
    with Rewriter(trained) as rewriter:
        assert rewriter.rewrite("my head hurts").turn == 2
    assert not requests
    stranger(**{"rewriter.prompt": "/etc/passwd.yaml"})
    with refused(ConfigError, "rewriter.prompt=/etc/passwd.yaml", "--trust", "trust=True"):
        Rewriter.from_pretrained(folder)
    assert open_trained(str(folder), settings=["rewriter.prompt=hpo"]).config.rewriter.prompt == "hpo"


def test_a_members_own_host_is_not_covered_by_an_override_that_it_does_not_inherit(stranger, listener):
    url, _ = listener
    folder = stranger()
    (folder / "config.yaml").write_text(
        json.dumps(
            {
                "client": {"urls": ["http://10.0.0.1"]},
                "mix": {"environments": {"a": {}, "b": {"env": {"index": "b"}, "client": {"urls": [url]}}}},
            }
        )
    )
    with refused(ConfigError, f"mix.environments.b.client.urls=['{url}']") as error:
        load_run_config(folder, ["client.urls=local"])
    assert "environments.a" not in str(error.value)
    assert "10.0.0.1" not in str(error.value)
    load_run_config(folder, ["client.urls=local", "mix.environments.b.client.urls=local"])


def test_a_folder_that_names_only_its_own_files_needs_no_flag(stranger):
    with Rewriter.from_pretrained(stranger()) as rewriter:
        assert rewriter.rewrite("my head hurts", turn=1).turn == 1
        assert rewriter.rewrite("my head hurts").turn == 2, "its own index is searched"


def test_the_reader_of_a_reward_is_not_asked_by_those_who_use_the_policy(stranger):
    reader = {"model": "m", "base_url": "http://cluster:8000/v1", "api_key_env": "SOMEBODYS_TOKEN"}
    answer = {"reader": reader, "gold": "/home/somebody/right.jsonl"}
    folder = stranger(**{"reward.kind": "answer", "reward.answer": answer})
    assert load_run_config(folder).reward.answer.reader.base_url == reader["base_url"]
    assert open_trained(str(folder)).members


def test_a_folder_without_a_card_does_not_ask_its_service(stranger, listener):
    url, requests = listener
    folder = stranger(**service(stranger(), url))
    (folder / "environment.json").unlink()
    with Rewriter.from_pretrained(folder) as rewriter, refused(ConfigError, folder, "--trust"):
        rewriter.rewrite("my head hurts", turn=1)
    assert not requests


def test_an_export_names_no_code_no_path_and_no_host(tmp_path):
    chr_path = {"name": "chr", "chr": {"similarity": "/home/me/model"}}
    for values, key in (
        (exported(policy={"dtype": "float32", "trust_remote_code": True}), "policy.trust_remote_code=True"),
        (exported(lora=True, base_model="/home/me/model"), "policy.model=/home/me/model"),
        (exported(rewriter=chr_path), "rewriter.chr.similarity=/home/me/model"),
        (exported(rewriter={"name": "hcqr", "llm": {**LLM, "model": "../model"}}), "rewriter.llm.model=../model"),
    ):
        folder = write(tmp_path / "out", values)
        with refused(ConfigError, key, "--trust"):
            open_trained(str(folder))
        assert open_trained(str(folder), trust=True).name == str(folder)
    trained = open_trained(
        str(write(tmp_path / "out", exported(lora=True, base_model="/home/me/model"))),
        settings=["policy.model=acme/mine"],
    )
    assert (trained.config.policy.model, trained.base.model) == ("acme/mine", "acme/mine")
    assert open_trained(
        str(write(tmp_path / "out", exported(rewriter=chr_path))), settings=["rewriter.chr.similarity=x"]
    )
    folder = write(tmp_path / "out", exported(rewriter={"name": "hcqr", "llm": {**LLM, **OBEYED_BY_NOBODY}}))
    assert open_trained(str(folder), trust=True).members[""].rewriter.llm.base_url is None


def test_a_trained_run_is_the_users_own_until_it_is_changed_or_moved(settings, tmp_path):
    run = RunFolder.create(settings).path
    assert is_own_run(run)
    assert load_run_config(run) == settings, "hosts, paths outside and all"
    moved = run.rename(tmp_path / "moved")
    assert not is_own_run(moved)
    with refused(ConfigError, "client.urls", "--trust"):
        load_run_config(moved)
    assert load_run_config(moved, trust=True) == settings
    moved.rename(run)
    assert is_own_run(run)
    config = run / "config.yaml"
    config.write_text(config.read_text() + "# changed\n")
    assert not is_own_run(run)


def test_another_folder_at_the_path_of_an_own_run_is_foreign(settings, tmp_path, monkeypatch):
    run = RunFolder.create(settings).path
    own_run = run.rename(tmp_path / "mine")
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("XDG_STATE_HOME", str(tmp_path / "state of another user"))
        foreign_run = RunFolder.create(settings).path.rename(tmp_path / "theirs")
    assert (foreign_run / "config.yaml").read_bytes() == (own_run / "config.yaml").read_bytes()
    shutil.copytree(own_run, run)
    assert is_own_run(run)
    shutil.copytree(foreign_run, run, dirs_exist_ok=True)  # unpacked over it
    assert not is_own_run(run)
    with refused(ConfigError, "client.urls", "--trust"):
        load_run_config(run)


@pytest.mark.parametrize("content", [None, "{", "[]", "{}", '{"format": 2}', '{"id": null}', '{"id": "\\ud800"}'])
def test_a_folder_without_an_id_is_foreign_whatever_was_noted_for_its_path(settings, content):
    run = RunFolder.create(settings).path
    noted = os.fsencode(run.resolve()) + b"\0" + (run / "config.yaml").read_bytes()
    notes = Path(os.environ["XDG_STATE_HOME"]) / "querylect" / "runs"
    (notes / hashlib.sha256(noted).hexdigest()).touch()  # as earlier versions did
    (run / "run.json").unlink()
    if content is not None:
        (run / "run.json").write_text(content)
    assert not is_own_run(run)


def test_a_user_without_a_state_folder_trains_and_is_told(settings, tmp_path, monkeypatch, caplog):
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = RunFolder.create(settings).path
    assert not is_own_run(run)
    assert "--trust" in caplog.text


def test_to_resume_somebody_elses_run_follows_no_link_out_of_it(stranger, tmp_path):
    folder = stranger()
    config = change(load_config(str(folder / "config.yaml")), output=str(folder.parent))
    (folder / "config.yaml").write_text(dump_config(config))
    (folder / "rollouts.jsonl").symlink_to(tmp_path / "precious")
    with refused(CheckpointError, "rollouts.jsonl", tmp_path / "precious"):
        RunFolder.reopen(config)
    assert RunFolder.reopen(config, trust=True)[0].path == folder
    make_own(folder)
    assert RunFolder.reopen(config)[0].path == folder


def test_to_resume_somebody_elses_run_reads_no_pickle(tmp_path, monkeypatch):
    """DeepSpeed's checkpoints are pickles."""
    config = change(RunConfig(), output=str(tmp_path), name="run")
    moved = change(config, name="moved")
    folder = RunFolder.create(config)
    (folder.checkpoints / "checkpoint-1" / "global_step1").mkdir(parents=True)
    (folder.checkpoints / "checkpoint-1" / "global_step1" / "x_optim_states.pt").touch()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    RunFolder.reopen(config)
    (folder.path / "config.yaml").write_text(dump_config(moved), encoding="utf-8")
    folder.path.rename(tmp_path / "moved")
    with refused(CheckpointError, tmp_path / "moved", "--trust"):
        RunFolder.reopen(moved)
    RunFolder.reopen(moved, trust=True)
    monkeypatch.delenv("ACCELERATE_USE_DEEPSPEED")
    with refused(CheckpointError):
        RunFolder.reopen(moved)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"env": {"hybrid": {"members": [{"retriever": "python:x.py"}]}}}, "env.hybrid.members.0.retriever"),
        ({"a": "https://host/x"}, "a"),
        ({"a": ["x", "~/x"]}, "a.1"),
        ({"url": "host:9200"}, "url"),
        ({"llm": {"base_url": "http://127.0.0.1:8000"}}, "llm.base_url"),
        ({"rollout": {"engine": "vllm_server", "server": {"base_url": "http://127.0.0.1:8000"}}}, "rollout.engine"),
        ({"urls": ["host"]}, "urls"),
        ({"auth_env": "HF_TOKEN"}, "auth_env"),
        ({"client": {"token_env": "SOMEBODYS_TOKEN"}}, "client.token_env"),
        ({"rewriter": {"prompt": "/etc/passwd.yaml"}}, "rewriter.prompt"),
        ({"env": {"model": "package:numpy/../../private"}}, "env.model"),
        ({"llm": {"cache": "notes.db"}}, "llm.cache"),
        ({"llm": {"cache": "~/notes.db"}}, "llm.cache"),
        ({"env": {"milvus": {"uri": "vectors.db"}}}, "env.milvus.uri"),
        ({"env": {"milvus": {"uri": "http://127.0.0.1:19530"}}}, "env.milvus.uri"),
        ({"rollout": {"server": {"weights_folder": "notes"}}}, "rollout.server.weights_folder"),
        ({"a": "/x\0"}, "a"),
        ({"a": "b/../../c"}, "a"),
    ],
)
def test_settings_are_judged_by_their_values_wherever_they_stand(values, expected, tmp_path):
    assert [setting.key for setting in untrusted_in(values, tmp_path)] == [expected]


def test_the_defaults_names_and_files_of_the_folder_reach_nowhere(tmp_path):
    assert not list(untrusted_in(load_config(None).model_dump(mode="json"), tmp_path))
    for name in known_configs():
        assert not list(untrusted_in(load_config(name).model_dump(mode="json"), tmp_path)), name
    inside = {"a": str(tmp_path / "x"), "b": "acme/model", "c": "package:x/y", "d": "indexes/x", "e": "a / b"}
    inside |= {"cache": str(tmp_path / "llm.sqlite"), "llm": {"cache": None}, "uri": str(tmp_path / "milvus.db")}
    assert not list(untrusted_in(inside, tmp_path))
