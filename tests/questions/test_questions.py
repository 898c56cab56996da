"""Writing a question index: what is kept, dropped, failed and missing, going on, growing, and vetted questions."""

import json
from contextlib import closing

import pytest
from querylect.configs.llm import LlmConfig
from querylect.configs.schema import QuestionsConfig
from querylect.envs.retrievers.question_index import open_question_index, verify_question_index
from querylect.errors import (
    ConfigError,
    DataError,
    IncompleteError,
)
from querylect.llms.base import LlmResponse, Text
from querylect.llms.cache import ReplyCache
from querylect.questions.build import write_question_index
from querylect.questions.prompts import yes_or_no

from ..chat_server import ChatServer, impatient  # noqa: F401 (fixture)
from ..jsonl import read_jsonl
from ..question_models import QUESTIONS, TEXTS, WRONG, QuestionModel, corpus, questions_config, save_corpus  # noqa: F401 (a fixture)
from ..raising import refused

pytestmark = pytest.mark.server

HEAD, LEMON = "What helps when my head hurts?", "Does lemon juice help?"


def folder_of(env):
    return env.question_index.folder


def matrix_of(folder):
    """Contents by the text of the question."""
    index = open_question_index(folder)
    contents = {question.text: [] for question in index.questions()}
    texts = {question.id: question.text for question in index.questions()}
    for answer in index.answers():
        contents[texts[answer.question]].append(answer.content)
    return contents


def test_answerable_questions_are_kept_with_their_contents(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    with questions_config(model) as config:
        description = write_question_index(config, corpus, folder_of(corpus))
    assert matrix_of(folder_of(corpus)) == {
        HEAD: ["aspirin", "triptan"],
        "What is aspirin for?": ["aspirin"],
        "What lowers the sugar in my blood?": ["insulin"],
        "Why did sailors bleed from the gums?": ["citrus"],
        "What stops a migraine?": ["triptan"],
        "Warum bin ich bei Vitamin-D-Mangel so müde?": ["fremd"],
        "維生素D缺乏有什麼症狀？": ["fremd"],
    }
    expected_counts = {
        "contents": 6,
        "contents_asked": 6,
        "contents_missing": 0,
        "contents_failed": 0,
        "contents_without_a_question": 1,
        "questions_written": 11,
        "questions_judged": 9,
        "questions_kept": 8,
        "questions_dropped": 1,
        "questions_unjudged": 0,
        "questions_distinct": 7,
        "questions": 7,
        "pairs_written": 8,
    }
    assert {name: description.counts[name] for name in expected_counts} == expected_counts
    assert description.costs == {"calls": 6 + 9, "prompt_tokens": 15 * 7, "tokens": 15 * 3}
    assert description.asked["writer"]["model"] == "scripted"
    assert {description.asked["writer_prompt"], description.asked["judge_prompt"]} == {
        "qb-rag-questions-1",
        "qb-rag-judge-1",
    }
    assert verify_question_index(folder_of(corpus)).description == description


def test_what_is_not_the_form_is_mended_once_and_then_a_failure_on_record(tmp_path, corpus):  # noqa: F811
    model = QuestionModel(
        {**QUESTIONS, "citrus": "Here are questions!", "word": '{"questions": ["one", {"a": 1, "b": 2}]}'}
    )
    model.garbled = {"What is aspirin for?"}
    with questions_config(model) as config:
        description = write_question_index(config, corpus, folder_of(corpus))
        assert (description.counts["contents_failed"], description.counts["questions_unjudged"]) == (2, 1)
        assert model.contents.count("citrus") == model.contents.count("word") == 2
        assert model.judged.count(("aspirin", "What is aspirin for?")) == 2
        rows = {row["id"]: row for row in read_jsonl(tmp_path / "questions" / "asked.jsonl")}
        assert rows["citrus"]["text"] == "Here are questions!"
        assert "questions.1: Input should be a valid string" in rows["word"]["failure"]
        assert rows["aspirin"]["judged"][1]["answerable"] is None
        assert "What is aspirin for?" not in matrix_of(folder_of(corpus)), "unjudged is not answerable"
        answered = model.answered
        write_question_index(config, corpus, folder_of(corpus))
        assert model.answered == answered, "a failure on record is not asked for again"


def test_a_missing_reply_is_told_and_only_it_is_asked_again(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    model.silent = lambda text: "Text: About citrus" in text
    with questions_config(model) as config:
        with refused(IncompleteError, "1 replies", folder_of(corpus)):
            write_question_index(config, corpus, folder_of(corpus))
        assert open_question_index(folder_of(corpus)).description.counts["contents_missing"] == 1
        assert "citrus" not in str(matrix_of(folder_of(corpus)))
        model.silent, model.contents[:] = lambda text: False, []
        description = write_question_index(config, corpus, folder_of(corpus))
    assert model.contents == ["citrus"]
    assert (description.counts["contents_missing"], description.questions) == (0, 7)


def test_an_endpoint_that_breaks_off_is_asked_for_what_is_missing(tmp_path, corpus):  # noqa: F811
    broken = QuestionModel()
    broken.broken = lambda text: "Text: About triptan" in text
    with closing(ReplyCache(tmp_path / "replies.sqlite")) as cache, questions_config(broken, cache) as config:
        with pytest.raises(ConnectionAbortedError):
            write_question_index(config, corpus, folder_of(corpus))
        assert not (tmp_path / "questions").exists()
    model = QuestionModel()
    with closing(ReplyCache(tmp_path / "replies.sqlite")) as cache, questions_config(model, cache) as config:
        description = write_question_index(config, corpus, folder_of(corpus))
        assert model.contents == ["triptan", "word", "fremd"]
    with questions_config(QuestionModel()) as config:
        again = write_question_index(config, corpus, tmp_path / "at-once")
    assert matrix_of(tmp_path / "at-once") == matrix_of(folder_of(corpus))
    assert again.hash == description.hash


def test_a_corpus_that_has_grown_or_changed_is_asked_about_where_it_differs(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    with questions_config(model) as config:
        first = write_question_index(config, corpus, folder_of(corpus))
        model.contents[:] = []
        model.questions["ginger"] = ["What settles my stomach?", HEAD]
        grown = {**TEXTS, "insulin": "insulin lowers blood sugar", "ginger": "ginger helps against nausea"}
        del grown["word"]
        save_corpus(tmp_path / "data", grown)
        description = write_question_index(config, corpus, folder_of(corpus))
    assert sorted(model.contents) == ["ginger", "insulin"]
    assert matrix_of(folder_of(corpus))[HEAD] == ["aspirin", "triptan", "ginger"]
    assert (first.rounds, description.rounds) == (1, 2)
    rounds = {name: content.round for name, content in open_question_index(folder_of(corpus)).contents().items()}
    assert rounds == {"aspirin": 0, "insulin": 1, "citrus": 0, "triptan": 0, "fremd": 0, "ginger": 1}
    assert description.hash != first.hash


def test_other_settings_are_refused_by_name_and_overwrite_asks_again(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    with questions_config(model) as config:
        write_question_index(config, corpus, folder_of(corpus))
        shorter = config.model_copy(update={"words": 50})
        with refused(ConfigError, folder_of(corpus), "words 1500", " 50", "--overwrite"):
            write_question_index(shorter, corpus, folder_of(corpus))
        model.contents[:] = []
        write_question_index(shorter, corpus, folder_of(corpus), overwrite=True)
    assert len(model.contents) == 6


def test_vetted_questions_are_added_without_asking(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    with questions_config(model, mean=0.5) as config:
        write_question_index(config, corpus, folder_of(corpus))
        answered = model.answered
        add = tmp_path / "live.jsonl"
        rows = [
            {"question": "Does lemon juice help?", "contents": ["citrus"]},
            {"question": HEAD, "contents": ["word"]},
        ]
        add.write_text("".join(json.dumps(row) + "\n" for row in rows))
        description = write_question_index(config, corpus, folder_of(corpus), add=add)
        assert model.answered == answered
        matrix = matrix_of(folder_of(corpus))
        assert matrix[LEMON] == ["citrus"]
        assert "word" in matrix[HEAD]
        assert (description.counts["pairs_vetted"], description.counts["questions_judged"]) == (2, 9)
        sampled = write_question_index(config, corpus, tmp_path / "sampled")
        assert sampled.questions == 3
        assert description.questions == 3 + len({HEAD, LEMON} - set(matrix_of(tmp_path / "sampled")))
        assert write_question_index(config, corpus, folder_of(corpus)).hash == description.hash, "they stay"
        add.write_text(json.dumps({"question": "?", "contents": ["aspirine"]}))
        with refused(DataError, add, "'?'", "'aspirine'"):
            write_question_index(config, corpus, folder_of(corpus), add=add)
        add.write_text('{"question": "?", "contents": []}\n')
        with refused(DataError, add, "line 1"):
            write_question_index(config, corpus, folder_of(corpus), add=add)


def test_vetted_questions_alone_make_an_index_without_asking(tmp_path, corpus):  # noqa: F811
    add = tmp_path / "live.jsonl"
    add.write_text(json.dumps({"question": HEAD, "contents": ["triptan", "aspirin"]}))
    nobody = QuestionsConfig(writer=LlmConfig(model=str(tmp_path / "nowhere")))
    description = write_question_index(nobody, corpus, folder_of(corpus), add=add)
    assert (matrix_of(folder_of(corpus)), description.asked) == ({HEAD: ["triptan", "aspirin"]}, {})
    add.write_text(json.dumps({"question": LEMON, "contents": ["citrus"]}))
    more = write_question_index(nobody, corpus, folder_of(corpus), add=add)
    assert (more.questions, more.counts["contents_asked"]) == (2, 0)


@pytest.mark.parametrize(("mean", "left"), [(0.5, 3), (1.0, 6), (50, 7)])
def test_down_sampling_is_seeded_and_nested(tmp_path, corpus, mean, left):  # noqa: F811
    with questions_config(QuestionModel()) as config:
        write_question_index(config, corpus, folder_of(corpus))
        small = config.model_copy(update={"mean": mean})
        description = write_question_index(small, corpus, tmp_path / "small")
        sampled = matrix_of(tmp_path / "small")
        larger = config.model_copy(update={"mean": mean + 0.25})
        write_question_index(larger, corpus, tmp_path / "larger")
        assert set(sampled) <= set(matrix_of(tmp_path / "larger"))
    unsampled = matrix_of(folder_of(corpus))
    assert all(contents == unsampled[text] for text, contents in sampled.items())
    assert len(sampled) == description.questions == left


def test_only_some_contents_and_no_questions_at_all(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    with questions_config(model, limit=2) as config:
        description = write_question_index(config, corpus, folder_of(corpus))
        assert (model.contents, description.counts["contents"]) == (["word", "insulin"], 2)
        silent = QuestionModel(dict.fromkeys(TEXTS, "hm"))
    with questions_config(silent) as config, refused(DataError, "6 of the writer's answers", "'hm'"):
        write_question_index(config, corpus, tmp_path / "none")


def test_questions_and_verdicts_may_be_written_in_lines(tmp_path, corpus):  # noqa: F811
    class InLines(QuestionModel):
        def generate(self, prompts, draw, deliver, costs):
            for index, prompt in enumerate(prompts):
                head, case = prompt.messages[0]["content"], prompt.messages[-1]["content"]
                if head.startswith("You are"):
                    name = next(name for name in TEXTS if f"About {name}" in case)
                    text = "\n".join(
                        ["Questions:", *(f"{n}. {question}" for n, question in enumerate(QUESTIONS[name], start=1))]
                    )
                    text = text if QUESTIONS[name] else "Questions: none"
                else:
                    text = (
                        f"Explanation: so\nAnswerable: {'no' if any(question in case for question in WRONG) else 'yes'}"
                    )
                deliver(index, LlmResponse((Text(text, True),), 7, 3))

    with questions_config(InLines(), form="lines") as config:
        description = write_question_index(config, corpus, folder_of(corpus))
    assert [description.counts[name] for name in ("questions_kept", "questions_dropped", "contents_failed")] == [
        8,
        1,
        0,
    ]
    assert description.asked["writer_prompt"] == "qb-rag-questions-1/lines"
    assert description.asked["judge_prompt"] == "qb-rag-judge-1/lines"


def test_yes_or_no_is_judged_by_the_likelier_first_token(tmp_path, corpus):  # noqa: F811
    assert yes_or_no("No", {" yes": -0.5, "No": -1.0, "yes": -3.0}) is True
    assert yes_or_no("Yes", {"Yes": -1.0, " NO": -0.2}) is False
    assert yes_or_no("Yes.", {}) is True
    assert yes_or_no("**no**", {"The": -0.1}) is False
    assert yes_or_no("Maybe", {"Maybe": -0.1}) is None
    model = QuestionModel()
    with questions_config(model, judge_form="yes_no") as config:
        description = write_question_index(config, corpus, folder_of(corpus))
    assert description.asked["judge_prompt"] == "qb-rag-judge-yes-no-1"
    assert {draw.first_logprobs for draw in model.draws} == {0, 20}
    assert (description.counts["questions_kept"], description.counts["questions_dropped"]) == (8, 1)
