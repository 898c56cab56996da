"""QB-RAG's generated test sets."""

import json
import re

import pytest
import yaml
from querylect.cli import main
from querylect.configs.paper import load_paper
from querylect.data.beir import load_beir
from querylect.envs.retrievers.qb_rag import open_question_index
from querylect.errors import DataError
from querylect.eval.tasks.gold import read_items
from querylect.questions.index import write_question_index
from querylect.questions.test_sets import write_test_set

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


def test_rephrased_questions_keep_their_contents_and_are_not_in_the_index(tmp_path, indexed, capsys):
    file = tmp_path / "qb.yaml"
    file.write_text(yaml.safe_dump({"env": indexed.model_dump(mode="json")}))
    with questions_config(Rewords()) as config:
        with pytest.raises(SystemExit) as ended:
            main(["index", "test-questions", str(file), "--kind", "rephrased", "--to", str(tmp_path / "set")])
        assert ended.value.code in (0, None)
        some = write_test_set("rephrased", config, indexed, tmp_path / "some", limit=3)
        assert some["questions"] + some["repeated"] == 3
        with refused(DataError, tmp_path / "some"):
            write_test_set("rephrased", config, indexed, tmp_path / "some", limit=3)
    assert "1 that stand in the index" in capsys.readouterr().out
    contents = texts_of(tmp_path / "set")
    assert contents[f"In other words: {HEAD}"] == ["aspirin", "triptan"]
    texts = {question.text for question in open_question_index(indexed.question_index.folder).questions()}
    assert not texts & contents.keys()
    assert len(contents) == len(texts) - 1, "one was repeated word for word"
    assert len(load_beir(tmp_path / "set").corpus) == 6, "all contents"
    meta = json.loads((tmp_path / "set" / "meta.json").read_text())
    assert meta["writer"] == {"model": "scripted"}
    paper = load_paper("qb_rag", [f"tasks.rephrase.data={tmp_path / 'set'}"])
    assert len(read_items("rephrase", paper.tasks["rephrase"], None, 0)[0]) == len(contents)


def test_new_questions_are_others_that_the_content_answers(tmp_path, indexed):
    model = Rewords(
        aspirin='{"question": "Does aspirin upset the stomach?"}',
        insulin='{"question": "Who found insulin?"}',
        citrus='{"question": "What helps when my head hurts? "}',
        triptan='{"question": "Is triptan for children?"}',
    )
    model.wrong.add("Who found insulin?")
    with questions_config(model) as config:
        counts = write_test_set("new", config, indexed, tmp_path / "new")
    assert texts_of(tmp_path / "new") == {
        "Does aspirin upset the stomach?": ["aspirin"],
        "Is triptan for children?": ["triptan"],
    }
    assert counts == {"questions": 2, "dropped": 1, "repeated": 1, "failed": 2}
    assert model.listed["aspirin"].startswith(f"- {HEAD}\n- What is aspirin for?")
    assert model.listed["word"].startswith("(none)")
