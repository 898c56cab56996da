"""The update of one question: this project's trainer on a packed tree against TRL's GRPOTrainer on its rows.

    python benchmarks/packing.py tree   [FACTOR] [ROUNDS] [DTYPE]
    python benchmarks/packing.py single [FACTOR] [ROUNDS] [DTYPE]

`tree` is the paper's shape, 4 × 4: prompt 600, first turn 300, documents 900, second turn 300 tokens. `single` is 16
answers of 300 tokens to a prompt of 600. All lengths are divided by FACTOR (10). Both trainers hold the same weights
(SmolLM2-135M, all trained, of the type that this machine computes faster in unless DTYPE is given) and get the same
batch: log-probabilities, entropies, loss and backward pass, in turns for ROUNDS (3) rounds. Peak memory is that of a
process of its own for each.
"""

import subprocess
import sys
from statistics import median

import torch
from machine import describe, seconds
from querylect.logs import set_up_logging
from querylect.train.loss import Rollout
from stock import ROWS, settings, trainers, tree_batch, update

SHAPES = {"tree": ([300, 300], [4, 4]), "single": ([300], [16])}
TARGETS = {"tree": "0.8 × the token ratio", "single": "1.5"}


def measured(shape: str, factor: int, dtype: str, who: str) -> tuple[float, float]:
    """(peak memory, memory before the update) of a process that does one update, in GiB."""
    command = [sys.executable, __file__, shape, str(factor), "0", dtype, who]
    printed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(printed[-2]), float(printed[-1])


def memory(name: str) -> float:
    """Resident memory of this process in GiB: VmRSS now, VmHWM at its highest. (ru_maxrss would be the parent's.)"""
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(name)) / 2**20


def main(shape: str = "tree", factor: str = "10", rounds: str = "3", dtype: str = "auto", alone: str = "") -> None:
    """Time both in turns, measure memory in children, and print the ratios."""
    set_up_logging()
    scale = int(factor)
    turns, branching = SHAPES[shape]
    lengths = [turn // scale for turn in turns]
    batch, turns_batch = tree_batch(600 // scale, lengths, 900 // scale, branching)
    changes = [f"rollout.branching={branching}", f"rollout.max_new_tokens={max(lengths)}"]
    if len(branching) == 1:
        changes.append("reward.turn_weights=[1.0]")
    config = settings(dtype, "train.warm_start.questions=0", *changes)
    stock, tree = trainers(config, ours=alone != "stock")
    if tree is not None:
        tree.rollout = Rollout([turns_batch], float(batch["num_items_in_batch"]), {})
    if tree is None or alone:
        memory_before = memory("VmRSS")
        update(*((stock, batch) if tree is None else (tree, turns_batch)))
        print(memory("VmHWM"), memory_before)
        return
    results = {}
    for name, trainer, inputs in (("stock", stock, batch), ("packed", tree, turns_batch)):
        loss = update(trainer, inputs)
        results[name] = loss, torch.cat([p.grad.flatten() for p in trainer.model.parameters() if p.grad is not None])
    gradient_difference = float((results["packed"][1] - results["stock"][1]).norm() / results["stock"][1].norm())
    flat = batch["prompt_ids"].numel() + batch["completion_ids"].numel()
    tokens = flat / (packed := tree.packed_tokens)
    losses = [float(results[name][0]) for name in ("packed", "stock")]
    taken = [
        (seconds(lambda: update(tree, turns_batch)), seconds(lambda: update(stock, batch))) for _ in range(int(rounds))
    ]
    print(describe())
    size = f"{ROWS} rows of {flat // ROWS} tokens, all lengths divided by {scale}, {stock.model.dtype}, all weights"
    print(f"{shape}: {size}, {torch.get_num_threads()} threads, {rounds} rounds in turns")
    print(f"  loss {losses[0]:.6f} packed, {losses[1]:.6f} stock; gradients differ by {gradient_difference:.1e}")
    print(f"  tokens  {packed:6d} packed  {flat:6d} stock  ratio {tokens:.2f}")
    ours, theirs = median(a for a, _ in taken), median(b for _, b in taken)
    ratio = median(b / a for a, b in taken)
    need = 0.8 * tokens if shape == "tree" else 1.5
    print(f"  update  {ours:6.2f} s packed  {theirs:6.2f} s stock  ratio {ratio:.2f}", end="")
    print(f"  ({ratio / tokens:.2f} of the token ratio; target at least {TARGETS[shape]} = {need:.2f}: ", end="")
    print(f"{'reached' if ratio >= need else 'missed'})")
    (peak, idle), (peer, _) = (measured(shape, scale, dtype, who) for who in ("packed", "stock"))
    print(f"  memory  {peak:6.2f} GiB packed  {peer:6.2f} GiB stock  ratio {peer / peak:.2f}", end="")
    print(f"  ({(peer - idle) / (peak - idle):.2f} of what is above the {idle:.2f} GiB before the update)")


if __name__ == "__main__":
    main(*sys.argv[1:])
