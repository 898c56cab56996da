"""A model that answers by the words of its prompt, and knowledge bases that rank as a table states."""

import json
from functools import partial

from querylect.data.types import Document, Question
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import EnvironmentUnavailableError
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Text
from querylect.methods.method import Runner
from querylect.methods.methods import make_method

ASKED = Question("q", "Who tamed the red dog?")


class Scripted:
    """Answers a prompt with what `answer` makes of its last user message: a text, a Text, or None for no reply."""

    identity = {"model": "scripted"}  # noqa: RUF012

    def __init__(self, answer):
        self.answer, self.prompts, self.draws = answer, [], []

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            message = prompt.messages[-1]["content"]
            self.prompts.append(message)
            self.draws.append(draw)
            answer = self.answer(message)
            if answer is None:
                deliver(index, "silent")
            else:
                text = answer if isinstance(answer, Text) else Text(answer, True)
                deliver(index, LlmResponse((text,), 1, 1))


class Shelf:
    """Finds for each query the documents that a table holds for it, queries of one plan in turns."""

    def __init__(self, table, down=False):
        self.table, self.down, self.plans = table, down, []

    def search(self, plans, with_text=True):
        self.plans += plans
        if self.down:
            raise EnvironmentUnavailableError("nobody is there")
        return [self._ranking(plan) for plan in plans]

    def _ranking(self, plan):
        columns = [self.table.get(probe.terms[0].text, []) for probe in plan.probes]
        depth = max(map(len, columns))
        turns = [column[rank] for rank in range(depth) for column in columns if rank < len(column)]
        documents = list({document.id: document for document in turns}.values())[: plan.k]
        hits = [
            HitBody(id=document.id, score=-number, title=document.title, text=document.text)
            for number, document in enumerate(documents)
        ]
        return PlanResult(ranking=hits)

    @property
    def queries(self):
        return [[probe.terms[0].text for probe in plan.probes] for plan in self.plans]


def method_of(method, **settings):
    """A method of METHODS without a retriever of its own."""
    return make_method(method, settings, None)


direct_gen, cot, std_rag = partial(method_of, "direct_gen"), partial(method_of, "cot"), partial(method_of, "std_rag")
misknow, migres, qa_rag = partial(method_of, "misknow"), partial(method_of, "migres"), partial(method_of, "qa_rag")
rerank, main_rag = partial(method_of, "rerank"), partial(method_of, "main_rag")


def doc(name, text=None, title=""):
    return Document(name, title, text if text is not None else f"text of {name}")


def run(method, answer, question=ASKED, cross_encoder=None, lines=False, **shelves):
    """(result, model) of one question; the shelves by source. `lines` asks for labelled lines."""
    model = Scripted(answer)
    (ran,) = Runner(Llm(model, json_answers=not lines), shelves, cross_encoder).run(method, [question])
    return ran.result, model


def ids(result):
    return [document.id for document in result.documents]


def form(**values):
    return json.dumps(values, ensure_ascii=False)
