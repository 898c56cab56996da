"""QB-RAG's generated test sets, and how similar questions and contents are."""

import json
import re

import numpy as np
import pytest
import yaml
from querylect.cli import main
from querylect.configs.environment import RecipeConfig
from querylect.configs.paper import load_paper
from querylect.data.beir import load_beir
from querylect.data.types import Document
from querylect.envs.recipes import recipe_of
from querylect.envs.retrievers.encoder import Encoder
from querylect.envs.retrievers.question_index import open_question_index
from querylect.errors import ConfigError, DataError, IncompleteError
from querylect.eval.tasks.items import read_items
from querylect.questions.build import write_question_index
from querylect.questions.similarity import question_similarities, similarities
from querylect.questions.test_sets import write_test_set

from ..encoders import save_bert
from ..question_models import QuestionModel, corpus, questions_config  # noqa: F401 (a fixture)
from ..raising import refused

HEAD = "What helps when my head hurts?"


class Rewords(QuestionModel):
    """Also rephrases questions, and writes a further one for a content."""

    def __init__(self, **replies):
        super().__init__()
        self.further, self.listed = replies, {}

    def reply(self, prompt):
        if "in other words, as another person" in prompt:
            original = re.findall("Question: (.*)", prompt)[-1]
            return json.dumps({"question": original if "aspirin" in original else f"In other words: {original}"})
        if "Questions that exist" in prompt:
            text, listed = re.findall("Text: (.*)\n\nQuestions that exist:\n((?:.+\n?)+)", prompt)[-1]
            name = text.split()[1]
            self.listed[name] = listed
            return self.further.get(name, "no idea")
        return super().reply(prompt)


@pytest.fixture
def indexed(corpus):  # noqa: F811
    with questions_config(QuestionModel()) as config:
        write_question_index(config, corpus, corpus.question_index.folder)
    return corpus


def texts_of(folder):
    split = load_beir(folder).splits["test"]
    return {question.text: sorted(split.qrels[question.id]) for question in split.questions}


def test_rephrased_questions_keep_their_contents_and_are_not_in_the_index(tmp_path, indexed):
    with questions_config(Rewords()) as config:
        summary = write_test_set("rephrased", config, indexed, tmp_path / "rephrased")
    contents = texts_of(tmp_path / "rephrased")
    assert contents[f"In other words: {HEAD}"] == ["aspirin", "triptan"]
    indexed_texts = {question.text for question in open_question_index(indexed.question_index.folder).questions()}
    assert not indexed_texts & contents.keys()
    assert (summary.questions, summary.repeated, summary.failed) == (len(indexed_texts) - 1, 1, 0), (
        "one was repeated word for word"
    )
    assert len(load_beir(tmp_path / "rephrased").corpus) == 6, "all contents"
    meta = json.loads((tmp_path / "rephrased" / "meta.json").read_text())
    assert (meta["writer"], meta["prompt"]) == ({"model": "scripted"}, "qb-rag-rephrase-1")
    with questions_config(Rewords()) as config:
        some = write_test_set("rephrased", config, indexed, tmp_path / "some", limit=3)
        assert some.questions + some.repeated == 3
        with refused(DataError, tmp_path / "some"):
            write_test_set("rephrased", config, indexed, tmp_path / "some", limit=3)
    paper = load_paper("qb_rag", [f"tasks.rephrase.data={tmp_path / 'rephrased'}"])
    assert len(read_items("rephrase", paper.tasks["rephrase"], None, 0).items) == summary.questions


def test_new_questions_are_others_that_the_content_answers(tmp_path, indexed):
    model = Rewords(
        aspirin='{"question": "Does aspirin upset the stomach?"}',
        insulin='{"question": "Who found insulin?"}',
        citrus='{"question": "What helps when my head hurts? "}',
        triptan='{"question": "Is triptan for children?"}',
    )
    model.wrong.add("Who found insulin?")
    with questions_config(model) as config:
        summary = write_test_set("new", config, indexed, tmp_path / "new")
    assert texts_of(tmp_path / "new") == {
        "Does aspirin upset the stomach?": ["aspirin"],
        "Is triptan for children?": ["triptan"],
    }
    assert (summary.questions, summary.dropped, summary.repeated, summary.failed) == (2, 1, 1, 2)
    assert model.listed["aspirin"].startswith(f"- {HEAD}\n- What is aspirin for?")
    assert model.listed["word"].startswith("(none)")


def test_missing_replies_and_no_question_at_all_write_nothing(tmp_path, indexed):
    model = Rewords()
    with questions_config(model) as config:
        with refused(DataError, "questions.writer.model"):
            write_test_set("new", config, indexed, tmp_path / "new")
        model.silent = lambda text: True
        with refused(IncompleteError, "6 of 6"):
            write_test_set("new", config, indexed, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_the_commands(tmp_path, indexed, capsys):
    settings = indexed.model_dump(mode="json")
    model = save_bert(tmp_path / "bert")
    settings["question_index"] |= {"retriever": "bge-small-en-v1.5", "model": model}
    file = tmp_path / "qb.yaml"
    file.write_text(yaml.safe_dump({"env": settings}))
    with questions_config(Rewords()), pytest.raises(SystemExit) as ended:
        main(["index", "test-questions", str(file), "--kind", "rephrased", "--to", str(tmp_path / "set")])
    assert ended.value.code in (0, None)
    assert "1 that stand in the index" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["index", "test-questions", str(file), "--kind", "odd", "--to", str(tmp_path / "set")])
    assert "'odd'" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["index", "similarity", str(file)])
    printed = capsys.readouterr().out
    assert re.search(r"questions and their content +\| +-?[01]\.\d{3} +\| +0\.837", printed)
    with refused(ConfigError, "'bm25'"):
        question_similarities(indexed)


@pytest.mark.parametrize("seed", range(4))
def test_mean_similarities_are_those_of_all_pairs(seed):
    rng = np.random.default_rng(seed)
    questions, contents = rng.normal(size=(9, 5)), rng.normal(size=(4, 5)) * 7
    content_of = rng.integers(0, 4, 9)

    def cosine(a, b):
        return a @ b / np.linalg.norm(a) / np.linalg.norm(b)

    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    means = similarities(questions, contents, content_of)
    for actual, values in (
        (means.same_content, [cosine(questions[i], questions[j]) for i, j in pairs if content_of[i] == content_of[j]]),
        (
            means.different_contents,
            [cosine(questions[i], questions[j]) for i, j in pairs if content_of[i] != content_of[j]],
        ),
        (means.own_content, [cosine(questions[i], contents[content_of[i]]) for i in range(9)]),
        (
            means.other_contents,
            [
                cosine(q, contents[c])
                for q, answer in zip(questions, content_of, strict=True)
                for c in range(4)
                if c != answer
            ],
        ),
    ):
        assert actual == pytest.approx(np.mean(values))
    alone = similarities(questions[:1], contents[:1], [0])
    assert (alone.same_content, alone.different_contents, alone.other_contents) == (None, None, None)


def test_similarities_of_an_index_are_by_its_own_encoder(tmp_path, indexed):
    settings = indexed.question_index.model_copy(
        update={"retriever": "bge-small-en-v1.5", "model": save_bert(tmp_path / "bert"), "recipe": RecipeConfig()}
    )
    env = indexed.model_copy(update={"question_index": settings})
    index = open_question_index(settings.folder)
    encoder = Encoder.open(recipe_of(env.model_copy(update={"retriever": settings.retriever, "model": settings.model})))
    texts = {question.id: question.text for question in index.questions()}
    first = {}
    for answer in index.answers():
        first.setdefault(answer.question, answer.content)
    contents = {document.id: document for document in load_beir(env.dataset.path).corpus}
    matched = [
        encoder.documents([encoder.recipe.content_of(Document("", "", texts[name])), contents[content].contents])
        for name, content in first.items()
    ]
    assert question_similarities(env).own_content == pytest.approx(np.mean([a @ b for a, b in matched]), abs=1e-5)
