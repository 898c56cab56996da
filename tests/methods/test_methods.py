"""Methods of several stages: what is batched, what each question gets back, and missing answers."""

import pytest
from pydantic import BaseModel
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import ConfigError, EnvironmentUnavailableError
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, MissingResponse, Prompt, SamplingParams, Text
from querylect.llms.structured import AskForm, FormPrompt
from querylect.methods.method import MISSING, NO_RANKING, Outcome, PromptStep, ScoreStep, SearchStep
from querylect.methods.runner import Runner

from ..method_doubles import method_of
from ..raising import refused

pytestmark = pytest.mark.model

QUESTIONS = [Question(f"q{number}", text) for number, text in enumerate(["one", "two", "three", "silence", "five"])]


class Echo:
    """A model that answers with the prompt in capitals; "silence" gets no reply. It records its batches."""

    identity = {"model": "echo"}  # noqa: RUF012

    def __init__(self, answer=str.upper):
        self.batches, self.answer = [], answer

    def generate(self, prompts, draw, deliver, costs):
        texts = [prompt.messages[-1]["content"] for prompt in prompts]
        self.batches.append((draw.max_tokens, texts))
        for index, text in enumerate(texts):
            reply = LlmResponse((Text(self.answer(text), True),) * draw.n, len(text), 3)
            deliver(index, MissingResponse("silent") if "silence" in text else reply)


class Shelf:
    """Finds the documents NAME-0, NAME-1, … of the text of each plan, as many as it asks for."""

    def __init__(self, name="shelf", down=False):
        self.name, self.down, self.batches = name, down, []

    def search(self, plans, with_text=True):
        self.batches.append([plan.probes[0].terms[0].text for plan in plans])
        if self.down:
            raise EnvironmentUnavailableError("nobody is there")
        rankings = [[hit(f"{self.name}-{rank}", 1 / (1 + rank)) for rank in range(plan.k)] for plan in plans]
        return [PlanResult(ranking=ranking) for ranking in rankings]


def hit(name, score):
    return HitBody(id=name, score=score, title=name, text=f"text of {name}")


def prompt(text):
    return Prompt(({"role": "user", "content": text},))


class TwoStages:
    """Asks, searches with the answer, and asks again where the question is short."""

    name = "two stages"

    def __init__(self, source=""):
        self.source = source

    def steps(self, question):
        draft = yield PromptStep(prompt(question.text), SamplingParams(max_tokens=8))
        if draft is None:
            return Outcome(failure=MISSING)
        result = yield SearchStep(SearchPlan.of(draft.texts[0].text, k=2), self.source)
        if result is None:
            return Outcome(failure=NO_RANKING)
        if len(question.text) == 3:
            again = yield PromptStep(prompt(result.documents[0].id), SamplingParams(max_tokens=16))
            return Outcome(result.documents, result.plan, {"again": again.texts[0].text})
        return Outcome(result.documents, result.plan)


def test_one_stage_of_all_questions_travels_together():
    model, shelf = Echo(), Shelf()
    ran = Runner(Llm(model), {"": shelf}).run(TwoStages(), QUESTIONS)
    assert [run.question for run in ran] == QUESTIONS
    assert model.batches == [(8, ["one", "two", "three", "silence", "five"]), (16, ["shelf-0"])], "equal ones once"
    assert shelf.batches == [["ONE", "TWO", "THREE", "FIVE"]]
    assert [run.outcome.notes for run in ran] == [{"again": "SHELF-0"}, {"again": "SHELF-0"}, {}, {}, {}]
    assert [run.outcome.failure for run in ran] == ["", "", "", MISSING, ""]
    assert [run.outcome.plan.probes[0].terms[0].text for run in ran if run.outcome.plan] == [
        "ONE",
        "TWO",
        "THREE",
        "FIVE",
    ]
    assert [document.id for document in ran[0].outcome.documents] == ["shelf-0", "shelf-1"]


def test_every_question_pays_for_what_was_said_to_it():
    ran = Runner(Llm(Echo()), {"": Shelf()}).run(TwoStages(), QUESTIONS)
    assert [(run.spent.calls, run.spent.prompt_tokens, run.spent.tokens, run.spent.searches) for run in ran] == [
        (2, 3 + 7, 6, 1),
        (2, 3 + 7, 6, 1),
        (1, 5, 3, 1),
        (0, 0, 0, 0),
        (1, 4, 3, 1),
    ]


def test_a_source_is_searched_by_name_and_an_unknown_one_refused():
    wiki, pairs = Shelf("wiki"), Shelf("pairs")
    ran = Runner(Llm(Echo()), {"wiki": wiki, "pairs": pairs}).run(TwoStages("pairs"), QUESTIONS[:1])
    assert (wiki.batches, ran[0].outcome.documents[0].id) == ([], "pairs-0")
    with refused(ConfigError, "'web'", "'wiki', 'pairs'"):
        Runner(Llm(Echo()), {"wiki": wiki, "pairs": pairs}).run(TwoStages("web"), QUESTIONS[:1])


def test_a_search_that_would_rank_an_excluded_document_is_refused():
    """A knowledge base does not know the question of a plan. A method without a search is not refused."""
    excluding = Question("q7", "seven", excluded=("shelf-0",))
    shelf = Shelf()
    with refused(ConfigError, "'q7'", "'shelf-0'"):
        Runner(Llm(Echo()), {"": shelf}).run(TwoStages(), [*QUESTIONS, excluding])
    assert shelf.batches == []
    (ran,) = Runner(Llm(Echo()), {}).run(method_of("direct_gen"), [excluding])
    assert not ran.outcome.failure


class Several:
    """Yields lists: nothing, two prompts beside a search, and one step."""

    name = "several"

    def steps(self, question):
        nothing = yield []
        result, first, second = yield [
            SearchStep(SearchPlan.of(question.text, k=1)),
            PromptStep(prompt(f"{question.text} first"), SamplingParams(max_tokens=8)),
            PromptStep(prompt(f"{question.text} second"), SamplingParams(max_tokens=8)),
        ]
        (last,) = yield [PromptStep(prompt(f"{question.text} last"), SamplingParams(max_tokens=8))]
        texts = [response and response.texts[0].text for response in (first, second, last)]
        return Outcome(result.documents, notes={"nothing": nothing, "said": texts})


def test_a_list_of_steps_is_answered_by_a_list_and_asked_in_one_batch():
    model, shelf = Echo(), Shelf()
    ran = Runner(Llm(model), {"": shelf}).run(Several(), QUESTIONS[2:4])
    assert [sorted(texts) for _, texts in model.batches] == [
        ["silence first", "silence second", "three first", "three second"],
        ["silence last", "three last"],
    ]
    assert shelf.batches == [["three", "silence"]]
    assert [run.outcome.notes["said"] for run in ran] == [["THREE FIRST", "THREE SECOND", "THREE LAST"], [None] * 3]
    assert ran[0].outcome.notes["nothing"] == []
    assert [(run.spent.calls, run.spent.searches) for run in ran] == [(3, 1), (0, 1)]


class Draft:
    """The reader drafts, and the writer comments on the draft."""

    name = "draft"

    def steps(self, question):
        draft = yield PromptStep(prompt(question.text), SamplingParams(), role="reader")
        comment = yield PromptStep(prompt(draft.texts[0].text), SamplingParams())
        form = yield AskForm(prompt(question.text), Judgement, SamplingParams(), role="reader")
        return Outcome(notes={"about": comment.texts[0].text, "form": form.failure != ""})


def test_reader_and_writer_may_be_two_models():
    writer, reader = Echo(str.title), Echo(lambda text: f"{text} {text}")
    (ran,) = Runner(Llm(writer), {}, reader=Llm(reader)).run(Draft(), QUESTIONS[:1])
    assert ran.outcome.notes == {"about": "One One", "form": True}
    assert [texts for _, texts in writer.batches] == [["one one"]]
    assert [texts[0] for _, texts in reader.batches][:2] == ["one", "one"]
    assert ran.spent.calls == 4, "of both, the repaired form included"
    alone = Echo()
    Runner(Llm(alone), {}).run(Draft(), QUESTIONS[:1])
    assert len(alone.batches) == 4, "one model is both"


class Judgement(BaseModel):
    fits: bool


class Judged:
    """Searches, has the documents scored and judged."""

    name = "judged"

    def steps(self, question):
        result = yield SearchStep(SearchPlan.of(question.text, k=3))
        scores = yield ScoreStep(question.text, result.documents)
        judged = yield AskForm(prompt(question.text), Judgement, SamplingParams())
        ordered = sorted(zip(scores, result.documents, strict=True), key=lambda pair: -pair[0])
        note = {"fits": judged.value and judged.value.fits, "failure": judged.failure, "missing": judged.missing}
        return Outcome(tuple(document for _, document in ordered), notes=note)


class LastFirst:
    """Scores a document by its last figure."""

    def scores(self, question, texts):
        return [float(text[-1]) for text in texts]


def test_forms_and_scores_come_back_to_their_question():
    answers = {"one": '{"fits": true}', "two": "yes!", "three": '{"fits": false}', "five": '{"fits": true}'}
    model = Echo(lambda text: answers.get(text, '{"fits": false}' if "required form" in text else "?"))
    ran = Runner(Llm(model), {"": Shelf()}, LastFirst()).run(Judged(), QUESTIONS)
    assert [run.outcome.notes["fits"] for run in ran] == [True, False, False, None, True]
    assert [run.outcome.notes["missing"] for run in ran] == [False, False, False, True, False]
    assert [run.spent.calls for run in ran] == [1, 2, 1, 0, 1], "a repaired form is two calls"
    assert [document.id for document in ran[0].outcome.documents] == ["shelf-2", "shelf-1", "shelf-0"]
    with refused(ConfigError):
        Runner(Llm(model), {"": Shelf()}).run(Judged(), QUESTIONS)


def test_the_runner_says_how_forms_are_written():
    class Judging:
        name = "judging"

        def __init__(self, worded=lambda text: FormPrompt("Judge it.", text, "v1")):
            self.worded = worded

        def steps(self, question):
            answer = yield AskForm(self.worded(question.text), Judgement, SamplingParams())
            return Outcome(notes={"value": answer.value, "failure": answer.failure})

    answers = {"json": '{"fits": true}', "lines": "Fits: yes"}
    for way, other_form in (("json", "lines"), ("lines", "json")):
        (right,) = Runner(Llm(Echo(lambda text, way=way: answers[way])), {}, form=way).run(Judging(), QUESTIONS[:1])
        assert right.outcome.notes == {"value": Judgement(fits=True), "failure": ""}
        other_model = Llm(Echo(lambda text, other_form=other_form: answers[other_form]))
        (also,) = Runner(other_model, {}, form=way).run(Judging(), QUESTIONS[:1])
        assert also.outcome.notes["value"] == Judgement(fits=True), "an answer in the other form is read, too"
    (plain,) = Runner(Llm(Echo(lambda text: answers["json"])), {}, form="lines").run(Judging(prompt), QUESTIONS[:1])
    assert plain.outcome.notes == {"value": Judgement(fits=True), "failure": ""}, "a plain prompt asks for JSON itself"
