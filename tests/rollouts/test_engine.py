"""Generation with shared prefixes is ordinary generation: the same ids and log-probabilities, computed once; and the
random numbers of samples are even, independent, and the same whatever is sampled beside them."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.errors import ModelError
from querylect.rollouts.engines.base import Sampling, stream
from querylect.rollouts.engines.transformers import TransformersEngine, _draw, _sample, uniforms
from scipy.stats import chisquare, kstest
from transformers import AutoModelForCausalLM, AutoTokenizer

from ..raising import refused
from ..tiny import tiny_model, tiny_tokenizer

pytestmark = pytest.mark.model

GREEDY = Sampling(temperature=0.0, max_new_tokens=8)
SHARED = [7, 8, 9, 10, 11]
PROMPTS = {
    "different lengths": [[*SHARED, 20, 21, 22], [*SHARED, 30], [*SHARED, 20, 41, 42, 43, 44, 45]],
    "one token is left after the common prefix": [SHARED, [*SHARED, 30, 31]],
    "no common prefix": [[20, 21, 22], [30, 31, 32, 33, 34], [40]],
    "equal prompts twice": [[*SHARED, 20], [*SHARED, 30, 31], [*SHARED, 20], [*SHARED, 20]],
    "prompts of one token": [[20], [30]],
}


@pytest.fixture(scope="module", params=["tiny_policy", "tiny_qwen3"])
def engine(request):
    folder = request.getfixturevalue(request.param)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return TransformersEngine(model, AutoTokenizer.from_pretrained(folder))


@pytest.fixture
def llama(tiny_policy):
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32).eval()
    return TransformersEngine(model, AutoTokenizer.from_pretrained(tiny_policy))


def reference(model, prompt, new, stop):
    """The samples of transformers' own generate()."""
    ids = torch.tensor([prompt])
    ends = {"eos_token_id": sorted(stop), "pad_token_id": 0}
    out = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, do_sample=False, **ends)
    return out[0, len(prompt) :].tolist()


def plain_logprobs(model, prompt, completion, temperature=1.0):
    """Log-probabilities of `completion` in one plain forward pass."""
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *completion]])).logits[0, len(prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, -1).gather(-1, torch.tensor(completion)[:, None])[:, 0].tolist()


def counted(engine):
    """Every block of ids that passes through the model, as (rows, tokens)."""
    passed = []
    engine.model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: passed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
    )
    return passed


@pytest.mark.parametrize("case", PROMPTS)
def test_greedy_ids_equal_generate_and_their_logprobs_a_forward_pass(engine, case):
    for prompt, (sample,) in zip(PROMPTS[case], engine.generate(PROMPTS[case], 1, GREEDY), strict=True):
        assert sample.ids == reference(engine.model, prompt, 8, engine.stop_ids)
        assert sample.logprobs == pytest.approx(plain_logprobs(engine.model, prompt, sample.ids), abs=1e-4)


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_sampled_logprobs_are_those_of_the_sampling_temperature(engine, temperature):
    prompts = [*PROMPTS["different lengths"], *PROMPTS["equal prompts twice"]]
    for prompt, samples in zip(prompts, engine.generate(prompts, 5, Sampling(temperature, 1.0, 8)), strict=True):
        for sample in samples:
            expected = plain_logprobs(engine.model, prompt, sample.ids, temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_common_prefix_and_each_distinct_prompt_pass_the_model_once(llama):
    prompts = [[*SHARED, 20, 21, 22], [*SHARED, 30, 31], [*SHARED, 20, 21, 22], [*SHARED, 40]]
    passed = counted(llama)
    llama.generate(prompts, 4, Sampling(1.0, 1.0, 1))
    assert passed == [(1, 5), (3, 3)]


def test_rows_that_stopped_leave_the_grid_and_nothing_else_changes(llama):
    """Stop ids that end most rows early: the grid shrinks in prompts and in slots, and the others go on unchanged."""
    llama.stop_ids = set(range(3, 70))
    prompts = [[*SHARED, *range(20, 20 + length)] for length in (1, 4, 2, 3, 6, 2)]
    passed = counted(llama)
    samples = llama.generate(prompts, 4, Sampling(1.0, 1.0, 12))
    rows = [rows for rows, tokens in passed[2:]]
    assert rows[0] > 3 * rows[-1]
    assert len(set(rows)) > 4
    for prompt, several in zip(prompts, samples, strict=True):
        for sample in several:
            assert sample.logprobs == pytest.approx(plain_logprobs(llama.model, prompt, sample.ids), abs=1e-4)
            assert sample.finished == (sample.ids[-1] in llama.stop_ids)
            assert not set(sample.ids[:-1]) & llama.stop_ids
    assert len({len(sample.ids) for several in samples for sample in several}) > 3


def test_a_stop_id_ends_a_completion_and_max_new_tokens_cuts_it(llama):
    prompt = [*SHARED, 20]
    free = reference(llama.model, prompt, 8, {-1})
    llama.stop_ids = {free[3]}
    (stopped,) = llama.generate([prompt], 1, GREEDY)[0]
    assert (stopped.ids, stopped.finished) == (free[: free.index(free[3]) + 1], True)
    llama.stop_ids = {-1}
    (cut,) = llama.generate([prompt], 1, Sampling(0.0, 1.0, 3))[0]
    assert (cut.ids, cut.finished, len(cut.logprobs)) == (free[:3], False, 3)


def test_the_model_is_left_as_it_was_also_after_a_failure(llama, monkeypatch):
    llama.model.train()
    attention = llama.model.config._attn_implementation
    states = []

    def fail(*_):
        states.append((llama.model.training, llama.model.config._attn_implementation))
        raise KeyboardInterrupt

    monkeypatch.setattr(llama, "_logits", fail)
    with pytest.raises(KeyboardInterrupt):
        llama.generate([[20, 21]], 1, GREEDY)
    assert states == [(False, "querylect_tree")]
    assert (llama.model.training, llama.model.config._attn_implementation) == (True, attention)


@pytest.mark.parametrize(
    ("kind", "changes", "fact"),
    [
        ("mistral", {"sliding_window": 16}, " 16"),
        ("gemma2", {}, "sliding_attention"),
        ("granite", {"logits_scaling": 8.0}, "'granite'"),
        ("bloom", {"n_head": 4}, "'bloom'"),
    ],
)
def test_architectures_that_shared_prefixes_would_falsify_are_refused(kind, changes, fact):
    with refused(ModelError, fact):
        TransformersEngine(tiny_model(kind, **changes), tiny_tokenizer())


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 1.0, 4)])
def test_weights_that_overflowed_are_an_error_and_not_an_answer(llama, sampling):
    with torch.no_grad():
        llama.model.get_output_embeddings().weight[5] = float("nan")
    with refused(ModelError):
        llama.generate([[20, 21]], 2, sampling)


# random numbers


def mixed(z):
    """The finaliser of splitmix64, in Python's unbounded integers."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) % 2**64
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) % 2**64
    return z ^ (z >> 31)


def splitmix64(state, count):
    return [mixed((state + number * 0x9E3779B97F4A7C15) % 2**64) for number in range(1, count + 1)]


@pytest.mark.parametrize("name", [0, -1, 2**63 - 1, -(2**63), 1234567])
def test_a_stream_is_splitmix64(name):
    drawn = uniforms(torch.tensor([name]), 3, 50)
    for under, row in zip(splitmix64(mixed(name % 2**64), 3), drawn.tolist(), strict=True):
        assert row == [(number >> 40) / 2**24 for number in splitmix64(under, 50)]


def test_streams_are_even_and_unlike_their_neighbours():
    """Over positions, steps and similar names."""
    names = torch.tensor([stream(0, step, f"question {step}") for step in range(100)])
    table = uniforms(names, 16, 50).T
    assert len({tuple(row) for row in table.T.tolist()}) == 1600
    assert kstest(table.flatten().numpy(), "uniform").pvalue > 1e-3
    for one, next_to_it in ((table[:, :-1], table[:, 1:]), (table[:-1], table[1:])):
        pairs = (one * 8).long() * 8 + (next_to_it * 8).long()
        assert chisquare(torch.bincount(pairs.flatten(), minlength=64)).pvalue > 1e-3


def test_a_sample_does_not_depend_on_what_is_sampled_beside_it(llama):
    prompts = [[20, 21, 22], [20, 21], [40, 41, 42, 43], [20, 21, 22]]
    names = tuple(stream("here", number) for number in range(4))

    def ids(chosen, micro_batch):
        llama.micro_batch = micro_batch
        sampling = Sampling(1.0, 1.0, 8, tuple(names[i] for i in chosen))
        sampled = llama.generate([prompts[i] for i in chosen], 3, sampling)
        return {i: [sample.ids for sample in samples] for i, samples in zip(chosen, sampled, strict=True)}

    together = ids([0, 1, 2, 3], 256)
    assert together[0] != together[3], "equal prompts have streams of their own"
    assert len({tuple(sample) for sample in together[0]}) > 1
    assert ids([3, 2, 1, 0], 3) == together
    assert ids([2], 256)[2] == together[2]


@pytest.mark.parametrize(("columns", "block"), [(3, 16), (300, 16), (256, 256), (700, 256)])
def test_columns_are_drawn_in_proportion_to_their_weights(columns, block):
    """Chi-square against the weights, which lie over several blocks and have empty stretches among them."""
    generator = torch.Generator().manual_seed(columns)
    weights = torch.rand(columns, generator=generator) ** 3
    weights[::3] = 0
    weights[16:48] = 0
    weights[1] = 0.5
    draws = 40_000
    drawn = _draw((2.5 * weights).expand(draws, -1), torch.rand(draws, 1, generator=generator), block)
    counts = torch.bincount(drawn, minlength=columns)
    expected = weights.double() / weights.double().sum() * draws
    assert counts[expected == 0].sum() == 0
    common = expected >= 5
    observed, share = counts[common].double(), expected[common]
    assert chisquare(observed, share * observed.sum() / share.sum()).pvalue > 1e-3


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([0.0, 0.0, 1e-38, 1e-9, 0.1, 1 / 3, 1.0]), min_size=1, max_size=40),
    st.sampled_from([0.0, 1e-7, 0.1, 0.5, 0.9, 0.9999999, 1 - 2**-24]),
    st.sampled_from([4, 16, 256]),
)
def test_a_column_without_weight_is_never_drawn(weights, uniform, block):
    """At both ends of the random number and for all roundings: what is drawn exists and has weight."""
    if not sum(weights):
        weights[0] = 1.0
    drawn = int(_draw(torch.tensor([weights]), torch.tensor([[uniform]]), block))
    assert drawn < len(weights)
    assert weights[drawn] > 0


def test_the_nucleus_is_the_fewest_tokens_that_reach_top_p():
    """Probabilities .4 .3 .2 .1: at top_p .65 the two likeliest remain, in the ratio 4 : 3; recorded is the draw's."""
    logits = torch.tensor([0.2, 0.4, 0.1, 0.3]).log().expand(20_000, -1)
    random = torch.rand(20_000, 1, generator=torch.Generator().manual_seed(0))
    token, logprob = _sample(logits, Sampling(1.0, 0.65, 1), random)
    counts = torch.bincount(token, minlength=4).tolist()
    assert (counts[0], counts[2]) == (0, 0)
    assert chisquare([counts[1], counts[3]], [20_000 * 4 / 7, 20_000 * 3 / 7]).pvalue > 1e-3
    assert logprob[token == 1][0].item() == pytest.approx(math.log(4 / 7))
    assert logprob[token == 3][0].item() == pytest.approx(math.log(3 / 7))
