"""Trees are shared so that processes compute like numbers of tokens."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Question
from querylect.rewriters.base import Rewrite
from querylect.rollouts.tree import Node, Tree
from querylect.train.distributed.balance import assign, balanced, tree_tokens


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
    """Two processes, played one after the other: what one gives the other gets, and positions name the order."""
    lengths = [[90, 80], [5, 7]]
    trees = [[Tree(Question(f"{rank}{i}", "?"), [node(1, 1, n)]) for i, n in enumerate(lengths[rank])]
             for rank in (0, 1)]  # fmt: skip

    def run(rank, answers):
        given = []

        def all_gather(value):
            given.append(value)
            return answers[len(given) - 1]

        return balanced(SimpleNamespace(count=2, rank=rank, all_gather=all_gather), trees[rank]), given

    sizes = [[1 + n for n in each] for each in lengths]
    moved = [{1: trees[0][1]}, {2: trees[1][0]}]
    for rank, expected in enumerate(([0, 2], [1, 3])):
        (kept, positions), given = run(rank, [sizes, moved])
        assert positions == expected
        assert given == [sizes[rank], moved[rank]]
        assert kept == [[*trees[0], *trees[1]][position] for position in expected]
