"""Readers, judges and question writers behind a real endpoint, asked in the user's own words."""

import json

import pytest
from querylect.configs.schema import QuestionsConfig
from querylect.eval.answers.run import answer_questions
from querylect.questions.build import write_question_index

from ..chat_server import ChatServer, last_user
from ..question_models import QuestionModel, corpus  # noqa: F401 (a fixture)
from . import test_answers, test_papers
from .test_papers import server, values  # noqa: F401 (fixtures)

records, answers_config = test_answers.records, test_answers.config


@pytest.fixture
def write_prompts(tmp_path):
    def write(**texts):
        (tmp_path / "mine.yaml").write_text(json.dumps(texts), encoding="utf-8")  # JSON is YAML
        return str(tmp_path / "mine.yaml")

    return write


def test_a_papers_reader_and_judge(values, server, tmp_path, write_prompts):  # noqa: F811
    choice = 'Passages: {documents} Q: {question_with_options} Write {"answer_choice": "…"}'
    utility = 'Useful? {documents} {question} {right_answer} {"selected_answer": "A", "label": "…"}'
    standard = server.answer
    server.answer = lambda body: (
        '{"selected_answer": "A", "label": "ENTAILED"}' if "Useful?" in last_user(body) else standard(body)
    )
    options = {"tables": [], "sweeps": [], "shifts": []}
    values["systems"].pop("hyde")
    values["reader"]["prompts"] = write_prompts(answer_choice=choice, utility=utility)
    page, results = test_papers.run(values, tmp_path / "out", **options)
    sent = {last_user(body).split()[0] for body in server.bodies}
    assert {"Passages:", "Useful?"} <= sent
    assert not any("You judge how a context" in last_user(body) for body in server.bodies)
    assert any(last_user(body).startswith("Answer the question below") for body in server.bodies), "stages left out"
    stages = [version.partition("-")[0] for version in results["reader"]["prompts"]]
    assert stages == ["answer_choice", "utility"]
    answered = test_papers.question_records(page)
    judged = [record["judged"]["utility"]["version"] for record in answered if record["judged"]]
    assert judged
    assert all(version.startswith("utility-2+utility-") for version in judged)

    request_count = len(server.bodies)
    values["reader"]["prompts"] = write_prompts(answer_choice=f"Carefully. {choice}", utility=utility)
    test_papers.run(values, tmp_path / "out", overwrite=True, **options)
    assert any(last_user(body).startswith("Carefully.") for body in server.bodies[request_count:]), (
        "other words, other records"
    )


def test_the_reader_of_answers(answers_config, records, server, write_prompts):  # noqa: F811
    prompts = write_prompts(answer_open="Documents:\n{documents}\n{question}", alone_open="Alone: {question}")
    page = answer_questions(answers_config(reader={"prompts": prompts}), records)
    assert {last_user(body).split()[0] for body in server.bodies} == {"Documents:", "Alone:"}
    assert len(json.loads((page.parent / "answers.json").read_text())["reader"]["prompts"]) == 2


def test_the_writer_and_the_judge_of_questions(run_app, corpus, write_prompts):  # noqa: F811
    question_model = QuestionModel()
    server = ChatServer(lambda body: question_model.reply(last_user(body)))  # noqa: F811
    texts = {
        "questions": "MINE\nText: {content}\nQuestions:",
        "answerable": "FITS\nText: {content}\n\nQuestion: {question}\nAnswer with JSON.",
    }
    with run_app(server.app) as url:
        model = {"model": "scripted", "base_url": f"{url}/v1", "cache": None}
        config = QuestionsConfig(writer={**model, "prompts": write_prompts(**texts)}, per_content=3)
        description = write_question_index(config, corpus, corpus.question_index.folder)
    assert {last_user(body).split()[0] for body in server.bodies} == {"MINE", "FITS"}
    assert description.questions > 0
    assert len(description.asked["writer"]["prompts"]) == 2
