"""A corpus of six contents, and a scripted model that writes and judges questions about them."""

import json
import re
import shutil
from contextlib import contextmanager
from unittest.mock import patch

import pytest
from querylect.configs.environment import DatasetConfig, EnvironmentConfig, QuestionIndexConfig
from querylect.configs.schema import QuestionsConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Text

TEXTS = {
    "aspirin": "aspirin relieves headache",
    "insulin": "insulin lowers blood glucose",
    "citrus": "vitamin c prevents scurvy",
    "triptan": "triptan stops migraine and headache",
    "word": "statin",
    "fremd": "Vitamin-D-Mangel führt zu Müdigkeit 維生素D",
}
QUESTIONS = {
    "aspirin": ["What helps when my head hurts?", "What is aspirin for?", "Who invented the telephone?"],
    "insulin": ["What lowers the sugar in my blood?", "  what LOWERS the sugar   in my blood? ", ""],
    "citrus": ["Why did sailors bleed from the gums?"],
    "triptan": ["What helps when my head hurts?", "What stops a migraine?"],
    "word": [],
    "fremd": ["Warum bin ich bei Vitamin-D-Mangel so müde?", "維生素D缺乏有什麼症狀？"],
}
WRONG = {"Who invented the telephone?"}


class QuestionModel:
    """Writes `questions` for each content, and judges every question answerable that is not in `wrong`.

    A prompt gets no reply if `silent` is true of its text, and raises if `broken` is; a question in `garbled` gets a
    verdict of the wrong format. `contents` and `judged` record the prompts that were answered.
    """

    identity = {"model": "scripted"}  # noqa: RUF012

    def __init__(self, questions=QUESTIONS, wrong=WRONG):
        self.questions, self.wrong, self.garbled = dict(questions), set(wrong), set()
        self.silent = self.broken = lambda text: False
        self.contents, self.judged, self.draws = [], [], []

    @property
    def answered(self):
        """How many prompts were answered."""
        return len(self.contents) + len(self.judged)

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            message = prompt.messages[0]["content"]
            if self.broken(message):
                raise ConnectionAbortedError("the model is gone")
            if self.silent(message):
                deliver(index, "silent")
                continue
            self.draws.append(draw)
            deliver(index, LlmResponse((Text(self.reply(message), True, {}),), 7, 3))

    def reply(self, message):
        if message.endswith("Questions:"):
            text = message.rpartition("Text: ")[2].removesuffix("\nQuestions:")
            name = next(name for name in self.questions if text.startswith(f"About {name}"))
            self.contents.append(name)
            questions = self.questions[name]
            return questions if isinstance(questions, str) else json.dumps({"questions": questions}, ensure_ascii=False)
        text, question = re.search(r"Text: (.*)\n\nQuestion: (.*)", message).groups()
        name = text.split()[1]
        self.judged.append((name, question))
        if question in self.garbled:
            return "perhaps"
        verdict = question not in self.wrong and (name, question) not in self.wrong
        return json.dumps({"explanation": "because", "answerable": verdict})


class InLines(QuestionModel):
    """Answers in labelled lines."""

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            head, case = prompt.messages[0]["content"], prompt.messages[-1]["content"]
            if head.startswith("You are"):
                questions = self.questions[next(name for name in TEXTS if f"About {name}" in case)]
                text = "\n".join(f"Questions: {question}" for question in questions or ["none"])
            else:
                wrong = any(question in case for question in self.wrong)
                text = f"Explanation: so\nAnswerable: {'no' if wrong else 'yes'}"
            deliver(index, LlmResponse((Text(text, True),), 7, 3))


@contextmanager
def questions_config(model, cache=None, **settings):
    """`QuestionsConfig` whose writer and judge are `model`."""
    with patch("querylect.questions.models.open_llm", lambda config: Llm(model, cache, not isinstance(model, InLines))):
        yield QuestionsConfig(**{"per_content": 3, **settings})


def save_corpus(folder, texts=TEXTS):
    """The corpus as a BEIR folder with three questions."""
    corpus = [Document(name, f"About {name}", text) for name, text in texts.items()]
    test = Split(
        [Question("q-head", "what helps when my head hurts"), Question("q-gums", "bleed from the gums")],
        {"q-head": {"triptan": 2, "aspirin": 1}, "q-gums": {"citrus": 1}},
    )
    train = Split([Question("q-sugar", "sugar in the blood")], {"q-sugar": {"insulin": 1}})
    shutil.rmtree(folder, ignore_errors=True)
    save_beir(Dataset("medicines", corpus, {"test": test, "train": train}), folder)
    return DatasetConfig(path=str(folder))


@pytest.fixture
def corpus(tmp_path):
    """An environment over the corpus, and where its indexes go."""
    question_index = QuestionIndexConfig(folder=str(tmp_path / "questions"), index=str(tmp_path / "of-questions"))
    return EnvironmentConfig(
        dataset=save_corpus(tmp_path / "data"),
        retriever="qb-rag",
        question_index=question_index,
        index=str(tmp_path / "index"),
    )
