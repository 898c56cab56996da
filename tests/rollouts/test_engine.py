"""Generation with shared prefixes is ordinary generation: the same ids and log-probabilities, computed once."""

from collections import Counter

import pytest
import torch
from querylect.errors import ModelError
from querylect.rollouts.engines.base import Sampling
from querylect.rollouts.engines.transformers import TransformersEngine
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
    "a single prompt": [[*SHARED, 50]],
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
    out = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=new,
        do_sample=False,
        eos_token_id=sorted(stop),
        pad_token_id=0,
    )
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
    torch.manual_seed(0)
    prompts = [*PROMPTS["different lengths"], *PROMPTS["equal prompts twice"]]
    for prompt, samples in zip(prompts, engine.generate(prompts, 5, Sampling(temperature, 1.0, 8)), strict=True):
        for sample in samples:
            expected = plain_logprobs(engine.model, prompt, sample.ids, temperature)
            assert sample.logprobs == pytest.approx(expected, abs=1e-4)


def test_a_batch_says_what_each_prompt_says_alone_in_any_order_and_micro_batch(engine):
    prompts = [prompt for several in PROMPTS.values() for prompt in several]
    together = engine.generate(prompts, 1, GREEDY)
    alone = [engine.generate([prompt], 1, GREEDY)[0] for prompt in prompts]
    assert [s[0].ids for s in together] == [s[0].ids for s in alone]
    backwards = engine.generate(prompts[::-1], 1, GREEDY)[::-1]
    assert [s[0].ids for s in backwards] == [s[0].ids for s in together]
    engine.micro_batch, micro_batch = 2, engine.micro_batch
    try:
        small = engine.generate(prompts, 1, GREEDY)
    finally:
        engine.micro_batch = micro_batch
    assert [s[0].ids for s in small] == [s[0].ids for s in together]
    for actual, expected in zip(small, together, strict=True):
        assert actual[0].logprobs == pytest.approx(expected[0].logprobs, abs=1e-4)


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
    lengths = Counter()
    for prompt, several in zip(prompts, samples, strict=True):
        for sample in several:
            lengths[len(sample.ids)] += 1
            assert sample.logprobs == pytest.approx(plain_logprobs(llama.model, prompt, sample.ids), abs=1e-4)
            assert sample.finished == (sample.ids[-1] in llama.stop_ids)
            assert not set(sample.ids[:-1]) & llama.stop_ids
    assert len(lengths) > 3


def test_a_stop_id_ends_a_completion_and_max_new_tokens_cuts_it(llama):
    prompt = [*SHARED, 20]
    free = reference(llama.model, prompt, 8, {-1})
    stop = free[3]
    llama.stop_ids = {stop}
    (stopped,) = llama.generate([prompt], 1, GREEDY)[0]
    assert stopped.ids == free[: free.index(stop) + 1]
    assert stopped.finished
    llama.stop_ids = {-1}
    (cut,) = llama.generate([prompt], 1, Sampling(0.0, 1.0, 3))[0]
    assert (cut.ids, cut.finished) == (free[:3], False)
    assert len(cut.logprobs) == 3


@pytest.mark.parametrize("training", [True, False])
def test_the_model_is_left_as_it_was_also_after_a_failure(llama, training, monkeypatch):
    llama.model.train(training)
    attention = llama.model.config._attn_implementation
    llama.generate([[20, 21]], 1, GREEDY)
    assert (llama.model.training, llama.model.config._attn_implementation) == (training, attention)

    states = []

    def fail(*_):
        states.append((llama.model.training, llama.model.config._attn_implementation))
        raise KeyboardInterrupt

    monkeypatch.setattr(llama, "_logits", fail)
    with pytest.raises(KeyboardInterrupt):
        llama.generate([[20, 21]], 1, GREEDY)
    assert states == [(False, "querylect_tree")]
    assert (llama.model.training, llama.model.config._attn_implementation) == (training, attention)
    loss = llama.model(torch.tensor([[20, 21, 22]]), labels=torch.tensor([[20, 21, 22]])).loss
    loss.backward()
    assert llama.model.get_input_embeddings().weight.grad is not None


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
    model = tiny_model(kind, **changes)
    with refused(ModelError, fact):
        TransformersEngine(model, tiny_tokenizer())
    assert not model.training


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0, 1.0, 4)])
def test_weights_that_overflowed_are_an_error_and_not_an_answer(llama, sampling):
    with torch.no_grad():
        llama.model.get_output_embeddings().weight[5] = float("nan")
    with refused(ModelError):
        llama.generate([[20, 21]], 2, sampling)
