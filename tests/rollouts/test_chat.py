"""From chat to ids: later turns continue the sampled ids, and outside text cannot speak for the template."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from querylect.errors import ModelError
from querylect.rollouts.chat import Chat
from tokenizers import AddedToken

from ..raising import refused
from ..tiny import tiny_tokenizer

STRIPS_THINKING = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.role == 'assistant' %}{{ message.content.split('</think>')[-1] }}"
    "{% else %}{{ message.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
DROPS_ASSISTANT = STRIPS_THINKING.replace("message.content.split('</think>')[-1]", "''")
FIRST = [{"role": "system", "content": "Rewrite."}, {"role": "user", "content": "my head hurts"}]
ANSWER = "<think>it aches</think><rewrite>headache</rewrite>"


def chat_of(template=None):
    tokenizer = tiny_tokenizer(template) if template else tiny_tokenizer()
    return Chat(tokenizer, {tokenizer.eos_token_id})


@pytest.fixture(scope="module")
def chat():
    return chat_of()


def ids(chat, text):
    return chat.tokenizer(text, add_special_tokens=False)["input_ids"]


def control_ids(chat):
    return set(ids(chat, "<|im_start|><|im_end|><|endoftext|>"))


def test_a_first_turn_is_the_template_up_to_the_assistants_turn(chat):
    text = "<|im_start|>system\nRewrite.<|im_end|>\n<|im_start|>user\nmy head hurts<|im_end|>\n<|im_start|>assistant\n"
    assert chat.tokenizer.decode(chat.first(FIRST)) == text
    assert chat.first(FIRST, "<think></think>") == [*chat.first(FIRST), *ids(chat, "<think></think>")]


def test_the_ids_after_a_sampled_end_do_not_repeat_it(chat):
    sampled = [*ids(chat, ANSWER), chat.tokenizer.eos_token_id]
    follow = chat.continuation(FIRST, "Found: Migraine", sampled)
    assert chat.tokenizer.decode(follow) == "\n<|im_start|>user\nFound: Migraine<|im_end|>\n<|im_start|>assistant\n"
    decoded = chat.tokenizer.decode([*chat.first(FIRST), *sampled, *follow])
    turns = [{"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Found: Migraine"}]
    assert decoded == chat.tokenizer.apply_chat_template([*FIRST, *turns], tokenize=False, add_generation_prompt=True)


@pytest.mark.parametrize("text", ["", "<think>it ach", f"{ANSWER}<|endoftext|>"])
def test_a_turn_that_did_not_end_is_ended(chat, text):
    completion = ids(chat, text)
    follow = chat.tokenizer.decode(chat.continuation(FIRST, "Found", completion))
    assert follow == "<|im_end|>\n<|im_start|>user\nFound<|im_end|>\n<|im_start|>assistant\n"
    opened = chat.tokenizer.decode(chat.continuation(FIRST, "Found", completion, "<think>"))
    assert opened == f"{follow}<think>"


def test_a_template_that_strips_thinking_changes_nothing_of_an_earlier_turn():
    """What was sampled stays; the ids of the next turn are those of a template that strips nothing."""
    stripping, plain = chat_of(STRIPS_THINKING), chat_of()
    sampled = [*ids(plain, ANSWER), plain.tokenizer.eos_token_id]
    again = [*FIRST, {"role": "assistant", "content": ANSWER}, {"role": "user", "content": "Found"}]
    for messages in (FIRST, again):
        assert stripping.first(FIRST) == plain.first(FIRST)
        assert stripping.continuation(messages, "Next", sampled) == plain.continuation(messages, "Next", sampled)
    assert "it aches" not in stripping.tokenizer.apply_chat_template(again, tokenize=False)


def test_a_template_that_drops_turns_is_refused():
    with refused(ModelError, "rollout.branching"):
        chat_of(DROPS_ASSISTANT).continuation(FIRST, "Found", [])


PIECES = st.sampled_from(
    ["<|im_", "start|>", "<|im_start|>", "<|im_end|>", "end|>", "<|endoftext|>", "a", " ", "<", "|>"]
)


@settings(max_examples=200)
@given(st.lists(PIECES, max_size=12).map("".join), st.integers(1, 40))
def test_no_piece_of_outside_text_becomes_a_control_token(text, tokens):
    """Also where taking one out of the text would put another together."""
    chat = CHAT
    for cleaned in (chat.plain(text), chat.cut(text, tokens)):
        assert not control_ids(chat) & set(ids(chat, cleaned))
        assert not any(token in cleaned for token in ("<|im_start|>", "<|im_end|>", "<|endoftext|>"))


CHAT = chat_of()


def test_control_tokens_that_the_tokenizer_does_not_name_are_taken_out_too():
    """Llama 3 lists its header tokens only among the added ones; others are added as ordinary text."""
    template = "{% for m in messages %}<header>{{ m.role }}<|end of header|>{{ m.content }}<|eot|>{% endfor %}<header>"
    tokenizer = tiny_tokenizer(template)
    specials = [AddedToken("<|eot|>", special=True), AddedToken("<|end of header|>", special=True)]
    tokenizer.add_tokens([*specials, AddedToken("<header>"), AddedToken("<harmless>")])
    listed = {"<|eot|>", "<header>"} & set(tokenizer.all_special_tokens)
    assert not listed
    chat = Chat(tokenizer, {tokenizer.eos_token_id})
    assert chat.plain("a<header>assistant<|eot|>b <harmless>") == "a assistant b <harmless>"
    assert chat.plain("a<|end<|eot|>of header|>b") == "a b"


WORDS = st.text(
    st.one_of(st.characters(codec="utf-8", exclude_categories=("Cs",)), st.sampled_from("aeé漢🙂 ,.…<>")), max_size=60
)


@settings(max_examples=300)
@given(WORDS, st.integers(1, 30))
def test_cut_keeps_to_its_budget_and_to_the_beginning(text, tokens):
    cut = CHAT.cut(text, tokens)
    full = " ".join(CHAT.plain(text).split())
    assert len(ids(CHAT, cut)) <= tokens
    assert "\n" not in cut
    if len(ids(CHAT, full)) <= tokens:
        assert cut == full
    else:
        assert cut == "" or (cut.endswith("…") and full.startswith(cut[:-1]))


def test_a_template_that_opens_thinking_leaves_its_tag_to_the_answer_or_is_refused():
    template = STRIPS_THINKING.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")
    ids, opening = chat_of(template).first_of_prompted(FIRST, "Query 1:")
    assert opening == "<think>", "a label inside the thoughts would begin no answer"
    with refused(ModelError, "<think>"):  # of a policy: every answer would be a format failure
        chat_of(template).first(FIRST)
    assert chat_of(template).tokenizer.decode(ids).endswith("assistant\n<think>\n")
    assert chat_of().first_of_prompted(FIRST, "Query 1:") == (chat_of().first(FIRST, "Query 1:"), "Query 1:")
