"""DeepSpeed's ZeRO with two and four processes against one process without it. Skipped where it is not installed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from querylect.errors import CheckpointError
from querylect.train.run import train
from querylect.train.run_folder import RunFolder
from querylect.train.sharding import OPTIMIZER_PARTS

from ..forked import Forked
from ..lessons import change, records
from ..raising import refused
from ..several import Started, free_port, launcher_variables
from .test_processes import assert_same_updates, weights_of

pytestmark = [pytest.mark.server, pytest.mark.slow]

CONFIGS = Path(__file__).parents[2] / "configs" / "deepspeed"
FULL = {"policy.lora": None, "train.learning_rate": 1e-3}


def launch_zero(stage: int, config, folder: Path, *arguments: str) -> None:
    options = ["--use_deepspeed", "--num_machines", "1", "--mixed_precision", "no", "--dynamo_backend", "no"]
    options += ["--deepspeed_config_file", str(CONFIGS / f"zero{stage}.json")]
    launch_two(options, config, folder, *arguments)


def launch_two(options: list[str], config, folder: Path, *arguments: str) -> None:
    """As in the documentation, with accelerate's launcher."""
    config_file = folder / "launched.yaml"
    config_file.write_text(yaml.safe_dump(config.model_dump(mode="json")))
    launch = [sys.executable, "-m", "accelerate.commands.launch", *options, "--num_processes", "2"]
    launch += ["--main_process_port", str(free_port())]
    ended = subprocess.run(
        [*launch, "-m", "querylect", "train", str(config_file), *arguments],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert ended.returncode == 0, ended.stderr[-4000:]


def fork_zero(stage: int, config, folder: Path, *arguments: str, processes: int = 2, code: str | None = None) -> None:
    """The same with the surroundings that the launcher gives to its processes, which costs a third of its time; with
    `code` in the place of the command."""
    surroundings = {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_CONFIG_FILE": str(CONFIGS / f"zero{stage}.json"),
        "ACCELERATE_MIXED_PRECISION": "no",
    }
    fork_split(surroundings, config, folder, *arguments, processes=processes, code=code)


def fork_split(
    surroundings: dict[str, str], config, folder: Path, *arguments: str, processes: int, code: str | None = None
) -> None:
    """Processes that must all exit with 0."""
    with Started(config, folder / "forked", processes, *arguments, code=code, **surroundings) as started:
        assert started.codes() == [0] * processes, [started.stderr(rank)[-4000:] for rank in range(processes)]


def needs_deepspeed():
    """Skip where it cannot run."""
    pytest.importorskip("deepspeed", reason="DeepSpeed is not installed: pip install -e '.[deepspeed]'")


MODEL = """
import json, os, sys
import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM
from querylect.rollouts import weights

torch.manual_seed(0)
sizes = dict(vocab_size=90, hidden_size=32, intermediate_size=48, num_hidden_layers=4, num_attention_heads=2)
model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=kind == "tied"))
if kind == "lora":
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, weight in model.named_parameters():
        weight.data.normal_() if "lora_B" in name else None
source = weights.PolicyWeights(model, torch.float32)
expected = [(name, weight.clone()) for name, weight in weights.merged_weights(model, torch.float32)]
split_before = source.split
largest = max(sum(weight.numel() for weight in part.parameters()) for part in model.modules() if hasattr(part, "mlp"))
largest = max(largest, 90 * 32)
"""
SPLITTING = """
import deepspeed
from querylect.train.sharding import prepare_deepspeed
prepare_deepspeed()
config |= {"train_batch_size": 2, "train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1}
config["gradient_clipping"] = 1.0
config["zero_optimization"] |= {"stage3_param_persistence_threshold": 0}
trained = [weight for weight in model.parameters() if weight.requires_grad]
deepspeed.initialize(model=model, optimizer=torch.optim.AdamW(trained), config=config, dist_init_required=True)
"""
GATHERING = """
def gathered():
    return sum(weight.numel() for weight in model.parameters() if not hasattr(weight, "placements"))

def layers():
    changing = weights.PolicyWeights(model, adapted_only=True)
    return [".".join(name.split(".")[:2]) for name, _ in changing()]

taken, peak = [], 0
for name, weight in source():
    taken.append((name, weight))  # kept until after its layer was released
    peak = max(peak, gathered())
report({
    "before": split_before, "split": source.split,
    "names": [name for name, _ in taken] == [name for name, _ in expected],
    "equal": all(torch.equal(actual, reference) for (_, actual), (_, reference) in zip(taken, expected)),
    "one layer": 0 < peak <= largest, "released": gathered(),
    "adapted": {*layers()} == ({"model.layers"} if kind == "lora" else set()),
})
"""
ONE_LAYER_AT_A_TIME = {
    "before": False, "split": True, "names": True, "equal": True, "one layer": True, "released": 0, "adapted": True,
}  # fmt: skip


KINDS = ("full", "tied", "lora")
IN_TURN = """
import json, sys
config, *steps = sys.argv[1:]
reports = []
for kind, code in map(json.loads, steps):
    exec(code, {"kind": kind, "config": json.load(open(config)), "report": reports.append})
print(json.dumps(reports))
"""


def run_in_two(steps: list[tuple[str, str]], folder: Path) -> list[list[object]]:
    """What each step, a kind of policy and the code that uses it, reports in two processes: of each process a list."""
    arguments = [str(CONFIGS / "zero3.json"), *map(json.dumps, steps)]
    ends = [
        Forked(arguments, folder / f"out-{rank}", folder / f"err-{rank}", variables, code=IN_TURN)
        for rank, variables in enumerate(launcher_variables(2))
    ]
    try:
        assert [end.wait(400) for end in ends] == [0, 0], (folder / "err-0").read_text()[-4000:]
    finally:
        for end in ends:
            end.kill()
    return [json.loads((folder / f"out-{rank}").read_text().splitlines()[-1]) for rank in (0, 1)]


SENDING = """
received, half = [], []
source.send(lambda weights: half.append(next(weights)))
source.send(received.extend, main_only=True)
report([len(half), len(received)])
"""


def check_split_weights(splitting: str, folder: Path) -> None:
    """Processes that have split their weights give them whole, a layer at a time, also where some are not taken."""
    gathering = [(kind, MODEL + splitting + GATHERING) for kind in KINDS]
    for rank, reports in enumerate(run_in_two([*gathering, ("full", MODEL + splitting + SENDING)], folder)):
        *gathered, sent = reports
        assert gathered == [ONE_LAYER_AT_A_TIME] * 3
        assert sent == [1, 0 if rank else 2 + 9 * 4 + 1]


@pytest.mark.timeout(1200)
def test_weights_that_zero3_has_split_are_given_whole(tmp_path):
    needs_deepspeed()
    check_split_weights(SPLITTING, tmp_path)


WITH_VLLM = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
import pytest
from tests.vllm_doubles import install_vllm
from querylect.cli import main
with pytest.MonkeyPatch.context() as patch:
    install_vllm(patch)
    main(sys.argv[1:])
"""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("stage", "changes"), [(2, FULL), (3, {})], ids=["zero-2 full", "zero-3 lora"])
def test_vllm_samples_from_the_weights_that_zero_has_just_trained(settings, tmp_path, stage, changes):
    """At such learning rates weights of the step before would show: only those of now give a ratio of 1."""
    needs_deepspeed()
    sampled = {"rollout.engine": "vllm", "rollout.vllm.enable_sleep_mode": True}
    config = change(settings, **sampled, **{"train.steps": 3, "train.learning_rate": 0.05, **changes})
    fork_zero(stage, config, tmp_path, code=WITH_VLLM)
    assert_sampled_from_the_newest_weights(tmp_path / "runs" / "run")


def assert_sampled_from_the_newest_weights(folder: Path) -> None:
    """By the log-probabilities of the sampler and of the trainer, of steps that changed weights."""
    taught = [line for line in records(folder / "metrics.jsonl") if line["grad_norm"] > 0]
    assert len(taught) >= 2
    for line in taught:
        for bound in ("min", "max"):
            assert line[f"sampling/importance_sampling_ratio/{bound}"] == pytest.approx(1.0, abs=1e-3)


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("stage", "processes", "changes"),
    [
        (2, 2, FULL),
        (3, 4, {"train.gradient_checkpointing": True}),
        (3, 2, {**FULL, "train.max_tokens_per_micro_batch": 100}),
    ],
    ids=["zero-2 full", "zero-3 lora in four", "zero-3 full split"],
)
def test_zero_trains_what_one_process_trains_and_resumes(settings, tmp_path, stage, processes, changes):
    """Two steps, the second after a resume: samples as of the whole weights, and the weights themselves."""
    needs_deepspeed()
    common = {"train.questions_per_step": processes, "train.save_steps": 1, "train.steps": 1, **changes}
    split = change(settings, output=str(tmp_path / "split"), **common)
    if stage == 2:
        launch_zero(stage, split, tmp_path)
    else:
        fork_zero(stage, split, tmp_path, processes=processes)
    fork_zero(stage, split, tmp_path, "--resume", "train.steps=2", processes=processes)
    several = tmp_path / "split" / "run"
    single = train(change(settings, output=str(tmp_path / "one"), **{**common, "train.steps": 2}))
    assert_same_training(several, single, processes, split.train.learning_rate)


def assert_same_training(several: Path, single: Path, processes: int, learning_rate: float) -> None:
    """The same trees, loss and gradient norm; weights to the rounding that Adam's first steps divide by the size of a
    gradient."""
    assert records(several / "rollouts.jsonl") == records(single / "rollouts.jsonl")
    assert_same_updates(records(several / "metrics.jsonl"), records(single / "metrics.jsonl"))
    single_weights, several_weights = weights_of(single), weights_of(several)
    assert single_weights.keys() == several_weights.keys()
    rounding = 1e-2 if processes == 2 else 5e-2
    for name, weights in single_weights.items():
        assert (weights - several_weights[name]).abs().max() < rounding * learning_rate, name


def test_a_checkpoint_of_another_launcher_is_refused(tmp_path, monkeypatch):
    """It lacks the optimizer that this launcher reads: going on would begin it anew without a word."""
    checkpoint = tmp_path / "checkpoints" / "checkpoint-3"
    (checkpoint / "global_step3").mkdir(parents=True)
    (checkpoint / "global_step3" / "zero_pp_rank_0_mp_rank_00_optim_states.pt").touch()
    for name in ("adapter_model.safetensors", "scheduler.pt", "rng_state_0.pth", "trainer_state.json"):
        (checkpoint / name).touch()
    with refused(CheckpointError, checkpoint, OPTIMIZER_PARTS, "DeepSpeed"):
        RunFolder(tmp_path).newest_checkpoint()
    monkeypatch.setenv("ACCELERATE_USE_DEEPSPEED", "true")
    assert RunFolder(tmp_path).newest_checkpoint() == checkpoint
    (checkpoint / "optimizer.pt").touch()
    with refused(CheckpointError, checkpoint, "optimizer.pt", "DeepSpeed"):
        RunFolder(tmp_path).newest_checkpoint()
