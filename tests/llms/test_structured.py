"""Answers of a fixed form: what is read, one repair that shows the error, then a recorded failure."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict
from querylect.llms.access import Llm
from querylect.llms.base import Prompt, SamplingParams
from querylect.llms.json_answers import find_values
from querylect.llms.structured import Structured, ask_structured, instructions, read

from ..scripted import Script


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    label: Literal["USEFUL", "NOT USEFUL"]
    score: int


RIGHT = '{"label": "USEFUL", "score": 3}'
VALUE = Verdict(label="USEFUL", score=3)


def prompts(count):
    return [Prompt(({"role": "user", "content": f"judge {i}"},), "v1") for i in range(count)]


@pytest.mark.parametrize(
    "text",
    [
        RIGHT,
        f"```json\n{RIGHT}\n```",
        f"<think>is {{it}}?</think>\n{RIGHT}",
        f'is it {{"label": "NOT USEFUL", "score": 0}}?</think>\n{RIGHT}',
        f"Here is my answer: {RIGHT} I hope this helps!",
        f"{RIGHT} {RIGHT}",
        f"[{RIGHT}]",
        f'{{"answer": {RIGHT}}}',
        '{"Label": "useful", "SCORE": "3", "why": ""}',
        '{"label": "USEFUL", "score": 3,}',
        "{'label': 'USEFUL', 'score': 3}",
        '{label: "USEFUL", score: 3}',
        '{"label": "USEFUL", "score": 3',
        f'{{"label": "<label>", "score": 1}} would be wrong. {RIGHT}',
        "**Label:** USEFUL\n**Score:** 3",
        "Sure!\n\n1. Label: useful\n2. Score: 3\n\nLet me know if you need more.",
    ],
)
def test_an_object_is_read_wherever_it_stands(text):
    assert read(text, Verdict) == Structured(value=VALUE, text=text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        '{"label": "USEFUL"}',
        '{"label": "very useful", "score": 3}',
        '{"label": "USEFUL", "score": "high"}',
        f'{RIGHT} or {{"label": "NOT USEFUL", "score": 3}}',
        "<think>" + RIGHT,
        "I'm sorry, but I can't judge this.",
        '{"label": "USEFUL", "score": 3\ud800}',
    ],
)
def test_what_could_mean_two_things_or_nothing_is_a_failure_that_says_why(text):
    outcome = read(text, Verdict)
    assert outcome.value is None
    assert outcome.failure
    assert not outcome.missing


def test_a_wrong_answer_is_mended_once_and_shown_what_is_wrong():
    script = Script(RIGHT, "hm", '{"label": "x", "score": 1}', None, RIGHT, "still")
    first, mended, failed, missing = ask_structured(Llm(script), prompts(4), Verdict, SamplingParams())
    assert first == Structured(value=VALUE, text=RIGHT)
    assert (mended, len(mended.replies)) == (Structured(value=VALUE, text=RIGHT), 2)
    assert (failed.value, failed.text, len(failed.replies), failed.missing) == (None, "still", 2, False)
    assert missing.missing
    assert len(script.prompts) == 6
    reply, ask = script.prompts[5].messages[1:]
    assert reply == {"role": "assistant", "content": '{"label": "x", "score": 1}'}
    assert "label: Input should be 'USEFUL' or 'NOT USEFUL'" in ask["content"]
    assert instructions(Verdict) in ask["content"]
    assert script.prompts[5].version == "v1"


def test_a_repair_without_a_reply_leaves_the_first_failure():
    (outcome,) = ask_structured(Llm(Script("hm", None)), prompts(1), Verdict, SamplingParams())
    assert (outcome.value, outcome.text, len(outcome.replies)) == (None, "hm", 1)
    assert outcome.failure


def test_half_an_object_at_the_limit_is_not_taken_for_a_whole_one():
    half = '{"label": "USEFUL", "score": 3'
    for text in (half, f"```json\n{half}", "Label: USEFUL\nScore: 3"):
        assert read(text, Verdict, finished=False).value is None
        assert read(text, Verdict).value == VALUE


def test_the_schema_goes_with_the_repair_to_a_backend_that_takes_one():
    for schemas in (True, False):
        script = Script("hm", RIGHT)
        ask_structured(Llm(script, schemas=schemas), prompts(1), Verdict, SamplingParams())
        assert [bool(prompt.schema) for prompt in script.prompts] == [False, schemas]
    script = Script("hm", "Label: USEFUL\nScore: 3")
    ask_structured(Llm(script, schemas=True), prompts(1), Verdict, SamplingParams(), "lines")
    assert not any(prompt.schema for prompt in script.prompts), "lines fit no JSON schema"


def test_a_model_that_repeats_a_bracket_is_read_in_linear_time():
    for text in ("{" * 50_000, "[" * 50_000, '{"a": ' * 10_000, "[[" * 20_000 + RIGHT):
        assert read(text, Verdict).value in (None, VALUE)
        assert len(find_values(text)) <= 1
