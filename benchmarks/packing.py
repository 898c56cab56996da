"""The update of a 4×4 tree: packed against one row per leaf, same model, same tree, forward and backward.

    python benchmarks/packing.py [PROMPT] [TURN] [OBSERVATION]

Lengths are in tokens. Prints seconds, the ratio, and how far the two gradients are apart.
"""

import sys
from statistics import median

import torch
from machine import describe, seconds
from querylect.configs.load import load_config
from querylect.logs import set_up_logging
from querylect.rollouts.policy import add_lora, load_policy
from querylect.train.packing import packed_logps


def main(prompt: str = "180", turn: str = "18", observation: str = "60") -> None:
    """Time both and print the ratio."""
    set_up_logging()
    config = load_config("demo", ["policy.dtype=float32"])
    torch.manual_seed(0)
    policy = add_lora(load_policy(config.policy)[0], config.policy)
    first, second, shown = int(turn), int(turn), int(observation)
    rows = []
    root = torch.randint(5, 40000, (int(prompt),))
    for _ in range(4):
        stem = torch.cat([root, torch.randint(5, 40000, (first + shown,))])
        rows += [torch.cat([stem, torch.randint(5, 40000, (second,))]) for _ in range(4)]
    ids = torch.stack(rows)
    wanted = torch.zeros(16, first + shown + second, dtype=torch.bool)
    wanted[:, first + shown :] = True
    wanted[::4, :first] = True

    def gradient() -> torch.Tensor:
        parts = [p.grad.flatten() for p in policy.parameters() if p.grad is not None]
        policy.zero_grad()
        return torch.cat(parts)

    def packed() -> torch.Tensor:
        packed_logps(policy, ids, torch.ones_like(ids), wanted, 1.0)[0].sum().backward()
        return gradient()

    def flat() -> torch.Tensor:
        logits = policy(input_ids=ids, logits_to_keep=wanted.shape[1] + 1).logits[:, :-1]
        logps = torch.log_softmax(logits.float(), -1).gather(-1, ids[:, -wanted.shape[1] :, None])[..., 0]
        (logps * wanted).sum().backward()
        return gradient()

    ours, theirs = packed(), flat()
    rounds = [(seconds(packed), seconds(flat)) for _ in range(3)]
    print(describe())
    print(f"4×4 tree: {ids.numel()} tokens as rows, float32, {torch.get_num_threads()} threads")
    print(f"  packed {median(a for a, _ in rounds):6.2f} s")
    print(f"  flat   {median(b for _, b in rounds):6.2f} s")
    apart = float((ours - theirs).norm() / theirs.norm())
    print(f"  ratio {median(b / a for a, b in rounds):.2f}; gradients differ by {apart:.1e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
