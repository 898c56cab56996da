"""Whole collections: the sets that are made from the installed WordNet, and real ones of RAGBench and SciFact."""

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.corpus import load_dataset
from querylect.data.get import get
from querylect.data.leakage import exact_leaks, words
from querylect.data.wordnet import load_wordnet
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.errors import DataError
from querylect.eval.run import spec_of_run
from querylect.eval.spec import measure_spec
from querylect.rewriters.few_shot import load_prompt

from ..command import end
from ..data.test_wordnet import answer_words, no_shared_words
from ..jsonl import read_jsonl, write_jsonl

pytestmark = [pytest.mark.server, pytest.mark.slow]


@pytest.fixture(scope="module")
def reverse_dictionary():
    try:
        return load_wordnet()
    except DataError as error:
        pytest.skip(str(error))


def test_the_reverse_dictionary_has_its_size_and_every_answer_in_the_corpus(reverse_dictionary):
    sizes = {name: len(split.questions) for name, split in reverse_dictionary.splits.items()}
    assert sizes == {"train": 13295, "validation": 300, "test": 1500}
    ids = [document.id for document in reverse_dictionary.corpus]
    assert len(ids) == 25757
    assert ids == sorted(set(ids))
    judged = {
        answer for split in reverse_dictionary.splits.values() for grades in split.qrels.values() for answer in grades
    }
    assert len(judged) == 13295 + 300 + 1500
    assert judged <= set(ids)
    questions = [question for split in reverse_dictionary.splits.values() for question in split.questions]
    assert len({question.id for question in questions}) == len(questions)
    assert not any('"' in question.text or "|" in question.text for question in questions)
    assert reverse_dictionary.splits["test"].questions[0].text == "refer to or be relevant or familiar to"


def test_no_question_names_a_word_of_its_answer_and_splits_share_none(reverse_dictionary):
    titles = {document.id: document.title for document in reverse_dictionary.corpus}
    for split in reverse_dictionary.splits.values():
        for question in split.questions:
            (answer,) = split.qrels[question.id]
            assert not any(word in question.text.lower() for word in titles[answer].lower().split(", "))
    no_shared_words(reverse_dictionary)
    assert exact_leaks(reverse_dictionary.splits) == []


@pytest.mark.parametrize("prompt", ["wordnet", "dialect", "dialect_plain", "dialect_two_turn"])
def test_no_example_of_a_packaged_prompt_can_be_a_held_out_answer_or_question(reverse_dictionary, prompt):
    examples = load_prompt(prompt).examples
    shown = [text for example in examples for turn in example.turns for text in (turn.rewrite, *turn.documents)]
    prompt_terms = set(words(" ".join(shown)).split()) - {"or"}
    answers = answer_words(reverse_dictionary)
    assert not prompt_terms & (answers["validation"] | answers["test"])
    content = [set(words(example.question).split()) for example in examples]
    for name in ("validation", "test"):
        for question in reverse_dictionary.splits[name].questions:
            question_words = set(words(question.text).split())
            assert all(
                len(question_words & example_words) / len(question_words | example_words) < 0.5
                for example_words in content
            ), question.text


@pytest.fixture(scope="module")
def conversations():
    return load_dataset(DatasetConfig(path="wordnet_conversations"))


def words_of(conversations, name):
    titles = {document.id: document.title for document in conversations.corpus}
    split = conversations.splits[name]
    answers = (titles[document] for grades in split.qrels.values() for document in grades)
    return {word.lower() for title in answers for word in title.split(", ")} | {
        word_of(question).lower() for question in split.questions
    }


def word_of(question):
    """The word that the conversation is about."""
    return question.history[0].text.removeprefix("What does ").removesuffix(" mean?")


def test_conversations_share_no_word_between_splits_or_with_the_prompt(conversations):
    sizes = {name: len(split.questions) for name, split in conversations.splits.items()}
    assert sizes == {"train": 1500, "validation": 200, "test": 400}
    train, validation, test = (words_of(conversations, name) for name in sizes)
    assert not test & (train | validation)
    assert not validation & train
    prompt = load_prompt("wordnet_conversations")
    rewrite_words = {word for example in prompt.examples for turn in example.turns for word in turn.rewrite.split(", ")}
    assert len(rewrite_words) > 6
    assert not rewrite_words & (test | validation)


def test_four_real_parts_are_indexed_and_searched(realdata, tmp_path):
    parts = ["covidqa", "delucionqa", "emanual", "hotpotqa"]
    get("ragbench", tmp_path / "four", realdata / "ragbench", subset=",".join(parts))
    dataset = DatasetConfig(path=str(tmp_path / "four"))
    config = EnvironmentConfig(dataset=dataset, index=str(tmp_path / "index"))
    assert build_index(config).documents == 5617
    assert Environment.open(config).info().splits == {"train": 520, "validation": 846, "test": 792}
    measured = list(measure_spec(spec_of_run(RunConfig(env=config), None)))
    assert [measurement.dataset.rpartition("/")[2] for measurement in measured[:-1]] == parts
    assert [measurement.questions for measurement in measured] == [244, 92, 66, 390, 792]
    # the questions of a part are far from random and from perfect in a corpus of four parts
    assert all(0.2 < measurement.value < 0.95 for measurement in measured)
    assert measured[-1].value == pytest.approx(sum(measurement.value for measurement in measured[:-1]) / 4)


def test_scifact_is_right_by_bm25_and_wrong_without_its_titles(realdata, tmp_path, capsys):
    """The purpose of the check: an index without titles is detected before any rewriting is measured."""
    settings = [f"env.dataset.path={realdata / 'scifact'}", f"env.index={tmp_path / 'index'}"]
    assert end("index", "build", "demo", *settings) == 0
    assert end("data", "baselines", "demo", *settings) == 0
    assert ": right; as published (0.6790" in capsys.readouterr().out
    bare = tmp_path / "bare"
    (bare / "qrels").mkdir(parents=True)
    for name in ("queries.jsonl", "qrels/test.tsv"):
        (bare / name).write_bytes((realdata / "scifact" / name).read_bytes())
    corpus = read_jsonl(realdata / "scifact" / "corpus.jsonl")
    write_jsonl(bare / "corpus.jsonl", *(document | {"title": ""} for document in corpus))
    (bare / "meta.json").write_text('{"name": "scifact"}')
    settings = [f"env.dataset.path={bare}", f"env.index={tmp_path / 'other'}"]
    assert end("index", "build", "demo", *settings) == 0
    capsys.readouterr()
    assert end("data", "baselines", "demo", *settings) == 1
    assert ": wrong; -0." in capsys.readouterr().out
