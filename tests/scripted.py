"""A model with a script, and a collection that finds what it is told to: hand-worked cases need neither a model nor an
index."""

from querylect.envs.schemas import HitBody, PlanResult
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Text
from querylect.methods.method import Runner
from querylect.methods.methods import make_method
from querylect.rewriters.retriever_info import RetrieverInfo

BM25, DENSE = RetrieverInfo("bm25", "bm25"), RetrieverInfo("contriever", "dense")


class Script:
    """Answers prompts with the texts of a script, in order; a list is several samples, None is no reply."""

    def __init__(self, *texts):
        self.identity = {"local": "script"}
        self.texts, self.prompt_texts, self.draws, self.prompts = list(texts), [], [], []

    def generate(self, prompts, draw, deliver):
        for index, prompt in enumerate(prompts):
            self.prompts.append(prompt)
            self.prompt_texts.append(prompt.messages[-1]["content"])
            self.draws.append(draw)
            reply = self.texts.pop(0)
            samples = [reply] if isinstance(reply, str) else reply
            deliver(
                index,
                "gone" if samples is None else LlmResponse(tuple(Text(sample, True) for sample in samples), 1, 1),
            )


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


class Down:
    """Never answers."""

    def search(self, plans, with_text=True):
        from querylect.errors import EnvironmentUnavailableError

        raise EnvironmentUnavailableError("nobody is there")


def run(name, question, model, searcher, retriever=BM25, **settings):
    """The result of a method for one question."""
    method = make_method(name, settings, retriever)
    (ran,) = Runner(Llm(model), {"": searcher}).run(method, [question])
    return ran.result


def terms(plan):
    """Text and weight of the terms of each probe."""
    return [[(term.text, term.weight) for term in probe.terms] for probe in plan.probes]
