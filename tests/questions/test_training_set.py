"""Questions written for passages: which are requested, kept, judged and extended, and how a killed call resumes."""

import json
import re
from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.configs.llm import STYLES, SyntheticConfig
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, QuestionsConfig
from querylect.data.beir import load_beir, save_beir
from querylect.data.documents import documents_of_passages, write_corpus
from querylect.data.leakage import exact_leaks
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.llms.access import Llm, ReplyCache
from querylect.questions.training_set import WIDEN, write_training_set
from querylect.questions.written import copied, neighbours, plan_questions, split_counts, split_documents, with_typos

from ..handbook import THINGS, Author, save_handbook
from ..jsonl import read_jsonl

COUNT = 60


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The passages of the handbook, and an environment with a BM25 index of them."""
    folder = tmp_path_factory.mktemp("handbook")
    write_corpus(save_handbook(folder / "docs"), folder / "corpus", words=60, overlap=0)
    dataset = DatasetConfig(path=str(folder / "corpus"))
    env = EnvironmentConfig(dataset=dataset, retriever="bm25", index=str(folder / "index"))
    build_index(env)
    return folder / "corpus", env


def write(author, corpus, target, test=None, cache=None, **settings):
    """The quality of all questions."""
    with patch("querylect.questions.models.open_llm", lambda config: Llm(author, cache and ReplyCache(cache))):
        synthetic = SyntheticConfig(**{"count": COUNT, **settings})
        write_training_set(QuestionsConfig(words=100), synthetic, corpus[1], corpus[0], target, test)
    return json.loads((target / "quality.json").read_text())[-1]


def rows(folder):
    return read_jsonl(folder / "queries.jsonl")


def passage_about(thing, corpus):
    """The id of the passage that names it."""
    return next(document.id for document in load_beir(corpus[0]).corpus if thing in document.text)


def documents_of_splits(folder, corpus):
    """The documents of the judged passages of each split."""
    document_of = documents_of_passages(corpus[0])
    return {
        name: {document_of[passage] for judged in split.qrels.values() for passage in judged}
        for name, split in load_beir(folder).splits.items()
    }


def test_questions_of_every_style_have_their_passages_as_judgements(tmp_path, corpus):
    quality = write(Author(), corpus, tmp_path / "set")
    dataset = load_beir(tmp_path / "set")
    assert set(dataset.splits) == {"train", "validation", "test"}
    styles = {row["_id"]: row for row in rows(tmp_path / "set")}
    assert Counter(row["style"] for row in styles.values()).keys() == set(STYLES)
    texts = {document.id: document.text for document in dataset.corpus}
    for split in dataset.splits.values():
        for question in split.questions:
            row = styles[question.id]
            assert set(row["written_for"]) <= set(split.qrels[question.id])
            assert len(row["written_for"]) == (2 if row["style"] == "multi_hop" else 1)
            mentioned = [name for name, common in THINGS.items() if common in re.findall(r"\w+", question.text)]
            if row["style"] != "typo":
                assert all(any(f"The {name} costs" in texts[d] for d in split.qrels[question.id]) for name in mentioned)
    assert (quality["style"], quality["requested"], quality["written"], quality["answerable"]) == (
        "all",
        COUNT,
        COUNT,
        1,
    )
    assert sum(len(split.questions) for split in dataset.splits.values()) == quality["kept"]
    meta = json.loads((tmp_path / "set" / "meta.json").read_text())
    assert meta["writer"] == {"model": "author"}
    assert meta["costs"]["calls"] > 0
    of_split = documents_of_splits(tmp_path / "set", corpus)
    assert sum(map(len, of_split.values())) == len(set.union(*of_split.values())), "no document in two splits"
    assert len(of_split["train"]) > len(of_split["test"]) > 0
    assert exact_leaks(dataset.splits) == []


def test_unanswerable_questions_are_dropped_and_counted(tmp_path, corpus):
    bad = [name for number, name in enumerate(THINGS) if number % 2]  # one of the two sections of each file
    quality = write(Author(bad=bad), corpus, tmp_path / "set", styles=["question", "keyword"], count=40)
    assert (quality["written"], quality["answerable"], quality["kept"]) == (40, 0.5, 20)
    assert quality["repeated"] == pytest.approx(19 / 40), "the same wrong question twenty times"
    assert not any("moon" in row["text"] for row in rows(tmp_path / "set"))


class Generous(Author):
    """Judges that every text answers every question."""

    def reply(self, prompt):
        return super().reply(prompt).replace("false", "true")


def test_similar_passages_of_the_split_that_answer_a_question_are_relevant_too(tmp_path, corpus):
    quality = write(Generous(), corpus, tmp_path / "set", styles=["question"])
    assert 1 < quality["relevant"] <= 1 + WIDEN
    of_split = documents_of_splits(tmp_path / "set", corpus).values()
    assert sum(map(len, of_split)) == len(set.union(*of_split)), "only passages of the same split"


def test_a_call_that_breaks_off_goes_on_with_the_replies_that_came(tmp_path, corpus):
    uninterrupted, resumed, cache = Author(), Author(), tmp_path / "replies.sqlite"
    write(uninterrupted, corpus, tmp_path / "whole")
    with pytest.raises(ConnectionAbortedError):
        write(Author(stop_after=100), corpus, tmp_path / "set", cache=cache)
    assert not (tmp_path / "set").exists()
    write(resumed, corpus, tmp_path / "set", cache=cache)
    calls = len(uninterrupted.written) + len(uninterrupted.judged)
    assert calls - len(resumed.written) - len(resumed.judged) == 100
    for name in ("queries.jsonl", "qrels/train.tsv", "qrels/dev.tsv", "qrels/test.tsv", "quality.json"):
        assert (tmp_path / "set" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_users_questions_are_the_test_and_are_not_trained_on(tmp_path, corpus):
    passages, bike = load_beir(corpus[0]).corpus, passage_about("velocipede", corpus)
    write(Author(), corpus, tmp_path / "plain")
    document_of = documents_of_passages(corpus[0])
    asked = next(
        row["text"] for row in rows(tmp_path / "plain") if document_of[row["written_for"][0]] != document_of[bike]
    )
    users = Split([Question("u1", f"{asked}!!"), Question("u2", "bike rent?")], {"u1": {bike: 1}, "u2": {bike: 1}})
    save_beir(Dataset("users", passages, {"test": users}), tmp_path / "users")
    author = Author()
    write(author, corpus, tmp_path / "set", tmp_path / "users")
    dataset = load_beir(tmp_path / "set")
    assert [question.id for question in dataset.splits["test"].questions] == ["u1", "u2"]
    assert document_of[bike] not in documents_of_splits(tmp_path / "set", corpus)["train"]
    assert not any("velocipede" in things for things in author.written)
    assert asked not in {row["text"] for row in rows(tmp_path / "set")}
    leaks = read_jsonl(tmp_path / "set" / "leaks.jsonl")
    assert [leak["of"] for leak in leaks if leak["text"] == asked] == [
        {"split": "test", "_id": "u1", "text": f"{asked}!!"}
    ]


def words_of(number):
    return Document(f"p{number}", f"T{number}", "word " * 30)


@given(st.integers(3, 12), st.integers(1, 40), st.integers(3, 80), st.lists(st.sampled_from(STYLES), min_size=1))
def test_a_plan_keeps_documents_apart_and_asks_nothing_twice(documents, passages, count, styles):
    styles = list(dict.fromkeys(styles))
    corpus = [words_of(number) for number in range(max(documents, passages))]
    document_of = {passage.id: f"d{number % documents}" for number, passage in enumerate(corpus)}
    split_of = split_documents(corpus, document_of)
    assert set(split_of.values()) == {"train", "validation", "test"}
    assert set(split_of) == set(document_of.values())
    drawn = {name: [p for p in corpus if split_of[document_of[p.id]] == name] for name in split_of.values()}
    planned = plan_questions(drawn, split_counts(drawn, count), styles, neighbours(corpus, document_of))
    assert len({(question.style, question.passages[0].id) for question in planned}) == len(planned) <= max(count, 3)
    for question in planned:
        assert {split_of[document_of[passage.id]] for passage in question.passages} == {question.split}
        assert len({passage.id for passage in question.passages}) == (2 if question.style == "multi_hop" else 1)


@given(st.text("abcdefgh éß日", min_size=1, max_size=80), st.text(max_size=3))
def test_typos_change_longer_words_alone(text, seed):
    typed = with_typos(text, seed)
    assert typed == with_typos(text, seed)
    words, changed = text.split(), typed.split()
    assert len(words) == len(changed)
    longer = [word for word in words if sum(map(str.isalpha, word)) >= 4]
    assert (typed.split() != words) == bool(longer)
    for original, mistyped in zip(words, changed, strict=True):
        assert original[0] == mistyped[0]
        assert original == mistyped or (abs(len(original) - len(mistyped)) <= 1 and original in longer)


def test_what_a_question_copies():
    assert copied("When do members pay the fee?", "Members pay the fee at noon.") == 4 / 6
    assert copied("?!", "text") == 0
