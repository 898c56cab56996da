"""Models with a script and knowledge bases that find what they are told to: hand-worked cases need neither a model nor
an index."""

import json
import re
from functools import partial

from querylect.data.types import Document, Question
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import EnvironmentUnavailableError
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Text
from querylect.methods.method import Runner
from querylect.methods.methods import make_method
from querylect.rewriters.retriever_info import RetrieverInfo

ASKED = Question("q", "Who tamed the red dog?")
BM25, DENSE = RetrieverInfo("bm25", "bm25"), RetrieverInfo("contriever", "dense")


class Scripted:
    """Answers a prompt with what `answer` makes of its last user message: a text, a Text, several samples, or None for
    no reply. `prompts` are those messages, `requests` whole prompts."""

    identity = {"model": "scripted"}  # noqa: RUF012

    def __init__(self, answer):
        self.answer, self.prompts, self.requests, self.draws = answer, [], [], []

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            message = prompt.messages[-1]["content"]
            self.prompts.append(message)
            self.requests.append(prompt)
            self.draws.append(draw)
            answer = self.answer(message)
            if answer is None:
                deliver(index, "silent")
                continue
            samples = answer if isinstance(answer, list) else [answer]
            texts = (sample if isinstance(sample, Text) else Text(sample, True) for sample in samples)
            deliver(index, LlmResponse(tuple(texts), 1, 1))


def Script(*texts):
    """A model that answers its prompts with these texts, in order."""
    replies = iter(texts)
    return Scripted(lambda message: next(replies))


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


class Collection:
    """Ranks all documents, or those of the first text of `by_text` that the plan holds, and records the plans."""

    def __init__(self, *names, texts=None, by_text=None):
        self.names, self.texts, self.by_text, self.plans = names, texts or {}, by_text or {}, []

    def search(self, plans, with_text=True):
        self.plans += plans
        rankings = [[self.hit(name, rank) for rank, name in enumerate(self.ranked(plan))] for plan in plans]
        return [PlanResult(ranking=ranking) for ranking in rankings]

    def ranked(self, plan):
        texts = [term.text for probe in plan.probes for term in probe.terms]
        names = next((names for text, names in self.by_text.items() if text in texts), self.names)
        return names[: plan.k]

    def hit(self, name, rank):
        return HitBody(id=name, score=1 / (1 + rank), title=f"About {name}", text=self.texts.get(name, f"{name} text"))


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
    model = answer if isinstance(answer, Scripted) else Scripted(answer)
    (ran,) = Runner(Llm(model, json_answers=not lines), shelves, cross_encoder).run(method, [question])
    return ran.result, model


def run_named(name, question, model, searcher, retriever=BM25, **settings):
    """The result of a method over one knowledge base."""
    return run(make_method(name, settings, retriever), model, question, **{"": searcher})[0]


def terms(plan):
    """Text and weight of the terms of each probe."""
    return [[(term.text, term.weight) for term in probe.terms] for probe in plan.probes]


def ids(result):
    return [document.id for document in result.documents]


def form(**values):
    return json.dumps(values, ensure_ascii=False)


HYPOTHESIS = {
    "discriminating_features": ["migraine"],
    "reasoning": "known",
    "confirming_evidence": ["a trial of triptan"],
    "best_guess": "A",
    "best_guess_text": "triptan",
}
FORMS = {
    "H_plus": {"H_plus": "triptan against migraine", "H_minus": "statin for cholesterol"},
    "discriminating_features": HYPOTHESIS,
    "missing_knowledge": {"thought": "?", "judge": True, "missing_knowledge": ["dose"], "query": ["insulin glucose"]},
    '"passages"': {"passages": [1]},
    '"pieces"': {"pieces": [{"passage": 1, "information": "something"}]},
    '"sufficient"': {"sufficient": False, "missing": ["more"]},
    '"queries"': {"queries": ["insulin glucose"]},
}
"""The answer by a word of the prompt that identifies the format."""


def obliging(prompt: str) -> str:
    """The answer to the last message of a prompt; to what has no form a word of the corpus."""
    for word, form in FORMS.items():
        if word in prompt:
            return json.dumps(form)
    labels = list(dict.fromkeys(re.findall(r"^((?:Sub-query|Query) \d):", prompt, re.MULTILINE)))
    if labels:
        return "\n".join(f"{label}: triptan migraine {label}" for label in labels)
    if "answer_choice" in prompt:
        return json.dumps({"step_by_step_thinking": "", "answer_choice": "A"})
    if "</rewrite>" in prompt:
        return "<think>so</think><rewrite>triptan</rewrite>"
    return "Answer: triptan"
