"""Trees are distributed so that processes compute similar numbers of tokens."""

from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree
from querylect.train.distributed.balance import assign, balanced, tree_tokens

from ..several import side_by_side


def node(turn, prompt, completion, children=()):
    ids = list(range(prompt)), list(range(completion))
    return Node(turn, *ids, [], True, "", Rewrite(None), children=list(children))


def test_a_tree_counts_every_shared_token_once():
    """A prompt of 10, turns of 3 and 4 tokens, 5 of documents under the first, and answers of 6, 7 to it."""
    tree = Tree(Question("q", "?"), [node(1, 10, 3, [node(2, 18, 6), node(2, 18, 7)]), node(1, 10, 4)])
    assert tree_tokens(tree) == 10 + 3 + 5 + 6 + 7 + 4


def test_the_longest_trees_are_spread():
    """As they were sampled, one process would compute 210 tokens and the other 19; so it is 117 and 112."""
    assert assign([100, 90, 20, 9, 8, 2], 2) == [[0, 3, 4], [1, 2, 5]]


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(1, 4))
def test_every_process_has_as_many_trees_its_largest_first(sizes, processes):
    sizes = sizes * processes
    shares = assign(sizes, processes)
    assert sorted(index for share in shares for index in share) == list(range(len(sizes)))
    assert {len(share) for share in shares} == {len(sizes) // processes}
    assert all([sizes[index] for index in share] == sorted((sizes[index] for index in share), reverse=True)
               for share in shares)  # fmt: skip


def test_trees_move_between_processes_as_they_are():
    """Each of two processes gets what the other sends, and nothing else; positions give the order."""
    lengths = [[90, 80], [5, 7]]
    trees = [[Tree(Question(f"{rank}{i}", "?"), [node(1, 1, n)]) for i, n in enumerate(rank_lengths)]
             for rank, rank_lengths in enumerate(lengths)]  # fmt: skip
    every = [*trees[0], *trees[1]]

    def act(processes):
        return balanced(processes, trees[processes.rank]), [*processes.board[processes.rank]]

    shares, sent = zip(*side_by_side(2, act), strict=True)
    assert shares == tuple(([every[index] for index in indices], indices) for indices in ([0, 2], [1, 3]))
    assert sent == ([1], [2])
