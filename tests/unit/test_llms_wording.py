"""User-supplied prompts of readers, judges and question writers."""

import json

import pytest
from querylect.configs.llm import WordedLlmConfig
from querylect.configs.yaml12 import parse_yaml
from querylect.data.types import Document, Question
from querylect.errors import ConfigError
from querylect.eval.tasks.gold import Gold
from querylect.eval.tasks.judges import JUDGES, Case, Setting, judged
from querylect.eval.tasks.reader import generator_prompt, reader_prompt
from querylect.llms.access import Llm
from querylect.llms.base import SamplingParams
from querylect.llms.structured import ask_structured
from querylect.llms.wording import COMMON, MODEL_STAGES, QUESTIONS, read_wordings
from querylect.methods.runner import Runner
from querylect.methods.wording import STAGES
from querylect.questions.prompts import Verdict, Written, judge_prompt, writer_prompt, yes_no_prompt
from querylect.rollouts.llms import open_llm

from ..method_doubles import ByStage, every_placeholder
from ..pages import blocks
from ..raising import refused

DOCUMENTS = (Document("d1", "Mercury", "melts at {-39}"), Document("d2", "Iron", "melts at 1538"))
CHOICE = Gold(Question("q", "What melts at {1538}?", ("mercury", "iron")), right=1)
OPEN = Gold(Question("q", "Who?"), answers=("Ada", "Lovelace"))
CONTENT = Gold(Question("q", "What is iron?"), contents=(DOCUMENTS[1],))
ITEMS = {"utility": CHOICE, "mimic": CHOICE, "context_recall": OPEN}
ANSWERS = {
    "utility": {"selected_answer": "B", "label": "ENTAILED"},
    "mimic": {"explanation": "", "quality": "GOOD"},
    "relevancy": {"explanation": "", "answerable": True},
    "guideline_points": {"points": ["one", "two"]},
    "guideline_score": {"explanation": "", "score": 0.5},
    "context_recall_statements": {"statements": ["s"]},
    "context_recall_attributions": {"statements": [{"statement": 1, "attributed": True, "reason": ""}]},
    **{name: {"explanation": "", "verdict": True} for name in ("declined", "faithfulness", "answer_relevancy")},
    QUESTIONS: {"questions": ["Why?"]},
    "answerable": {"explanation": "", "answerable": True},
}


def staged():
    return ByStage({stage: json.dumps(answer) for stage, answer in ANSWERS.items()}, '"fine"')


@pytest.fixture
def worded(tmp_path):
    """A model whose every stage has a text with all placeholders."""
    texts = {
        stage: every_placeholder(stage, fields if stage == QUESTIONS else (*COMMON, *fields))
        for stage, fields in MODEL_STAGES.items()
    }
    (tmp_path / "mine.yaml").write_text(json.dumps(texts), encoding="utf-8")  # JSON is YAML
    return Llm(staged(), wordings=read_wordings(MODEL_STAGES, str(tmp_path / "mine.yaml"), "prompts"))


def test_every_stage_of_a_reader_judge_or_writer_takes_the_users_words(worded):
    draw = SamplingParams(max_tokens=9)
    readers = [generator_prompt(CHOICE.question, DOCUMENTS, "reasoned", 9, "steel")]
    readers += [generator_prompt(OPEN.question, (), "grounded", 9)]
    readers += [
        reader_prompt(gold.question, documents, 9) for gold in (CHOICE, OPEN) for documents in (DOCUMENTS[:1], ())
    ]
    assert [reply.texts[0].text for reply in worded.ask(readers, draw)] == ['"fine"'] * len(readers)
    for name, judge in JUDGES.items():
        notes = {"H_plus": "iron melts late", "H_minus": "mercury melts early"}
        case = Case(ITEMS.get(name, CONTENT), DOCUMENTS, True, "an answer", notes=notes)
        (score,) = judged(Runner(worded, {}), judge, [case], Setting())
        assert score.failure == ""
        assert f"+{name}" in score.version
    content = Document("c", "Care", "of {dogs}")
    ask_structured(worded, [writer_prompt(content, 3, "written", 9)], Written, draw)
    ask_structured(worded, [judge_prompt("Why?", content, 9)], Verdict, draw)
    worded.ask([yes_no_prompt("Why?", content, 9)], draw)

    assert set(worded.backend.prompts) == set(MODEL_STAGES)
    user_prompts = {stage: worded.backend.users(stage) for stage in MODEL_STAGES}
    common = "<question>What melts at {1538}?\n<options>A. mercury\nB. iron\n<question_with_options>"
    for stage in ("answer_choice", "alone_choice", "utility", "mimic"):
        assert user_prompts[stage][0].startswith(common), stage
    for stage, part in {
        "answer_choice": "<documents>[1] Mercury: melts at {-39}\n\n[2] Iron: melts at 1538\n<field>steel",
        "answer_open": "<documents>[1] Mercury: melts at {-39}\n<field>",
        "answer_content": "<documents>(no document was found)",
        "utility": "<documents>[1] Mercury: melts at {-39}\n[2] Iron: melts at 1538\n<right_answer>B. iron",
        "mimic": "<target>iron melts late\n<mimic>mercury melts early\n<right_answer>B. iron",
        "relevancy": "<document>Mercury: melts at {-39}",
        "declined": "<answer>an answer",
        "faithfulness": "melts at 1538\n<answer>an answer",
        "answer_relevancy": "<answer>an answer",
        "guideline_answer": "<documents>[1] Iron: melts at 1538",
        "guideline_points": "<ideal_answer>fine",
        "guideline_score": "<points>- one\n- two\n<answer>an answer",
        "context_recall_statements": "<right_answer>Ada (or: Lovelace)",
        "context_recall_attributions": "<statements>1. s",
        QUESTIONS: "<content>Care of {dogs}\n<count>3\n<origin>written",
        "answerable": "<question>Why?\n<options>\n<question_with_options>Why?\n<history>\n<content>Care of {dogs}",
        "answerable_yes_no": "<content>Care of {dogs}",
    }.items():
        assert any(part in user for user in user_prompts[stage]), stage


def test_stages_of_models_are_no_stages_of_methods():
    assert not set(MODEL_STAGES) & {stage for stages in STAGES.values() for stage in stages}


def test_other_words_are_another_call_and_another_model_in_results(tmp_path):
    keys, identities = set(), []
    for text in (None, "{question} {documents}", "{question}! {documents}"):
        (tmp_path / "mine.yaml").write_text(json.dumps({"answer_open": text, "declined": "{question}{answer}"}))
        wordings = read_wordings(MODEL_STAGES, str(tmp_path / "mine.yaml"), "prompts") if text else {}
        llm = Llm(staged(), wordings=wordings)
        keys.add(llm.key(reader_prompt(OPEN.question, DOCUMENTS, 9), SamplingParams()))
        identities.append(llm.identity)
    assert len(keys) == 3
    assert "prompts" not in identities[0]
    assert identities[1] != identities[2]
    assert identities[1]["prompts"][0].startswith("answer_open-")


@pytest.mark.parametrize(
    ("texts", "facts"),
    [
        ({"utilty": "{question}"}, ["'utilty'", *MODEL_STAGES]),
        ({"declined": "{question}"}, ["declined", "{answer}"]),
        ({"declined": "{answer}"}, ["declined", "{question}"]),
        ({"questions": "Ask: {content} {question}"}, ["{question}", "{content}", "{count}"]),
    ],
)
def test_what_cannot_be_asked_is_refused_before_a_model_is_opened(tmp_path, texts, facts):
    (tmp_path / "mine.yaml").write_text(json.dumps(texts), encoding="utf-8")
    prompts = str(tmp_path / "mine.yaml")
    config = WordedLlmConfig(model="m", base_url="http://127.0.0.1:9/v1", cache=None, prompts=prompts)
    with refused(ConfigError, prompts, *facts):
        open_llm(config)


def test_the_example_of_the_page_is_read(tmp_path):
    (text,) = [block.text for block in blocks("llms.md") if "answer_open:" in block.text]
    (tmp_path / "mine.yaml").write_text(text, encoding="utf-8")
    assert set(read_wordings(MODEL_STAGES, str(tmp_path / "mine.yaml"), "prompts")) == set(parse_yaml(text))
