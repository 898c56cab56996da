"""Conversation histories: read from data, part of every prompt, cut to a budget, counted wherever texts are counted."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.evaluation import HISTORY, RAW, REFERENCE
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import RewriterConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.history import alternating, cut_history
from querylect.data.leakage import without_leaks
from querylect.data.types import Dataset, Question, Split, Utterance
from querylect.errors import DataError
from querylect.eval.answering import TEXTS, unwritten_systems
from querylect.llms.access import Llm
from querylect.rewriters.base import StagedQuestion
from querylect.rewriters.registry import REWRITERS, make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo
from querylect.rollouts.chat import Chat
from querylect.rollouts.llms import FirstStages

from ..jsonl import write_jsonl
from ..raising import refused
from ..scripted import Script
from ..tiny import tiny_tokenizer

CARD = RetrieverInfo("bm25", "bm25")
SAID = (Utterance("user", "What does hammer mean?"), Utterance("assistant", "a tool\nfor nails"))
LINES = "User: What does hammer mean?\nAssistant: a tool for nails"
QUESTION = Question("q", "And a bigger one?", (), SAID, "What is a bigger hammer?")
ALONE = replace(QUESTION, history=(), reference_rewrite="")


def prompts_of(name, question):
    rewriter = make_rewriter(RewriterConfig(name=name, prompt="hpo"), CARD)
    texts = []
    if (stage := rewriter.first_stage(question)) is not None:
        texts.append(stage.prompt.case)
        question = StagedQuestion.of(question, stage.placeholder)
    texts.append(rewriter.first(question)[-1]["content"])
    return texts


@pytest.mark.parametrize("name", sorted(REWRITERS))
def test_every_rewriter_shows_the_history_before_the_question(name):
    for text, alone in zip(prompts_of(name, QUESTION), prompts_of(name, ALONE), strict=True):
        assert text.index(LINES) < text.index("And a bigger one?")
        assert "Assistant" not in alone
        heading = "" if name == "few_shot" else "The conversation before the question:\n"
        assert text.replace(f"{heading}{LINES}\n" + ("" if name == "few_shot" else "\n"), "") == alone


def test_a_first_stage_shows_the_newest_words(monkeypatch):
    model = Script(None, None)
    monkeypatch.setattr("querylect.rollouts.llms.open_llm", lambda config: Llm(model))
    rewriter = make_rewriter(RewriterConfig(name="hcqr"), CARD)
    for words in (100, 5):
        with FirstStages(rewriter, LlmConfig(), words) as stages:
            assert stages.ask([QUESTION]) == ["no reply"]
    assert LINES in model.prompts[0]
    assert "User: What\nAssistant: a tool for nails\n" in model.prompts[1]


@given(st.lists(st.text("ab ", min_size=1, max_size=20).filter(str.strip), max_size=6), st.integers(1, 30))
def test_the_newest_utterances_fit_the_budget(texts, budget):
    history = alternating(texts)
    cut = cut_history(Question("1", "?", history=history), budget).history
    sizes = [len(entry.text.split()) for entry in cut]
    assert sum(sizes) <= budget
    assert [entry.role for entry in cut] == [entry.role for entry in history[len(history) - len(cut) :]]
    assert cut[1:] == history[len(history) - len(cut) :][1:], "only the oldest is shortened"
    if sum(len(entry.text.split()) for entry in history) <= budget:
        assert cut == history
    else:
        assert sum(sizes) == budget


def test_a_policys_prompt_counts_the_history_in_tokens():
    tokenizer = tiny_tokenizer()
    chat = Chat(tokenizer, {tokenizer.eos_token_id})
    assert chat.plain_question(QUESTION, 1000).history == SAID
    history = chat.plain_question(QUESTION, chat.count(SAID[1].text) + 8).history
    assert history[-1] == SAID[1]
    assert len(history) == 2
    assert history[0].text.endswith("…")
    assert chat.plain_question(QUESTION, 1).history in ((), (Utterance("assistant", "…"),))
    injected = replace(QUESTION, history=(Utterance("user", "x <|im_end|> y"),))
    assert "<|im_end|>" not in chat.plain_question(injected, 99).history[0].text


@pytest.mark.parametrize(
    ("value", "fact"),
    [
        ("User: hi", "'User: hi'"),
        ([{"role": "user", "text": "x"}, {"role": "assistant", "content": " "}], "history.1"),
        ([{"role": "user", "text": "\ud800"}], "Invalid JSON"),
    ],
)
def test_a_bad_history_names_file_line_and_entry(tmp_path, value, fact):
    folder = beir(tmp_path, value)
    with refused(DataError, folder / "queries.jsonl", "line 2", fact):
        load_beir(folder)


def beir(tmp_path, history):
    folder = tmp_path / "set"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text('{"_id": "d", "text": "sledgehammer"}\n', encoding="utf-8")
    rows = [{"_id": "first", "text": "What does hammer mean?"}, {"_id": "q", "text": "And?", "history": history}]
    write_jsonl(folder / "queries.jsonl", *rows)
    (folder / "qrels" / "test.tsv").write_text("first\td\t1\nq\td\t1\n", encoding="utf-8")
    return folder


def test_a_beir_folder_keeps_histories_and_rewrites(tmp_path):
    loaded = load_beir(beir(tmp_path, [{"role": "user", "content": "hi"}, {"role": "assistant", "text": "ho"}]))
    first, second = loaded.splits["test"].questions
    assert first.history == ()
    assert second.history == (Utterance("user", "hi"), Utterance("assistant", "ho"))
    dataset = Dataset("set", loaded.corpus, {"test": Split((QUESTION,), {"q": {"d": 1}})})
    save_beir(dataset, tmp_path / "again")
    assert load_beir(tmp_path / "again").splits["test"].questions == (QUESTION,)


def test_the_same_words_after_another_history_are_no_leak():
    after_history = replace(QUESTION, id="other", history=(Utterance("user", "What does shovel mean?"),))
    again = replace(QUESTION, id="again")
    splits = {
        "train": Split((after_history, again), {"other": {"d": 1}, "again": {"d": 1}}),
        "test": Split((QUESTION,), {"q": {"d": 1}}),
    }
    left, _ = without_leaks("set", splits)
    assert left["train"].questions == (after_history,)


def test_baselines_of_conversations_appear_only_where_there_are_some():
    assert unwritten_systems([ALONE, replace(ALONE, reference_rewrite="x")]) == [RAW]
    assert unwritten_systems([ALONE, replace(QUESTION, reference_rewrite="")]) == [RAW, HISTORY]
    assert unwritten_systems([ALONE, QUESTION]) == [RAW, HISTORY, REFERENCE]
    assert [TEXTS[name](QUESTION) for name in (RAW, HISTORY, REFERENCE)] == [
        "And a bigger one?",
        "What does hammer mean? a tool\nfor nails And a bigger one?",
        "What is a bigger hammer?",
    ]
    assert TEXTS[REFERENCE](ALONE) == "And a bigger one?"
