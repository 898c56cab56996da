"""A local model behind the same interface: batched = one by one, seeded, and loaded only when it is needed."""

import pytest
import torch
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import PolicyConfig
from querylect.errors import ModelError
from querylect.llms.base import Prompt, SamplingParams
from querylect.llms.prose import without_thinking
from querylect.rollouts.llms import open_llm
from querylect.rollouts.policy import torch_dtype

from ..raising import refused
from ..tiny import CHATML, save_tiny

pytestmark = pytest.mark.server


ask = Prompt.of
PROMPTS = [ask(text) for text in ("what helps", "the sugar in the blood " * 9, "a head", "q " * 40)]


@pytest.fixture
def model(tiny_policy):
    def open_(**settings):
        return open_llm(LlmConfig(**{"model": str(tiny_policy), "dtype": "float32", "cache": None, **settings}))

    return open_


def test_first_tokens_are_read_in_the_batch_as_they_are_alone(model):
    """Padding changes sums in their last digits, so values are compared and not texts."""
    llm, draw = model(), SamplingParams(n=2, temperature=0.8, max_tokens=1, first_logprobs=4)
    for reply, prompt in zip(llm.ask(PROMPTS, draw), PROMPTS, strict=True):
        (alone,) = llm.ask([prompt], draw)
        assert [text.first for text in reply.texts] == [pytest.approx(alone.texts[0].first, abs=1e-4)] * 2
        assert len(alone.texts[0].first) > 1


@pytest.mark.parametrize(
    "draw", [SamplingParams(max_tokens=12), SamplingParams(n=3, temperature=0.8, max_tokens=12, seed=4)]
)
def test_a_batch_says_what_each_prompt_says_alone(model, draw):
    llm = model()
    together = llm.ask(PROMPTS, draw)
    alone = [llm.ask([prompt], draw)[0] for prompt in reversed(PROMPTS)][::-1]
    assert together == alone
    assert all(len(reply.texts) == draw.n and reply.tokens <= draw.n * 12 for reply in together)
    if draw.n > 1:
        assert len({text.text for text in together[0].texts}) == 3
        again = llm.ask(PROMPTS, SamplingParams(n=3, temperature=0.8, max_tokens=12, seed=5))
        assert again[0].texts != together[0].texts


def test_greedy_texts_are_those_of_transformers(model, tiny_policy):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (reply,) = model().ask([ask("my head hurts")], SamplingParams(max_tokens=8, first_logprobs=3))
    tokenizer = AutoTokenizer.from_pretrained(tiny_policy)
    plain = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    text = tokenizer.apply_chat_template(
        [{"role": "user", "content": "my head hurts"}], add_generation_prompt=True, tokenize=False
    )
    ids = tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        logits = plain(input_ids=ids).logits[0, -1].log_softmax(-1)
    ids_out = plain.generate(input_ids=ids, max_new_tokens=8, do_sample=False)[0, ids.shape[1] :]
    expected = tokenizer.decode(ids_out, clean_up_tokenization_spaces=False)
    assert reply.texts[0].text == expected.removesuffix("<|im_end|>")
    assert reply.prompt_tokens == ids.shape[1]
    values, best = logits.topk(3)
    likeliest = dict(zip(map(tokenizer.decode, best.flip(0).tolist()), values.flip(0).tolist(), strict=True))
    assert reply.texts[0].first == pytest.approx(likeliest, abs=1e-4)


def test_known_replies_load_no_model(model, tmp_path, monkeypatch):
    cache = str(tmp_path / "c")
    with model(cache=cache) as llm:
        first = llm.ask(PROMPTS, SamplingParams(max_tokens=4))

    def refuse(*_):
        raise AssertionError("loaded")

    monkeypatch.setattr("querylect.rollouts.policy.load_policy", refuse)
    with model(cache=cache) as llm:
        assert llm.ask(PROMPTS, SamplingParams(max_tokens=4)) == first
        assert (llm.costs.calls, llm.costs.cached) == (0, 4)
        with pytest.raises(AssertionError, match="loaded"):
            llm.ask(PROMPTS, SamplingParams(max_tokens=5))


def test_other_weights_in_the_same_folder_are_another_model(tmp_path):
    from ..tiny import save_tiny

    folder = save_tiny(tmp_path / "m")
    identity = open_llm(LlmConfig(model=str(folder), cache=None)).identity
    save_tiny(folder, seed=1)
    assert open_llm(LlmConfig(model=str(folder), cache=None)).identity != identity
    auto = PolicyConfig(model=str(folder))
    assert identity["dtype"] == str(torch_dtype(auto)).removeprefix("torch."), "auto is not the same on every device"
    with refused(ModelError, tmp_path / "nowhere"):
        open_llm(LlmConfig(model=str(tmp_path / "nowhere"), cache=None))


def test_thoughts_that_the_template_opens_stand_in_the_text(tmp_path):
    folder = save_tiny(tmp_path / "thinks", chat_template=CHATML.replace("assistant\n{", "assistant\n<think>\n{"))
    with open_llm(LlmConfig(model=str(folder), dtype="float32", cache=None)) as llm:
        (reply,) = llm.ask([Prompt(PROMPTS[0].messages, opening="Query 1:")], SamplingParams(max_tokens=4))
    assert reply.texts[0].text.startswith("<think>")
    assert without_thinking(reply.texts[0].text) == "", "it was cut while it thought"
