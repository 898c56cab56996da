"""Answers as labelled lines: parsing, the end of an answer, failures, and the prompts."""

from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field
from querylect.configs.llm import LlmConfig
from querylect.eval.tasks import judge_prompts
from querylect.eval.tasks.judge_prompts import Attribution, Attributions, Utility, YesNo
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Prompt, SamplingParams, Text
from querylect.llms.lines import render, request
from querylect.llms.structured import FormPrompt, WorkedExample, ask_structured, read
from querylect.methods.chr import Hypotheses
from querylect.methods.migres import Extracted, Kept, Piece
from querylect.methods.misknow import Judgement
from querylect.rollouts.llms import open_llm

pytestmark = pytest.mark.server

FULL = """Thought: Passage 1 says nothing.
Judge: yes
Missing knowledge:
1. the tamer's name
2. the year
Query:
1. dog tamers"""
JUDGED = Judgement(
    thought="Passage 1 says nothing.",
    judge=True,
    missing_knowledge=["the tamer's name", "the year"],
    query=["dog tamers"],
)


class Pieces(BaseModel):
    missing: list[str]


class Sure(BaseModel):
    score: Annotated[float, Field(ge=0, le=1)]
    label: Literal["USEFUL", "NOT_USEFUL"]


def value(text, form, finished=True):
    outcome = read(text, form, "lines", finished)
    assert (outcome.value is None) == bool(outcome.failure)
    return outcome.value


@pytest.mark.parametrize(
    "answer",
    [
        JUDGED,
        Utility(selected_answer="J", label="USEFUL_BUT_NOT_ENTAILED"),
        Hypotheses(H_plus="乳糖不耐症：腹胀", H_minus="H_plus is not a label here, H_minus: neither"),
        Kept(passages=[]),
        Extracted(pieces=[Piece(passage=2, information="x: y"), Piece(passage=1, information="1. z")]),
        Attributions(statements=[Attribution(statement=1, attributed=False, reason="Documents: none")]),
        Sure(score=0.25, label="NOT_USEFUL"),
    ],
)
def test_what_is_written_is_read_back(answer):
    assert value(render(answer), type(answer)) == answer


def test_parts_may_run_over_lines_and_bear_the_marks_of_chat_models():
    text = (
        "**Thought:** Passage 1\nsays nothing.\n\n- judge: Yes.\n**Missing_knowledge**:\n- the tamer's name\n"
        "- the\n  year\n\nQUERY： dog tamers"
    )
    assert value(text, Judgement) == JUDGED
    assert value(f"<think>is Judge: no?\nJudge: no</think>\n```\n{FULL}\n```", Judgement) == JUDGED
    assert value(FULL.replace("1. ", "").replace("2. ", ""), Judgement) == JUDGED, "a line for each, without numbers"
    assert value(f"Here is my judgement:\n\n{FULL}", Judgement) == JUDGED
    assert value(FULL.replace("Judge:", "2. **Judge** (missing?):"), Judgement) == JUDGED
    assert value(JUDGED.model_dump_json(), Judgement) == JUDGED, "JSON where lines were asked for"


@pytest.mark.parametrize(
    "after", ["\n\nQuestion: who?\nThought: so", "\nQuery:\n1. more", "\nThought: again", "\n\nI hope"]
)
def test_an_answer_ends_with_its_last_part(after):
    assert value(FULL + after, Judgement) == JUDGED
    assert value(f"Explanation: so\nVerdict: no\nThe reply{after}", YesNo) == YesNo(explanation="so", verdict=False)
    pair = "Statement: 1\nAttributed: yes\nReason: said\n\nStatement: 2\nAttributed: no\nReason: not said"
    assert [statement.attributed for statement in value(f"{pair}\n\nSo much.", Attributions).statements] == [
        True,
        False,
    ]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty answer"),
        ("I think so.", "thought: Field required"),
        (FULL.replace("Judge: yes", "Judge: yes\nJudge: no"), "judge: Input should be a valid boolean"),
        (FULL.replace("yes", "yes and no"), "judge: Input should be a valid boolean"),
        (FULL.replace("Passage 1 says nothing.", "<text>"), "thought: Input should be a valid string"),
    ],
)
def test_whatever_else_is_off_is_a_failure_that_says_why(text, says):
    outcome = read(text, Judgement, "lines")
    assert outcome.value is None
    assert says in outcome.failure
    assert outcome.text == text


def test_words_and_numbers_are_taken_strictly():
    assert value("Selected answer: b\nLabel: not useful.", Utility) == Utility(selected_answer="b", label="NOT_USEFUL")
    for wrong in ("Label: useful-ish", "Label: NOT_USEFUL because", "Label: USEFUL"):
        assert value(f"Selected answer: B\n{wrong}", Utility) is None
    assert value("Score: 1.5\nLabel: USEFUL", Sure) is None
    assert value("Score: 80%\nLabel: USEFUL", Sure) is None
    assert value("Passages: [1], 3 4.", Kept) == Kept(passages=[1, 3, 4])
    for wrong in ("Passages: 1 and 3", "Passages: 1.5", "Passages:", "Passages: all"):
        assert value(wrong, Kept) is None
    for none in ("None.", "no", "Nothing", "**N/A**"):
        assert value(f"Passages: {none}", Kept) == Kept(passages=[])
        assert value(f"Missing: {none}", Pieces) == Pieces(missing=[])
    assert value("Missing: no date is given", Pieces) == Pieces(missing=["no date is given"])


def test_half_a_number_or_word_at_the_limit_is_not_taken_for_a_whole_one():
    assert value("Passages: 1, 2", Kept, finished=False) is None
    assert value("Passages: 1, 2\nThe", Kept, finished=False) == Kept(passages=[1, 2])
    assert value("Explanation: so\nVerdict: no", YesNo, finished=False) is None
    assert value(FULL, Judgement, finished=False) == JUDGED, "text counts as far as it goes"


@pytest.mark.parametrize(
    ("listed", "items"),
    [
        ("Missing:\n1. the year\n2. the pla", ["the year"]),
        ("Missing:\n- the year\n- the place of\n  bir", ["the year"]),
        ("Missing:\n1. the year\n2. the place\n3.", ["the year", "the place"]),
        ("Missing:\n1. the ye", ["the ye"]),
        ("Missing:\n1. the year\n2. the place\n\nI hope th", ["the year", "the place"]),
        ("1. the year\n2. the pla", ["the year"]),
    ],
)
def test_the_item_of_a_list_that_was_cut_at_the_limit_is_dropped(listed, items):
    assert value(listed, Pieces, finished=False) == Pieces(missing=items)


class Script:
    """Says the texts of a script, each after the opening that its prompt gives."""

    identity = {"local": "script"}  # noqa: RUF012

    def __init__(self, *texts):
        self.texts, self.prompts = list(texts), []

    def generate(self, prompts, draw, deliver, costs):
        for index, prompt in enumerate(prompts):
            self.prompts.append(prompt)
            deliver(index, LlmResponse((Text(prompt.opening + self.texts.pop(0), True),), 1, 1))


EXAMPLE = WorkedExample("Reply: 4", YesNo(explanation="four", verdict=True))
PROMPT = FormPrompt("Judge the reply.", "Reply: 5", "judge-1", (EXAMPLE,))


def test_one_prompt_is_said_in_either_way():
    as_json = PROMPT.worded(YesNo)
    assert (as_json.version, as_json.opening, len(as_json.messages)) == ("judge-1", "", 1)
    assert as_json.messages[0]["content"].startswith("Judge the reply.\n\nReply: 5\n\nAnswer with one JSON object")
    assert EXAMPLE.json == '{"explanation": "four", "verdict": true}'
    as_lines = PROMPT.worded(YesNo, "lines")
    assert (as_lines.version, as_lines.opening) == ("judge-1/lines", "Explanation:")
    assert [message["role"] for message in as_lines.messages] == ["user", "assistant", "user"]
    assert as_lines.messages[0]["content"] == f"Judge the reply.\n\n{request(YesNo, {})}\n\nReply: 4"
    assert as_lines.messages[1]["content"] == "Explanation: four\nVerdict: yes"
    assert as_lines.messages[2]["content"] == "Reply: 5"
    (alone,) = FormPrompt("Judge.", "Reply: 5", "judge-1").worded(YesNo, "lines").messages
    assert alone["content"] == f"Judge.\n\n{request(YesNo, {})}\n\nReply: 5"


def test_a_wrong_answer_is_mended_once_from_where_it_went_wrong():
    script = Script(" right\nVerdict: yes", " so.\nVerdict: perhaps", " no", " off", " off again")
    right, mended, failed = ask_structured(Llm(script), [case(1), case(2), case(3)], YesNo, SamplingParams(), "lines")
    assert (right.value, len(right.replies)) == (YesNo(explanation="right", verdict=True), 1)
    assert (mended.value, len(mended.replies)) == (YesNo(explanation="so.", verdict=False), 2)
    assert failed.value is None
    assert script.prompts[3].opening == "Explanation: so.\nVerdict:"
    assert script.prompts[4].opening == "Explanation: no\nVerdict:"


def case(number):
    return FormPrompt("Judge.", f"Reply: {number}", "judge-1", (EXAMPLE,))


def test_every_example_of_a_judge_is_an_answer_of_its_form():
    examples = [attribute for attribute in vars(judge_prompts).values() if isinstance(attribute, WorkedExample)]
    assert len(examples) == 10
    for example in examples:
        assert value(render(example.answer), type(example.answer)) == example.answer
        assert read(example.json, type(example.answer)).value == example.answer


def test_a_model_that_runs_here_finds_its_answer_begun(tiny_policy, tmp_path):
    config = LlmConfig(model=str(tiny_policy), dtype="float32", cache=str(tmp_path / "cache"))
    plain = Prompt(({"role": "user", "content": "judge"},))
    prefilled = Prompt(plain.messages, opening="Thought:")
    with open_llm(config) as llm:
        first, second = llm.ask([plain, prefilled], SamplingParams(max_tokens=8))
        assert (llm.costs.calls, llm.key(plain, SamplingParams()) == llm.key(prefilled, SamplingParams())) == (2, False)
        assert second.texts[0].text.startswith("Thought:")
        assert second.prompt_tokens > first.prompt_tokens
        assert second.tokens <= 8, "what was begun for it is read, not written"
        assert llm.ask([prefilled], SamplingParams(max_tokens=8)) == [second]
    assert open_llm(config).ask([prefilled], SamplingParams(max_tokens=8)) == [second], "and known again"
