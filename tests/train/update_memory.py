"""A process that loads a policy and updates it on one tree, and prints the most memory that it took, in bytes.

python update_memory.py '{"sizes": {…}, "config": {…}}'

Freed blocks return to the kernel: gaps in the heap, which differ from process to process, do not count.
"""

import ctypes
import json
import sys
from pathlib import Path

import torch
from querylect.configs.schema import RunConfig
from querylect.rollouts.policy import add_lora
from querylect.train.memory.estimate import longest_tree
from querylect.train.packing.packing import packed_logps
from transformers import AutoConfig, AutoModelForCausalLM

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3


def longest(run, vocabulary):
    """The rows of the longest tree that the settings allow, and which tokens are scored: (batch, tokens)."""
    rollout = run.rollout
    first = second = rollout.max_new_tokens
    document_tokens = rollout.documents * rollout.document_tokens
    prompt = rollout.max_prompt_tokens - rollout.earlier_tokens(2)
    random = torch.Generator().manual_seed(0)

    def take(count):
        return torch.randint(3, vocabulary, (count,), generator=random).tolist()

    start, rows, target_mask = take(prompt), [], []
    for _ in range(rollout.branching[0]):
        turn, documents = take(first), take(document_tokens)
        for leaf in range(rollout.branching[1]):
            rows.append([*start, *turn, *documents, *take(second)])
            target_mask.append([leaf == 0] * first + [False] * document_tokens + [True] * second)
    return torch.tensor(rows), torch.tensor(target_mask)


def main(argument):
    plan = json.loads(argument)
    libc = ctypes.CDLL(None)
    for parameter in (M_MMAP_THRESHOLD, M_TRIM_THRESHOLD):
        libc.mallopt(parameter, 64 * 1024)
    run = RunConfig.model_validate(plan["config"])
    settings = AutoConfig.for_model("qwen3", **plan["sizes"])
    model = add_lora(AutoModelForCausalLM.from_config(settings).float(), run.policy).train()
    if run.train.gradient_checkpointing is True:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    ids, target_mask = longest(run, settings.vocab_size)
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=1e-4)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.grad = torch.zeros_like(weight)
    optimizer.step()  # its state is there before the update
    logps, _, tokens = packed_logps(
        model, ids, torch.ones_like(ids), target_mask, 1.0, budget=run.train.max_tokens_per_micro_batch
    )
    if run.train.max_tokens_per_micro_batch is None:
        assert tokens == longest_tree(run.rollout, run.train)[0]
    (-logps.sum()).backward()
    optimizer.step()
    status = Path("/proc/self/status").read_text()
    print(int(status.partition("VmHWM:")[2].split()[0]) * 1024)


main(sys.argv[1])
