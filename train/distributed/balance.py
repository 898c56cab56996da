"""Share the trees of a step so that every process computes about as many tokens in its update.

Each process samples the same number of questions, but their answers differ in length, and the process with the longest
trees is what the others wait for. Trees move as they are, before anything is computed of them; every process keeps the
same number of trees, largest first, so that micro-batches that run at the same time are of like size.
"""

from collections.abc import Sequence

from ...rollouts.tree import Tree
from .processes import Processes


def balanced(processes: Processes, trees: Sequence[Tree]) -> tuple[list[Tree], list[int]]:
    """(the trees that this process updates on, the position of each in the order in which all were sampled).

    Collective.
    """
    if processes.count == 1:
        return list(trees), list(range(len(trees)))
    by_rank = processes.all_gather([tree_tokens(tree) for tree in trees])
    shares = assign([size for sizes in by_rank for size in sizes], processes.count)
    first = sum(map(len, by_rank[: processes.rank]))
    local = {first + index: tree for index, tree in enumerate(trees)}
    assigned = set(shares[processes.rank])
    received: dict[int, Tree] = {}
    for sent in processes.all_gather({position: tree for position, tree in local.items() if position not in assigned}):
        received |= sent
    share = shares[processes.rank]
    return [local[position] if position in local else received[position] for position in share], share


def assign(sizes: Sequence[int], processes: int) -> list[list[int]]:
    """The indices of `sizes` that each process gets: as many for each, with sums as equal as greedy choice makes them
    (largest first to the process with the smallest sum), each process's largest first."""
    per_process = len(sizes) // processes
    shares: list[list[int]] = [[] for _ in range(processes)]
    sums = [0] * processes
    for index in sorted(range(len(sizes)), key=lambda index: (-sizes[index], index)):
        free = [rank for rank in range(processes) if len(shares[rank]) < per_process]
        rank = min(free, key=lambda rank: (sums[rank], rank))
        shares[rank].append(index)
        sums[rank] += sizes[index]
    return shares


def tree_tokens(tree: Tree) -> int:
    """Number of tokens of a tree, each shared prefix once."""
    total = len(tree.roots[0].prompt_ids) if tree.roots else 0
    for node in tree.walk():
        total += len(node.completion_ids)
        if node.children:
            total += len(node.children[0].prompt_ids) - len(node.prompt_ids) - len(node.completion_ids)
    return total
