"""Few-shot prompts: the chat is in form, every example keeps the format, and no example gives away a question."""

from pathlib import Path

import pytest
import yaml
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Question
from querylect.errors import ConfigError
from querylect.rewriters.few_shot import PROMPTS, load_prompt
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused

CARD = RetrieverInfo("bm25", "bm25")
PACKAGED = sorted(path.stem for path in PROMPTS.glob("*.yaml"))

SECOND_TURN = {"documents": ["Pes cavus", "Pes planus"], "think": "the second", "rewrite": "pes planus"}
PROMPT = {
    "system": "Translate.",
    "question": "Phrase: {question}",
    "documents": "Found:\n{documents}\nBetter:",
    "no_documents": "Nothing.",
    "examples": [
        {"question": "flat foot", "turns": [{"rewrite": "planus"}, SECOND_TURN]},
        {"question": "{documents} red eye", "turns": [{"rewrite": "conjunctival < hyperemia"}]},
    ],
}


def write(folder: Path, prompt: object) -> str:
    path = folder / "prompt.yaml"
    path.write_text(yaml.safe_dump(prompt), encoding="utf-8")
    return str(path)


def make(prompt="hpo"):
    return make_rewriter(RewriterConfig(name="few_shot", prompt=prompt), CARD)


def test_the_chat_is_exactly_the_examples_and_the_question(tmp_path):
    messages = make(write(tmp_path, PROMPT)).first(Question("q", "big {question} head", ("femur", "tibia")))
    assert [(message["role"], message["content"]) for message in messages] == [
        ("system", "Translate."),
        ("user", "Phrase: flat foot"),
        ("assistant", "<think></think><rewrite>planus</rewrite>"),
        ("user", "Found:\nPes cavus\nPes planus\nBetter:"),
        ("assistant", "<think>the second</think><rewrite>pes planus</rewrite>"),
        ("user", "Phrase: {documents} red eye"),
        ("assistant", "<think></think><rewrite>conjunctival < hyperemia</rewrite>"),
        ("user", "Phrase: big {question} head\nA. femur\nB. tibia"),
    ]


@pytest.mark.parametrize("name", PACKAGED)
def test_a_packaged_prompt_alternates_and_its_answers_keep_the_format(name):
    rewriter = make(name)
    question = Question("q", "Big head")
    system, *turns = rewriter.first(question)
    assert system["role"] == "system"
    assert [message["role"] for message in turns] == ["user", "assistant"] * (len(turns) // 2) + ["user"]
    assert turns[-1]["content"] == rewriter.prompt.ask(question, "bm25")
    answers = [message["content"] for message in turns if message["role"] == "assistant"]
    assert len(answers) >= 3
    sampled = [answer.removeprefix(rewriter.opening) for answer in answers]
    assert not any(rewriter.parse(question, text, 1).failure for text in sampled)


def test_a_prompt_with_a_place_for_it_names_the_retriever_of_the_card(tmp_path):
    prompt = {
        **PROMPT,
        "question": "{retriever} < {question}",
        "examples": [{"question": "flat foot", "retriever": "bm25", "turns": [{"rewrite": "planus"}]}],
    }
    config = RewriterConfig(name="few_shot", prompt=write(tmp_path, prompt))
    question = Question("q", "big {retriever} head")
    for name, kind in (("bm25", "bm25"), ("all-minilm-l6-v2", "dense")):
        chat = make_rewriter(config, RetrieverInfo(name, kind)).first(question)
        assert [message["content"] for message in chat if message["role"] == "user"] == [
            "bm25 < flat foot",
            f"{name} < big {{retriever}} head",
        ]


def test_an_answer_continues_the_opening_of_the_prompt(tmp_path):
    opened = {**PROMPT, "examples": PROMPT["examples"][1:], "opening": "<think></think><rewrite>"}
    rewriter, question = make(write(tmp_path, opened)), Question("q", "flat foot")
    assert rewriter.opening == "<think></think><rewrite>"
    assert rewriter.parse(question, "pes planus</rewrite>", 1).rewrites == ("pes planus",)
    assert rewriter.parse(question, "pes planus", 1).failure == "unclosed rewrite"
    assert rewriter.parse(question, "<think></think><rewrite>pes planus</rewrite>", 1).failure == "nested tag"
    assert make(write(tmp_path, PROMPT)).opening == ""


@pytest.mark.parametrize(
    ("change", "facts"),
    [
        ({"sytem": "x"}, ["sytem"]),
        ({"question": "no place"}, ["question"]),
        ({"opening": "<think></think><rewrite>"}, ["'<think></think><rewrite>'"]),
    ],
)
def test_a_prompt_that_would_teach_nonsense_is_refused(tmp_path, change, facts):
    with refused(ConfigError, *facts):
        load_prompt(write(tmp_path, {**PROMPT, **change}))
