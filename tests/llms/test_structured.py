"""Answers of a fixed form: what is read, one repair that shows the error, then a recorded failure; and lines."""

import json
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, ConfigDict, Field
from querylect.configs.methods import PromptConfig
from querylect.eval.tasks import judges
from querylect.llms.access import Llm
from querylect.llms.base import SamplingParams
from querylect.llms.structured import FormPrompt, Structured, WorkedExample, ask_structured, instructions, read, worked
from querylect.methods import migres, misknow, one_search
from querylect.methods.prompts import prompts_of

from ..scripted import Script


class Verdict(BaseModel):
    model_config = ConfigDict(extra="forbid")
    label: Literal["USEFUL", "NOT USEFUL"]
    score: int


class YesNo(BaseModel):
    explanation: str
    verdict: bool


RIGHT = '{"label": "USEFUL", "score": 3}'
VALUE = Verdict(label="USEFUL", score=3)
GREEDY = SamplingParams()


def prompts(count):
    return [FormPrompt("Judge.", f"case {i}") for i in range(count)]


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
        '{"label": "USEFUL", "score": "3",}',
        "{'label': 'USEFUL', 'score': 3}",
        '{label: "USEFUL", score: 3}',
        '{"label": "USEFUL", "score": 3',
        f'{{"label": "<label>", "score": 1}} would be wrong. {RIGHT}',
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
        "<think>" + RIGHT,
        "I'm sorry, but I can't judge this.",
        '{"label": "USEFUL", "score": 3\ud800}',
        '{"label": "\\ud800", "score": 3}',
        "{" * 50_000,
        '{"a": ' * 10_000,
        "[[" * 20_000 + RIGHT,
    ],
)
def test_what_is_none_is_a_failure_that_says_why(text):
    outcome = read(text, Verdict)
    assert outcome.value is None
    assert outcome.failure
    assert not outcome.missing


def test_what_was_cut_at_the_limit_is_not_taken_for_a_whole_one():
    for text in (RIGHT, '{"label": "USEFUL", "score": 3'):
        assert "cut off" in read(text, Verdict, finished=False).failure
        assert read(text, Verdict).value == VALUE
    in_lines = {"Explanation: so\nVerdict: no": None, "Explanation: so\nVerdict: no\nExpl": False}
    for text, verdict in in_lines.items():
        value = read(text, YesNo, as_json=False, finished=False).value
        assert (value and value.verdict) is verdict


def test_a_wrong_answer_is_mended_once_and_shown_what_is_wrong():
    script = Script(RIGHT, "hm", '{"label": "x", "score": 1}', None, "hm", RIGHT, "still", None)
    right, mended, failed, missing, unmended = ask_structured(Llm(script), prompts(5), Verdict, GREEDY)
    assert right == Structured(value=VALUE, text=RIGHT)
    assert (mended, len(mended.replies)) == (Structured(value=VALUE, text=RIGHT), 2)
    assert (failed.value, failed.text, len(failed.replies), failed.missing) == (None, "still", 2, False)
    assert missing.missing
    assert (unmended.value, unmended.text, len(unmended.replies), unmended.missing) == (None, "hm", 1, False)
    reply, ask = script.requests[6].messages[1:]
    assert reply == {"role": "assistant", "content": '{"label": "x", "score": 1}'}
    assert "label: Input should be 'USEFUL' or 'NOT USEFUL'" in ask["content"]
    assert instructions(Verdict) in ask["content"]


def test_the_schema_goes_with_the_request_unless_thinking_comes_first():
    script = Script(RIGHT, "hm", RIGHT)
    ask_structured(Llm(script), prompts(1), Verdict, GREEDY)
    thinking = FormPrompt("Judge.", "case", request="Think between <think> and </think>. Then write JSON.")
    ask_structured(Llm(script), [thinking], Verdict, GREEDY)
    assert [bool(prompt.schema) for prompt in script.requests] == [True, False, True], "the repair has it"
    schema = json.loads(script.requests[0].schema)
    assert (schema["additionalProperties"], schema["required"]) == (False, ["label", "score"])


EXAMPLE = WorkedExample("Reply: 4", YesNo(explanation="four", verdict=True))


def test_a_local_model_gets_a_chat_in_lines_and_its_answer_begun():
    prompt = FormPrompt("Judge the reply.", "Reply: 5", (EXAMPLE,), hints={"explanation": "why"})
    asked = prompt.worded(YesNo, as_json=False)
    assert (asked.opening, asked.schema) == ("Explanation:", "")
    task, example, case = (message["content"] for message in asked.messages)
    assert task.startswith("Judge the reply.\n\nAnswer with these lines")
    assert task.endswith("\nExplanation: <why>\nVerdict: <yes or no>\n\nReply: 4")
    assert (example, case) == ("Explanation: four\nVerdict: yes", "Reply: 5")
    (alone,) = FormPrompt("Judge.", "Reply: 5").worded(YesNo, as_json=False).messages
    assert alone["content"].endswith("Reply: 5")
    assert prompt.worded(YesNo, as_json=True).messages[0]["content"].endswith("\n\nReply: 5")
    script = Script("Explanation: so.\nVerdict: perhaps", "Explanation: so.\nVerdict: **No.**")
    (mended,) = ask_structured(Llm(script, json_answers=False), [prompt], YesNo, GREEDY)
    assert mended.value == YesNo(explanation="so.", verdict=False)
    assert script.requests[1].messages[-1]["content"].endswith("Explanation, Verdict")


class Lists(BaseModel):
    items: Annotated[list[str], Field(min_length=1)]
    numbers: list[int]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Items: a\nItems: b\nNumbers: 1\nNumbers: 2", Lists(items=["a", "b"], numbers=[1, 2])),
        ("Sure!\n\n**Items:** “a: b”\n- numbers: none\nThat is all.", Lists(items=["a: b"], numbers=[])),
        ("Items：甲\nNumbers: 3.", Lists(items=["甲"], numbers=[3])),
        ("Items: <text>\nNumbers: 1", None),
        ("Numbers: 1", None),
        ("Items: a\nNumbers: one", None),
    ],
)
def test_lists_repeat_their_label(text, expected):
    assert read(text, Lists, as_json=False).value == expected


def test_a_small_model_that_goes_on_is_read_up_to_there():
    text = "Explanation: so\nVerdict: yes\n\nReply: 6\nExplanation: no\nVerdict: no"
    assert read(text, YesNo, as_json=False).value == YesNo(explanation="so", verdict=True)


MIGRES = (migres.Kept, migres.Extracted, migres.Judged, migres.Queries)


def test_every_example_is_an_answer_of_its_form():
    shown = prompts_of("migres", PromptConfig()).examples
    examples = [example for form in MIGRES for example in worked([shown[form.__name__]], form)]
    for name, form in (("chr", one_search.Hypotheses), ("misknow", misknow.Judgement)):
        examples += worked(prompts_of(name, PromptConfig()).examples, form)
    examples += [judges.example(name) for name in judges.FORMS]
    assert len(examples) >= 17
    for example in examples:
        assert read(example.lines, type(example.answer), as_json=False).value == example.answer
        assert read(example.json, type(example.answer)).value == example.answer
