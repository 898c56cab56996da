"""Writing a question index: what is kept, dropped, failed and missing, growing, down-sampling, and vetted questions."""

import json

import pytest
from querylect.envs.retrievers.qb_rag import open_question_index, verify_question_index
from querylect.errors import ConfigError, DataError, IncompleteError
from querylect.llms.access import ReplyCache
from querylect.questions.index import write_question_index

from ..question_models import QUESTIONS, TEXTS, InLines, QuestionModel, corpus, questions_config, save_corpus  # noqa: F401 (a fixture)
from ..raising import refused

HEAD, LEMON = "What helps when my head hurts?", "Does lemon juice help?"


def write(model, env, folder=None, cache=None, add=None, overwrite=False, **settings):
    with questions_config(model, cache and ReplyCache(cache), **settings) as config:
        return write_question_index(config, env, folder or env.question_index.folder, add=add, overwrite=overwrite)


def matrix_of(folder):
    """Contents by the text of the question."""
    index = open_question_index(folder)
    texts = {question.id: question.text for question in index.questions()}
    contents = {text: [] for text in texts.values()}
    for answer in index.answers():
        contents[texts[answer.question]].append(answer.content)
    return contents


@pytest.mark.parametrize("model", [QuestionModel, InLines], ids=["as JSON", "as labelled lines"])
def test_answerable_questions_are_kept_with_their_contents(corpus, model):  # noqa: F811
    folder = corpus.question_index.folder
    description = write(model(), corpus)
    assert matrix_of(folder) == {
        HEAD: ["aspirin", "triptan"],
        "What is aspirin for?": ["aspirin"],
        "What lowers the sugar in my blood?": ["insulin"],
        "Why did sailors bleed from the gums?": ["citrus"],
        "What stops a migraine?": ["triptan"],
        "Warum bin ich bei Vitamin-D-Mangel so müde?": ["fremd"],
        "維生素D缺乏有什麼症狀？": ["fremd"],
    }
    counts = description.counts
    assert (counts["contents"], counts["contents_without_a_question"], counts["contents_failed"]) == (6, 1, 0)
    assert [counts[f"questions_{name}"] for name in ("kept", "dropped", "unjudged")] == [8, 1, 0]
    assert (description.questions, counts["pairs_written"], counts["pairs_vetted"]) == (7, 8, 0)
    assert description.costs == {"calls": 6 + 9, "prompt_tokens": 15 * 7, "tokens": 15 * 3}
    assert description.asked["writer"] == {"model": "scripted"}
    assert verify_question_index(folder).description == description


def test_an_answer_of_another_form_is_sent_back_once_and_then_a_failure_on_record(corpus):  # noqa: F811
    model = QuestionModel(
        {**QUESTIONS, "citrus": "Here are questions!", "word": '{"questions": ["one", {"a": 1, "b": 2}]}'}
    )
    model.garbled = {"What is aspirin for?"}
    description = write(model, corpus)
    assert (description.counts["contents_failed"], description.counts["questions_unjudged"]) == (2, 1)
    assert model.contents.count("citrus") == model.judged.count(("aspirin", "What is aspirin for?")) == 2
    assert "What is aspirin for?" not in matrix_of(corpus.question_index.folder), "unjudged is not answerable"


def test_only_missing_new_and_changed_contents_cost_calls(tmp_path, corpus):  # noqa: F811
    folder = corpus.question_index.folder
    cache = tmp_path / "replies.sqlite"
    broken = QuestionModel()
    broken.broken = lambda text: "Text: About triptan" in text
    with pytest.raises(ConnectionAbortedError):
        write(broken, corpus, cache=cache)
    assert not (tmp_path / "questions").exists()
    model = QuestionModel()
    model.silent = lambda text: "Text: About triptan" in text
    with refused(IncompleteError, "1 contents", folder):
        write(model, corpus, cache=cache)
    assert open_question_index(folder).description.counts["contents_missing"] == 1
    assert model.contents == ["word", "fremd"]
    model.silent, model.contents[:] = lambda text: False, []
    first = write(model, corpus, cache=cache)
    assert (model.contents, first.counts["contents_missing"], first.questions) == (["triptan"], 0, 7)
    assert write(QuestionModel(), corpus, tmp_path / "at-once").hash == first.hash
    model.contents[:] = []
    model.questions["ginger"] = ["What settles my stomach?", HEAD]
    grown = {**TEXTS, "insulin": "insulin lowers blood sugar", "ginger": "ginger helps against nausea"}
    del grown["word"]
    save_corpus(tmp_path / "data", grown)
    description = write(model, corpus, cache=cache)
    assert sorted(model.contents) == ["ginger", "insulin"]
    assert matrix_of(folder)[HEAD] == ["aspirin", "triptan", "ginger"]
    assert (first.rounds, description.rounds) == (1, 2)
    rounds = {name: content.round for name, content in open_question_index(folder).contents().items()}
    assert rounds == {"aspirin": 0, "insulin": 1, "citrus": 0, "triptan": 0, "fremd": 0, "ginger": 1}
    assert description.hash != first.hash


def test_vetted_questions_are_added_without_asking_and_stay(tmp_path, corpus):  # noqa: F811
    model, add = QuestionModel(), tmp_path / "live.jsonl"
    write(model, corpus, mean=0.5)
    answered = model.answered
    rows = [{"question": LEMON, "contents": ["citrus"]}, {"question": HEAD, "contents": ["word"]}]
    add.write_text("".join(json.dumps(row) + "\n" for row in rows))
    description = write(model, corpus, add=add, mean=0.5)
    assert model.answered == answered
    matrix = matrix_of(corpus.question_index.folder)
    assert matrix[LEMON] == ["citrus"]
    assert "word" in matrix[HEAD]
    assert (description.counts["pairs_vetted"], description.counts["questions_dropped"]) == (2, 1)
    assert write(model, corpus, mean=0.5).hash == description.hash, "they stay"
    save_corpus(tmp_path / "data", {**TEXTS, "aspirin": "other words"})
    with refused(DataError, "'aspirin'"):
        write(model, corpus, add=add, mean=0.5)
    no_content, garbled = '{"question": "?", "contents": ["x"]}', '{"question": "?"}'
    for text, facts in ((no_content, ("'?'", "'x'")), (garbled, ("line 1",)), ("", ())):
        add.write_text(text)
        with refused(DataError, add, *facts):
            write(model, corpus, tmp_path / "new", add=add)


def test_an_index_of_others_is_replaced_only_when_asked(tmp_path, corpus):  # noqa: F811
    model, folder, add = QuestionModel(), corpus.question_index.folder, tmp_path / "live.jsonl"
    add.write_text(json.dumps({"question": LEMON, "contents": ["citrus"]}))
    write(model, corpus, add=add)
    first = write(model, corpus)  # vetted questions alone came from no model
    another, answered = QuestionModel(), model.answered
    another.identity = {"local": "another"}
    with refused(ConfigError, folder, "'mean': 0.5", "--overwrite"):
        write(model, corpus, mean=0.5)
    with refused(ConfigError, folder, "another", "--overwrite"):
        write(another, corpus)
    assert (model.answered, another.answered) == (answered, 0), "no model is asked first"
    assert open_question_index(folder).description == first
    assert write(another, corpus, add=add).asked == first.asked, "none is asked for vetted questions"
    assert write(another, corpus, overwrite=True, mean=0.5).asked["writer"] == {"local": "another"}
    assert matrix_of(folder)[LEMON] == ["citrus"]


def test_a_smaller_sample_of_questions_is_a_subset_of_a_larger_one(tmp_path, corpus):  # noqa: F811
    for name, value in (("all", None), ("small", 0.5), ("larger", 0.75)):
        write(QuestionModel(), corpus, tmp_path / name, mean=value)
    every, small = matrix_of(tmp_path / "all"), matrix_of(tmp_path / "small")
    assert set(small) <= set(matrix_of(tmp_path / "larger")) <= set(every)
    assert all(contents == every[text] for text, contents in small.items())
    assert len(small) == 3


def test_only_some_contents_and_no_questions_at_all(tmp_path, corpus):  # noqa: F811
    model = QuestionModel()
    description = write(model, corpus, limit=2)
    assert (model.contents, description.counts["contents"]) == (["word", "insulin"], 2)
    with refused(DataError, "6 got", "'hm'"):
        write(QuestionModel(dict.fromkeys(TEXTS, "hm")), corpus, tmp_path / "none")
    add = tmp_path / "live.jsonl"
    add.write_text(json.dumps({"question": LEMON, "contents": ["citrus"]}))
    for settings in ({"add": add}, {}):
        write(QuestionModel(dict.fromkeys(TEXTS, "hm")), corpus, tmp_path / "none", **settings)
        assert matrix_of(tmp_path / "none") == {LEMON: ["citrus"]}, "vetted questions are enough"
