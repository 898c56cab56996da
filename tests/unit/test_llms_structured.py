"""Answers of a fixed form: strict reading, one repair that shows the error, then a recorded failure."""

from typing import Literal

import pytest
from pydantic import BaseModel, ConfigDict
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, MissingResponse, Prompt, SamplingParams, Text
from querylect.llms.structured import Structured, ask_structured, instructions, read


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    label: Literal["USEFUL", "NOT USEFUL"]
    score: int


RIGHT = '{"label": "USEFUL", "score": 3}'
VALUE = Verdict(label="USEFUL", score=3)


class Script:
    """Says the texts of a script one after another; None is no reply."""

    def __init__(self, *texts):
        self.identity = {"local": "script"}
        self.texts, self.asked = list(texts), []

    def generate(self, prompts, draw, deliver, costs):
        for place, prompt in enumerate(prompts):
            self.asked.append(prompt)
            text = self.texts.pop(0)
            deliver(place, MissingResponse("gone") if text is None else LlmResponse((Text(text, True),), 1, 1))


def prompts(count):
    return [Prompt(({"role": "user", "content": f"judge {i}"},), "v1") for i in range(count)]


@pytest.mark.parametrize(
    "text",
    [RIGHT, f"  {RIGHT}\n", f"```json\n{RIGHT}\n```", f"```\n{RIGHT}\n```", f"<think>is {{it}}?</think>\n{RIGHT}"],
)
def test_one_object_is_read_with_its_fence_or_thinking(text):
    assert read(text, Verdict) == Structured(value=VALUE, text=text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "USEFUL",
        f"Here: {RIGHT}",
        f"{RIGHT} {RIGHT}",
        "[" + RIGHT + "]",
        '{"label": "USEFUL"}',
        '{"label": "useful", "score": 3}',
        '{"label": "USEFUL", "score": "3"}',
        '{"label": "USEFUL", "score": 3, "why": ""}',
        "<think>" + RIGHT,
    ],
)
def test_everything_else_is_a_failure_that_says_why(text):
    outcome = read(text, Verdict)
    assert outcome.value is None
    assert outcome.failure
    assert not outcome.missing


def test_a_wrong_answer_is_mended_once_and_shown_what_is_wrong():
    script = Script(RIGHT, "hm", '{"label": "x", "score": 1}', None, RIGHT, "still")
    first, mended, failed, missing = ask_structured(Llm(script), prompts(4), Verdict, SamplingParams())
    assert first == Structured(value=VALUE, text=RIGHT)
    assert mended == Structured(value=VALUE, text=RIGHT, repaired=True)
    assert (failed.value, failed.text, failed.repaired, failed.missing) == (None, "still", True, False)
    assert missing.missing
    assert len(script.asked) == 6
    said, ask = script.asked[5].messages[1:]
    assert said == {"role": "assistant", "content": '{"label": "x", "score": 1}'}
    assert "label: Input should be 'USEFUL' or 'NOT USEFUL'" in ask["content"]
    assert instructions(Verdict) in ask["content"]
    assert script.asked[5].version == "v1"


def test_a_repair_without_a_reply_leaves_the_first_failure():
    (outcome,) = ask_structured(Llm(Script("hm", None)), prompts(1), Verdict, SamplingParams())
    assert (outcome.value, outcome.text, outcome.repaired) == (None, "hm", False)
    assert outcome.failure
    with pytest.raises(ValueError, match="n is 2"):
        ask_structured(Llm(Script()), prompts(1), Verdict, SamplingParams(n=2))
