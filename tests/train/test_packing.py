"""Packing: a tree in one row gives the numbers and the gradients of its paths in rows of their own."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.train import attention as packed_attention
from querylect.train.attention import blocks
from querylect.train.packing import pack

from ..tiny import tiny_model
from .rectangular import packed_logps

pytestmark = pytest.mark.model

TEMPERATURE = 0.7


def flat_logps(model, input_ids, attention_mask, target_mask, temperature):
    """The same by the book: each row by itself without its padding, one forward pass a row."""
    offset = input_ids.shape[1] - target_mask.shape[1]
    logps, entropies = torch.zeros(target_mask.shape), torch.zeros(target_mask.shape)
    for row in range(len(input_ids)):
        columns = attention_mask[row].nonzero()[:, 0]
        logits = model(input_ids=input_ids[row, columns][None]).logits[0] / temperature
        distribution = torch.log_softmax(logits, -1)
        for at, column in enumerate(columns.tolist()):
            if column >= offset and target_mask[row, column - offset]:
                token_logps = distribution[at - 1]
                logps[row, column - offset] = token_logps[input_ids[row, column]]
                entropies[row, column - offset] = -(token_logps.exp() * token_logps).sum()
    return logps, entropies


def batch(rows, target_mask, left=0, right=0, pad=0):
    """Prompts on the left and completions on the right as TRL pads them. rows: (prompt, completion) pairs."""
    prompts, completions = max(len(p) for p, _ in rows) + left, max(len(c) for _, c in rows) + right
    ids = [[pad] * (prompts - len(p)) + p + c + [pad] * (completions - len(c)) for p, c in rows]
    mask = [[0] * (prompts - len(p)) + [1] * len(p + c) + [0] * (completions - len(c)) for p, c in rows]
    target_mask = [row_mask + [0] * (completions - len(row_mask)) for row_mask in target_mask]
    return torch.tensor(ids), torch.tensor(mask), torch.tensor(target_mask).bool()


def tree_rows(seed=0, prompts=(11, 7), branching=(2, 3), lengths=(4, 5), observation=6):
    """Rows and target masks of a random tree per prompt: (prompt, first turn + observation + second turn)."""
    random = torch.Generator().manual_seed(seed)

    def ids(count):
        return torch.randint(3, 300, (count,), generator=random).tolist()

    rows, target_mask = [], []
    for length in prompts:
        prompt = ids(length)
        for _ in range(branching[0]):
            first, observed = ids(lengths[0]), ids(observation)
            for leaf in range(branching[1]):
                rows.append((prompt, [*first, *observed, *ids(lengths[1] + leaf)]))
                target_mask.append([int(leaf == 0)] * lengths[0] + [0] * observation + [1] * (lengths[1] + leaf))
    return rows, target_mask


@pytest.fixture(scope="module")
def model():
    """Other architectures: `test_no_mask_of_all_pairs_of_tokens_is_made`."""
    return tiny_model("qwen3")


@pytest.fixture(autouse=True)
def block(monkeypatch):
    """Blocks that these small trees fill many times."""
    monkeypatch.setattr(packed_attention, "BLOCK", 8)


def trainable(model, lora):
    if not lora:
        return model, dict(model.named_parameters())
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False))
    return adapted.eval(), {name: value for name, value in adapted.named_parameters() if value.requires_grad}


def checkpointed(model, kind):
    """In training mode, its layers computed again in the backward pass."""
    model.gradient_checkpointing_enable({"use_reentrant": kind == "reentrant"})
    model.enable_input_require_grads()  # as TRL does for adapters: a reentrant checkpoint follows its inputs only
    return model.train()


def gradient(parameters, loss):
    """All of it as one vector."""
    for value in parameters.values():
        value.grad = None
    loss.backward()
    return torch.cat([value.grad.flatten() for value in parameters.values()])


def relative(actual, expected):
    return float((actual - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize(("lora", "again"), [(False, ""), (False, "reentrant"), (True, "non-reentrant")])
def test_values_and_gradients_are_those_of_flat_rows(model, lora, again):
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model, parameters = trainable(copy.deepcopy(model), lora)
    if again:
        model = checkpointed(model, again)
    ids, mask, target_mask = batch(*tree_rows(), left=2, right=3)
    weights = torch.randn(target_mask.shape, generator=torch.Generator().manual_seed(2)) * target_mask

    logps, entropies, tokens = packed_logps(model, ids, mask, target_mask, TEMPERATURE, entropies=True)
    packed = gradient(parameters, (logps * weights).sum())
    expected, expected_entropies = flat_logps(model, ids, mask, target_mask, TEMPERATURE)
    flat = gradient(parameters, (expected * weights).sum())

    assert relative(logps, expected) < 1e-5
    assert relative(entropies, expected_entropies) < 1e-5
    assert not (logps * ~target_mask).any()
    assert relative(packed, flat) < 1e-5
    assert flat.norm() > 1
    assert tokens < int(mask.sum()) / 2


@pytest.mark.parametrize(
    ("attention", "again"), [("sdpa", ""), ("sdpa", "reentrant"), (None, "")], ids=["packed", "reentrant", "flat"]
)
def test_a_tree_that_is_split_has_the_values_and_gradients_of_the_whole(attention, again):
    """Two trees of 83 and 79 tokens in pieces of at most 40: a prompt, and of it one first turn with its answers."""
    model = tiny_model().double()  # float32 rounds by 1e-6 where gradients are added in another order
    if again:
        model = checkpointed(model, again)
    ids, mask, target_mask = batch(*tree_rows(), left=2, right=3)
    weights = torch.randn(target_mask.shape, generator=torch.Generator().manual_seed(2)) * target_mask
    computed = []
    model.get_input_embeddings().register_forward_hook(lambda module, inputs, out: computed.append(inputs[0].numel()))

    def act(budget):
        computed.clear()
        logps, entropies, tokens = packed_logps(
            model, ids, mask, target_mask, TEMPERATURE, True, True, attention=attention, budget=budget
        )
        passes = list(computed)
        gradients = gradient(dict(model.named_parameters()), ((logps - 0.3 * entropies) * weights).sum())
        return logps, entropies, gradients, tokens, passes

    *unsplit, tokens, passes = act(None)
    *split, more_tokens, several = act(40)
    assert len(passes) == 1
    assert len(several) >= 4
    assert max(several) <= 40, "padding included"
    assert (tokens < more_tokens) == (attention is not None), "shared prefixes are computed again"
    for actual, expected in zip(split, unsplit, strict=True):
        assert relative(actual, expected) < 1e-6
    alone = act(1)
    assert len(alone[-1]) == sum(map(bool, [*target_mask.any(1)])), "a path that is longer than the budget is not cut"
    assert relative(alone[2], unsplit[2]) < 1e-6


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(*[st.lists(st.integers(3, 5), min_size=1, max_size=9)] * 2), min_size=1, max_size=6),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.randoms(use_true_random=False),
)
def test_any_sequences_give_the_values_and_gradients_of_flat_rows(model, rows, padding, random):
    """Three ids and short rows: prompts that are prefixes of others, equal rows, no common prefix, gaps in the loss."""
    target_mask = [[random.random() < 0.7 for _ in completion] for _, completion in rows]
    target_mask[0][-1] = True
    ids, mask, target_mask = batch(rows, target_mask, *padding, pad=9)
    weights = torch.tensor([[random.uniform(0.5, 1.5) for _ in row] for row in target_mask]) * target_mask
    parameters = dict(model.named_parameters())
    logps, entropies, _ = packed_logps(model, ids, mask, target_mask, 1.0, entropies=True)
    expected, expected_entropies = flat_logps(model, ids, mask, target_mask, 1.0)
    assert relative(logps, expected) < 1e-5
    assert relative(entropies, expected_entropies) < 1e-5
    packed, flat = (gradient(parameters, (values * weights).sum()) for values in (logps, expected))
    assert relative(packed, flat) < 1e-5


tries = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=7), min_size=1, max_size=7)


@settings(max_examples=200, deadline=None)
@given(tries)
def test_the_mask_is_the_ancestor_relation(sequences):
    """Each packed token is one distinct prefix; it sees the prefixes of itself and nothing else."""
    packed = pack([np.array(sequence) for sequence in sequences])
    prefix_of = {}
    for sequence, indices in zip(sequences, packed.rows, strict=True):
        assert packed.ids[indices].tolist() == sequence
        assert packed.positions[indices].tolist() == list(range(len(sequence)))
        for end, index in enumerate(indices, start=1):
            assert prefix_of.setdefault(index, tuple(sequence[:end])) == tuple(sequence[:end])
    distinct = {tuple(sequence[:end]) for sequence in sequences for end in range(1, len(sequence) + 1)}
    assert len(packed.ids) == len(distinct) == len(prefix_of)
    mask = torch.zeros(len(distinct), len(distinct), dtype=torch.bool)
    for block in blocks(torch.from_numpy(packed.ends), 4):
        mask[block.begin : block.end, block.keys] = block.mask[0, 0]
        assert block.mask.any(-2).all(), "every gathered key is seen"
    for query, of_query in prefix_of.items():
        for key, of_key in prefix_of.items():
            assert bool(mask[query, key]) == (of_query[: len(of_key)] == of_key)
