"""Realistic answers through every method and judge: nearly all are read as a person reads them, and none as something
else. An answer that is not read must be counted as a failure."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest
from querylect.configs.rewriter import RewriterConfig
from querylect.configs.yaml12 import parse_yaml
from querylect.data.types import Question
from querylect.eval.tasks.gold import Gold
from querylect.eval.tasks.judges import JUDGES, Case, Setting, judged
from querylect.eval.tasks.reader import read_answer
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, Prompt, SamplingParams, Text
from querylect.llms.structured import AskForm, ask_structured
from querylect.methods.csqe import pivotal
from querylect.methods.methods import make_method
from querylect.methods.runner import Runner
from querylect.questions.prompts import Written
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.repair import read_reply
from querylect.rewriters.retriever_info import RetrieverInfo

from ..method_doubles import Shelf, doc

RECORDINGS = Path(__file__).parent.parent / "recordings"
RECORDED, SMALL = (
    parse_yaml((RECORDINGS / name).read_text(encoding="utf-8")) for name in ("answers.yaml", "smollm2_135m.yaml")
)
ANSWERS = [(stage, answer) for stage, answers in RECORDED.items() for answer in answers]
SMALL_ANSWERS = [(stage, answer) for stage, answers in SMALL.items() for answer in answers]

BM25 = RetrieverInfo("bm25", "bm25")
QUESTION = Question("q", "Which metal melts at 1538 degrees?")
CHOICE = Question("q", "Barking cough?", ("Croup", "Asthma"))
DRUGS = Question("q", "Which lowers sugar?", ("aspirin", "insulin", "vitamin C", "a statin"))
ENCYCLOPEDIA = [
    doc("d1", "Iron is a metal. It melts at 1538 degrees and rusts in moist air.", "Iron"),
    doc("d2", "Emma is a novel of 1815 about a young woman who likes to make matches.", "Emma"),
    doc("d3", "Insulin is a hormone. It lets cells take up sugar from the blood.", "Insulin"),
]
DOCUMENTS = [doc("d1", "Iron melts at 1538 degrees."), doc("d2", "Lead melts at 327 degrees.")]
INJURIES = tuple(f"{which} laryngeal nerve injury" for which in ("Internal", "Recurrent", "External"))
LARYNX = Question("q", "Hoarse?", (*INJURIES, "Laryngeal edema"))
HYPOTHESIS = RECORDED["hcqr.formulator"][0]["text"]


class RecordedModel:
    """Gives the recorded answer the first time that `applies` holds for a prompt, and nothing readable for a repair.

    Other prompts get the first text whose key they contain.
    """

    def __init__(self, recorded, applies=lambda prompt: True, other_answers=None):
        self.identity = {"model": "recorded"}
        self.recorded, self.applies, self.other_answers = recorded, applies, other_answers or {}
        self.form = "lines" if recorded.get("prompt", "").endswith("/lines") else "json"

    def generate(self, prompts, draw, deliver, costs):
        for index, prompt in enumerate(prompts):
            prompt_text, text = prompt.messages[0]["content"], ""
            first = not prompt.messages[-1]["content"].startswith("Your answer")
            if first:
                text = next((text for part, text in self.other_answers.items() if part in prompt_text), "")
            recorded = self.recorded if first and self.applies(prompt_text) else {"text": text}
            text = Text(recorded["text"], not recorded.get("cut", False))
            deliver(index, LlmResponse((text,) * draw.n, 1, 1))


FORMS = {
    "formulator": ("Hypothesis", "ChosenHypothesis"),
    "hypotheses": ("Hypotheses",),
    "judge": ("Judgement", "Judged"),
    "filter": ("Kept",),
    "extract": ("Extracted",),
    "queries": ("Queries",),
}


class StageRecorder:
    """A method that notes the outcome of the first step of one stage."""

    def __init__(self, method, stage):
        self.method, self.forms, self.name, self.versions = method, FORMS.get(stage, ()), method.name, method.versions
        self.outcomes = []

    def steps(self, question):
        steps, answer = self.method.steps(question), None
        while True:
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return stop.value
            answer = yield step
            if isinstance(step, AskForm) and step.form.__name__ in self.forms:
                self.outcomes.append(answer)


class AllDocuments(dict):
    def get(self, key, default=None):
        return DOCUMENTS


def run(name, model, question=QUESTION, watch="", **settings):
    method = StageRecorder(make_method(name, settings, BM25), watch)
    (ran,) = Runner(Llm(model), {"": Shelf(AllDocuments())}, form=model.form).run(method, [question])
    return ran.outcome, method.outcomes


def rewrites(name, recorded, **settings):
    outcome, _ = run(name, RecordedModel(recorded), **settings)
    return None if outcome.failure else outcome.notes["rewrites"]


def form_of(name, stage, recorded, applies=lambda prompt: True, other_answers=None, question=QUESTION, **settings):
    _, outcomes = run(name, RecordedModel(recorded, applies, other_answers), question, stage, **settings)
    return (
        outcomes[0].value.model_dump(mode="json", by_alias=True) if outcomes and outcomes[0].value is not None else None
    )


def verdict_of(name, recorded, applies=lambda prompt: True, other_answers=None):
    metals = Gold(Question("q", "What melts at 1538?", ("lead", "iron")), right=1)
    items = {"utility": metals, "mimic": metals, "guideline": Gold(QUESTION, contents=tuple(DOCUMENTS))}
    item = items.get(name, Gold(QUESTION, answers=("Ada",)))
    case = Case(item, DOCUMENTS[:1], True, "Iron.", notes={"H_plus": "p", "H_minus": "m"})
    model = RecordedModel(recorded, applies, other_answers)
    (verdict,) = judged(Runner(Llm(model), {}, form=model.form), JUDGES[name], [case], Setting())
    assert (verdict.value is None) == bool(verdict.failure)
    return verdict


MIGRES = {
    "Which of these passages": '{"passages": [1, 2]}',
    "Write down every piece": '{"pieces": [{"passage": 1, "information": "i"}]}',
    "Does the information": '{"sufficient": false, "missing": ["m"]}',
}
GUIDELINE = {
    "from the text below": "a metal",
    "Ideal answer": '{"points": ["p"]}',
    "Guideline": '{"explanation": "", "score": 0.5}',
}
RECALL = {
    "List the statements": '{"statements": ["Ada wrote it."]}',
    "Judge for every": '{"statements": [{"statement": 1, "attributed": true, "reason": ""}]}',
}


def contains(part):
    return lambda prompt: part in prompt


def migres(stage, part):
    return lambda recorded: form_of("migres", stage, recorded, contains(part), MIGRES)


def structured(form):
    def parse(recorded):
        model, prompt = RecordedModel(recorded), Prompt(({"role": "user", "content": "?"},))
        (answer,) = ask_structured(Llm(model), [prompt], form, SamplingParams(), model.form)
        return answer.value.model_dump(mode="json") if answer.value is not None else None

    return parse


def formulator(recorded, **settings):
    return form_of("hcqr", "formulator", recorded, contains("sits an exam"), question=CHOICE, **settings)


def hcqr(recorded):
    outcome, _ = run("hcqr", RecordedModel(recorded, contains("Best guess at"), {"sits an exam": HYPOTHESIS}), CHOICE)
    return None if outcome.failure else outcome.notes["rewrites"]


def asked(name):
    def parse(recorded):
        rewriter = make_rewriter(RewriterConfig(name=name), BM25)
        reply = LlmResponse((Text(recorded["text"], True),), 1, 1)
        return list(read_reply(rewriter, QUESTION, reply).rewrites) or None

    return parse


def pick(recorded):
    outcome, _ = run("csqe", RecordedModel(recorded, contains("Documents found"), {"Write a passage": "p"}))
    return outcome.notes["sentences"][0] or None


def expansions(recorded):
    outcome, _ = run("thinkqe", RecordedModel(recorded))
    assert bool(outcome.notes["expansions"]) != bool(outcome.failure)
    return outcome.notes["expansions"][:1] or None


def qa_rag(recorded):
    outcome, _ = run("qa_rag", RecordedModel(recorded))
    return None if outcome.failure else [term.text for term in outcome.plan.probes[0].terms]


def option(question):
    return lambda recorded: Gold(question).letter(read_answer(recorded["text"], question, "reasoned")) or None


def judge(name, field="value", applies=lambda prompt: True, other_answers=None):
    def parse(recorded):
        verdict = verdict_of(name, recorded, applies, other_answers)
        if verdict.failure:
            return None
        return getattr(verdict, field) if field in ("value", "label") else verdict.said.get(field)

    return parse


def questions(recorded):
    form = structured(Written)(recorded)
    return form["questions"] if form else None


def final_answer(recorded):
    outcome, _ = run("cot", RecordedModel(recorded))
    return None if outcome.failure else outcome.answer


PARSERS = {
    "hcqr.formulator": formulator,
    "chr": lambda recorded: form_of("chr", "hypotheses", recorded),
    "chr.rewriter": asked("chr"),
    "csqe.pick": pick,
    "thinkqe": expansions,
    "qa_rag": qa_rag,
    "misknow.judge": lambda recorded: form_of(
        "misknow", "judge", recorded, contains("You check whether"), {"": "draft"}
    ),
    "migres.filter": migres("filter", "Which of these passages"),
    "migres.extract": migres("extract", "Write down every piece"),
    "migres.judge": migres("judge", "Does the information"),
    "migres.queries": migres("queries", "Write a simple query"),
    "utility": judge("utility", "label"),
    "mimic": judge("mimic", "label"),
    "relevancy": judge("relevancy"),
    "declined": judge("declined"),
    "faithfulness": judge("faithfulness"),
    "answer_relevancy": judge("answer_relevancy"),
    "guideline.points": judge("guideline", "points", contains("Ideal answer"), GUIDELINE),
    "guideline.adherence": judge("guideline", "score", contains("Guideline"), GUIDELINE),
    "context_recall.statements": judge("context_recall", "statements", contains("List the statements"), RECALL),
    "context_recall.attributions": judge("context_recall", "value", contains("Judge for every"), RECALL),
    "choice": option(DRUGS),
    "yes_no": option(Question("q", "Is it?", ("yes", "no", "maybe"))),
    "cot": final_answer,
    "qb.writer": questions,
}
"""How the answers of each stage are read; None where they are not."""

TWO_JUDGED = "\n".join(f"Statement: {number}\nAttributed: no\nReason: none" for number in (1, 2))
SMALL_PARSERS = {
    **PARSERS,
    "hcqr.rewriter": hcqr,
    "multi_query": lambda recorded: rewrites("multi_query", recorded),
    "hyde": lambda recorded: rewrites("hyde", recorded, passages=1),
    "hcqr.formulator.alone": lambda recorded: formulator(recorded, options=False),
    "csqe.pick": lambda recorded: pivotal(recorded["text"], ENCYCLOPEDIA)[0] or None,
    "choice.larynx": option(LARYNX),
    "choice.cough": option(CHOICE),
    "choice.sugar": option(DRUGS),
    "context_recall.statements": judge(
        "context_recall", "statements", contains("List the statements"), {"Judge for every": TWO_JUDGED}
    ),
    "answer": lambda recorded: read_answer(recorded["text"], QUESTION, "short") or None,
}
"""Also the stages that only answers of the small model have."""


def test_there_are_answers_for_every_method_and_judge_and_enough_of_them():
    assert set(RECORDED) == set(PARSERS)
    stages = {stage.partition(".")[0] for stage in PARSERS}
    assert set(JUDGES) <= stages
    assert len(ANSWERS) >= 320
    unreadable = [answer for _, answer in ANSWERS if answer["read"] is None]
    assert len(unreadable) >= 50
    styles = Counter(answer["style"].split()[0] for _, answer in ANSWERS)
    assert min(styles[style] for style in ("refusal", "empty", "cut", "fence", "thinking")) >= 4


@pytest.mark.parametrize(
    ("answers", "parsers", "share", "misread_share"),
    [(ANSWERS, PARSERS, 0.85, 0.04), (SMALL_ANSWERS, SMALL_PARSERS, 0.96, 0.02)],
    ids=["written", "small"],
)
def test_nearly_all_answers_are_read_right_and_hardly_any_wrongly(answers, parsers, share, misread_share):
    right, unread, misread = 0, defaultdict(list), []
    for stage, recorded in answers:
        actual = parsers[stage](recorded)
        if actual == recorded["read"]:
            right += 1
        elif actual is None:
            unread[stage].append(recorded["text"])
        else:
            misread.append((stage, recorded["text"], actual))
    assert len(misread) / len(answers) <= misread_share, misread
    assert right / len(answers) >= share, dict(unread)


@pytest.mark.parametrize("name", ["direct_gen", "std_rag"])
@pytest.mark.parametrize(
    ("text", "answer"),
    [("Paris", "Paris"), ("<think>Rome</think>Paris", "Paris"), ("Rome?</think>\nParis", "Paris"), ("<think>Rome", "")],
)
def test_methods_that_answer_leave_the_thinking_out(name, text, answer):
    outcome, _ = run(name, RecordedModel({"text": text}))
    assert outcome.answer == answer
