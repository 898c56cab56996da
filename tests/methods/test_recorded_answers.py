"""Realistic answers to the prompts of methods and judges: most are read as a person reads them, and hardly any as
something else. An answer that is not read is a failure that is counted, after one more try."""

from collections import defaultdict
from pathlib import Path

import pytest
from querylect.configs.load import parse_yaml
from querylect.configs.schema import RewriterConfig
from querylect.data.types import Question
from querylect.eval.tasks import judges
from querylect.eval.tasks.reader import chosen, read_answer
from querylect.llms.prose import marked_answers, passage_of, without_thinking
from querylect.llms.structured import read
from querylect.methods import migres, misknow, one_search
from querylect.methods.expansion import pivotal
from querylect.questions.models import Written
from querylect.rewriters.hcqr import ChosenHypothesis
from querylect.rewriters.registry import make_rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..scripted import doc

RECORDINGS = Path(__file__).parent.parent / "recordings"
WRITTEN, SMALL = (
    parse_yaml((RECORDINGS / name).read_text(encoding="utf-8")) for name in ("answers.yaml", "smollm2_135m.yaml")
)
QUESTION = Question("q", "Which metal melts at 1538 degrees?")
DRUGS = ("aspirin", "insulin", "vitamin C", "a statin")
METALS = [doc("d1", "Iron melts at 1538 degrees."), doc("d2", "Lead melts at 327 degrees.")]
ENCYCLOPEDIA = [
    doc("d1", "Iron is a metal. It melts at 1538 degrees and rusts in moist air.", "Iron"),
    doc("d2", "Emma is a novel of 1815 about a young woman who likes to make matches.", "Emma"),
    doc("d3", "Insulin is a hormone. It lets cells take up sugar from the blood.", "Insulin"),
]


def dumped(value):
    return value.model_dump(mode="json", by_alias=True)


def share(value):
    return sum(statement.attributed for statement in value.statements) / len(value.statements)


FORMS = {
    "hcqr.formulator": (ChosenHypothesis, dumped),
    "chr": (one_search.Hypotheses, dumped),
    "misknow.judge": (misknow.Judgement, dumped),
    "migres.filter": (migres.Kept, dumped),
    "migres.extract": (migres.Extracted, dumped),
    "migres.judge": (migres.Judged, dumped),
    "migres.queries": (migres.Queries, dumped),
    "utility": (judges.FORMS["utility"], lambda value: judges.LABELS[value.label]),
    "mimic": (judges.FORMS["mimic"], lambda value: value.quality.lower()),
    "relevancy": (judges.FORMS["relevancy"], lambda value: float(value.answerable)),
    **{
        name: (judges.FORMS[name], lambda value: float(value.verdict))
        for name in ("declined", "faithfulness", "answer_relevancy")
    },
    "guideline.points": (judges.FORMS["points"], lambda value: value.points),
    "guideline.adherence": (judges.FORMS["guideline"], lambda value: value.score),
    "context_recall.statements": (judges.FORMS["statements"], lambda value: value.statements),
    "context_recall.attributions": (judges.FORMS["context_recall"], share),
    "qb.writer": (Written, lambda value: value.questions),
}


def rewrites(name):
    rewriter = make_rewriter(RewriterConfig(name=name), RetrieverInfo("bm25", "bm25"))
    return lambda text: list(rewriter.read(QUESTION, text, 1).rewrites)


def option(options):
    return lambda text: None if (index := chosen(without_thinking(text), options)) is None else "ABCD"[index]


TEXTS = {
    **{name: rewrites(name) for name in ("multi_query", "hyde", "explore")},
    **{f"{name}.rewriter": rewrites(name) for name in ("hcqr", "chr")},
    "csqe.pick": lambda text: pivotal(text, METALS)[0] or pivotal(text, ENCYCLOPEDIA)[0],
    "thinkqe": lambda text: [passage_of(text).answer],
    "qa_rag": lambda text: [passage_of(text).answer],
    "cot": lambda text: (marked_answers(without_thinking(text)) or [None])[-1],
    "choice": option(DRUGS),
    "yes_no": option(("yes", "no", "maybe")),
    "choice.cough": option(("Croup", "Asthma")),
    "choice.sugar": option(DRUGS),
    "answer": lambda text: read_answer(text, QUESTION, "short"),
}


def parsed(stage, recorded):
    if stage not in FORMS:
        return TEXTS[stage](recorded["text"]) or None
    form, of = FORMS[stage]
    as_json = not recorded.get("prompt", "").endswith("/lines")
    value = read(recorded["text"], form, as_json, not recorded.get("cut", False)).value
    return None if value is None else of(value)


@pytest.mark.parametrize(
    ("recordings", "right_share", "misread_share"),
    [(WRITTEN, 0.6, 0.07), (SMALL, 0.75, 0.05)],
    ids=["written", "small"],
)
def test_most_answers_are_read_right_and_hardly_any_wrongly(recordings, right_share, misread_share):
    answers = [(stage, answer) for stage, rows in recordings.items() if stage in {**FORMS, **TEXTS} for answer in rows]
    right, unread, misread = 0, defaultdict(list), []
    for stage, recorded in answers:
        actual = parsed(stage, recorded)
        if actual == recorded["read"] or actual == [recorded["read"]]:
            right += 1
        elif actual in (None, [], [""]):
            unread[stage].append(recorded["text"])
        else:
            misread.append((stage, recorded["text"], actual))
    assert len(answers) > 60
    assert right / len(answers) >= right_share, dict(unread)
    assert len(misread) / len(answers) <= misread_share, misread
