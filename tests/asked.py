"""A corpus of six contents, and a model that writes and judges questions as it is told to."""

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
from querylect.llms.base import LlmResponse, MissingResponse, Text

TEXTS = {
    "aspirin": "aspirin relieves headache",
    "insulin": "insulin lowers blood glucose",
    "citrus": "vitamin c prevents scurvy",
    "triptan": "triptan stops migraine and headache",
    "word": "statin",
    "fremd": "Vitamin-D-Mangel führt zu Müdigkeit 維生素D",
}
WRITTEN = {
    "aspirin": ["What helps when my head hurts?", "What is aspirin for?", "Who invented the telephone?"],
    "insulin": ["What lowers the sugar in my blood?", "  what LOWERS the sugar   in my blood? ", ""],
    "citrus": ["Why did sailors bleed from the gums?"],
    "triptan": ["What helps when my head hurts?", "What stops a migraine?"],
    "word": [],
    "fremd": ["Warum bin ich bei Vitamin-D-Mangel so müde?", "維生素D缺乏有什麼症狀？"],
}
WRONG = {"Who invented the telephone?"}


class Told:
    """Writes what it is told for each content, and judges a question answerable unless it is told not to.

    `silent` says of a prompt's text whether it gets no reply; `broken` whether asking it ends the run.
    """

    identity = {"model": "told"}  # noqa: RUF012

    def __init__(self, written=WRITTEN, wrong=WRONG):
        self.written, self.wrong, self.garbled = dict(written), set(wrong), set()
        self.silent = self.broken = lambda text: False
        self.about, self.judged, self.draws = [], [], []

    @property
    def asked(self):
        """How many prompts were answered."""
        return len(self.about) + len(self.judged)

    def generate(self, prompts, draw, deliver, costs):
        for place, prompt in enumerate(prompts):
            first = prompt.messages[0]["content"]
            if self.broken(first):
                raise ConnectionAbortedError("the model is gone")
            if self.silent(first):
                deliver(place, MissingResponse("silent"))
                continue
            self.draws.append(draw)
            deliver(place, LlmResponse((Text(self.reply(first), True, {}),), 7, 3))

    def reply(self, said):
        if said.endswith("Questions:"):
            text = said.rpartition("Text: ")[2].removesuffix("\nQuestions:")
            name = next(name for name in self.written if text.startswith(f"About {name}"))
            self.about.append(name)
            own = self.written[name]
            return own if isinstance(own, str) else json.dumps({"questions": own}, ensure_ascii=False)
        text, question = re.search(r"Text: (.*)\n\nQuestion: (.*)\n", said).groups()
        name = text.split()[1]
        self.judged.append((name, question))
        if question in self.garbled:
            return "perhaps"
        verdict = question not in self.wrong and (name, question) not in self.wrong
        if "Yes or No" in said:
            return "Yes" if verdict else "No"
        return json.dumps({"explanation": "because", "answerable": verdict})


@contextmanager
def asking(told, **settings):
    """`QuestionsConfig` whose models are what is told."""
    with patch("querylect.questions.build.open_llm", lambda config: Llm(told)):
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
    save_beir(Dataset("told", corpus, {"test": test, "train": train}), folder)
    return DatasetConfig(kind="beir", path=str(folder))


@pytest.fixture
def corpus(tmp_path):
    """An environment over the corpus, and where its indexes go."""
    own = QuestionIndexConfig(folder=str(tmp_path / "questions"), index=str(tmp_path / "of-questions"))
    return EnvironmentConfig(
        dataset=save_corpus(tmp_path / "data"), retriever="qb-rag", question_index=own, index=str(tmp_path / "index")
    )
