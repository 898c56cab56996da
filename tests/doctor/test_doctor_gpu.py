"""`querylect doctor --gpu`: its checks on a CPU at tiny sizes, and the findings if one of them fails."""

# ruff: noqa: F811 (fixture)

from types import SimpleNamespace

import pytest
import torch
from querylect.doctor import checks, gpu
from querylect.train import packing

from ..vllm_doubles import vllm  # noqa: F401 (fixture)

pytestmark = pytest.mark.server

CPU = torch.device("cpu")
TINY = gpu.Workload(hidden=128, layers=1, vocabulary=300, lengths=(20, 5, 9, 4))


def test_gradients_of_packed_trees_are_compared_with_flat_ones(monkeypatch):
    finding = gpu.gradients(CPU, TINY)
    assert (finding.state, finding.remedy) == ("ok", "")
    assert "sdpa float32" in finding.observed
    assert "flat bfloat16" in finding.observed
    pack = packing._packed

    def shifted(paths, attention, device):
        inputs, rows, tokens = pack(paths, attention, device)
        return {**inputs, "position_ids": inputs["position_ids"] // 2}, rows, tokens

    monkeypatch.setattr(packing, "_packed", shifted)
    wrong = gpu.gradients(CPU, TINY)
    assert wrong.state == "failed"
    assert "train.packing=false" in wrong.remedy


@pytest.mark.parametrize("hidden_key", [True, False], ids=["a key hidden", "a key visible to later paths"])
def test_one_wrong_key_in_bfloat16_alone_fails_the_gradients(hidden_key, monkeypatch):
    """Float32 gradients are right; the rounding of the weights to bfloat16 does not cover the difference."""
    gradient, layout = gpu._gradient, packing.packed_row

    def one_key_wrong(ends, kind):
        key = 0 if hidden_key else 3 * len(ends) // 4
        return layout(ends.index_fill(0, torch.tensor(key), key + 1 if hidden_key else len(ends)), kind)

    def wrong_in_bfloat16(model, rows, kind):
        with monkeypatch.context() as patch:
            if model.dtype == torch.bfloat16:
                patch.setattr(packing, "packed_row", one_key_wrong)
            return gradient(model, rows, kind)

    monkeypatch.setattr(gpu, "_gradient", wrong_in_bfloat16)
    assert gpu.gradients(CPU, TINY).state == "failed"


def test_vllm_is_compared_with_transformers_also_after_a_change_of_weights(vllm, monkeypatch):
    finding = gpu.vllm(CPU, TINY)
    assert finding.state == "ok", finding.observed
    assert "after a change of weights" in finding.observed
    first = type(vllm[0].answers).load
    monkeypatch.setattr(type(vllm[0].answers), "load", lambda model, weights: first(model, []) or list(weights))
    stale = gpu.vllm(CPU, TINY)
    assert (stale.state, stale.remedy[:14]) == ("failed", "use rollout.en")


def test_a_check_that_ends_or_hangs_is_said_and_the_next_one_runs(monkeypatch):
    def run(command, **options):
        name = command[-1]
        if name == "gradients":
            return SimpleNamespace(returncode=-11, stdout="", stderr="Segmentation fault\n")
        if name == "vllm":
            raise checks.subprocess.TimeoutExpired(command, options["timeout"])
        return SimpleNamespace(returncode=0, stdout='a log\n{"name": "third", "state": "ok", "observed": "cuda"}\n')

    monkeypatch.setattr(checks.subprocess, "run", run)
    gradients, vllm, third = checks.gpu_findings(["gradients", "vllm", "third"])
    assert (gradients.state, vllm.state, third.state) == ("failed", "failed", "ok")
    assert "Segmentation fault" in gradients.observed
    assert "300 s" in vllm.observed
    assert third.observed == "cuda"
