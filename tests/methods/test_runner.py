"""Running methods over many questions: what is batched, what each question gets back and pays, missing replies."""

import asyncio

import pytest
from pydantic import BaseModel
from querylect.data.types import Question
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import HitBody, PlanResult
from querylect.errors import ConfigError, EnvironmentUnavailableError
from querylect.llms.access import Llm
from querylect.llms.base import LlmResponse, SamplingParams, Text
from querylect.llms.structured import FormPrompt
from querylect.methods.method import MISSING, NO_RANKING, Result, Runner

from ..raising import refused

QUESTIONS = [Question(f"q{number}", text) for number, text in enumerate(["one", "two", "three", "silence", "five"])]
SHORT, LONG = SamplingParams(max_tokens=8), SamplingParams(max_tokens=16)


class Echo:
    """A model that answers with the prompt in capitals; "silence" gets no reply. It records its batches."""

    identity = {"model": "echo"}  # noqa: RUF012

    def __init__(self, answer=str.upper):
        self.batches, self.answer = [], answer

    def generate(self, prompts, draw, deliver):
        texts = [prompt.messages[-1]["content"] for prompt in prompts]
        self.batches.append((draw.max_tokens, texts))
        for index, text in enumerate(texts):
            if "silence" in text:
                deliver(index, "silent")
            else:
                deliver(index, LlmResponse((Text(self.answer(text), True),) * draw.n, len(text), 3))


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


def two_stages(source=""):
    """Asks, searches with the answer, and asks again where the question is short."""

    async def method(question, ask, search):
        draft = await ask(question.text, SHORT)
        ranking = await search(SearchPlan.of(draft.texts[0].text, k=2), source)
        if len(question.text) == 3:
            again = await ask(ranking.documents[0].id, LONG)
            return Result(ranking.documents, {"again": again.texts[0].text})
        return Result(ranking.documents)

    return method


def test_one_stage_of_all_questions_travels_together():
    model, shelf = Echo(), Shelf()
    ran = Runner(Llm(model), {"": shelf}).run(two_stages(), QUESTIONS)
    assert [run.question for run in ran] == QUESTIONS
    assert model.batches == [(8, ["one", "two", "three", "silence", "five"]), (16, ["shelf-0"])], "equal ones once"
    assert shelf.batches == [["ONE", "TWO", "THREE", "FIVE"]]
    assert [run.result.notes for run in ran] == [{"again": "SHELF-0"}, {"again": "SHELF-0"}, {}, {}, {}]
    assert [run.result.failure for run in ran] == ["", "", "", MISSING, ""]
    assert [document.id for document in ran[0].result.documents] == ["shelf-0", "shelf-1"]
    costs = [(run.cost.calls, run.cost.prompt_tokens, run.cost.tokens, run.cost.searches) for run in ran]
    assert costs == [(2, 3 + 7, 6, 1), (2, 3 + 7, 6, 1), (1, 5, 3, 1), (0, 0, 0, 0), (1, 4, 3, 1)]


def test_batches_are_in_the_order_of_the_questions_whichever_came_first():
    """Question 0 reaches its second stage after question 1: the batch has it first all the same."""

    async def uneven(question, ask, search):
        if question.id == "q0":
            await asyncio.gather(*(search(SearchPlan.of(text, k=1)) for text in "ab"))
        else:
            await search(SearchPlan.of("c", k=1))
        await ask(question.text, SHORT)
        return Result()

    for questions in (QUESTIONS[:2], QUESTIONS[:2] * 20):
        model = Echo()
        Runner(Llm(model), {"": Shelf()}).run(uneven, questions)
        assert model.batches == [(8, ["one", "two"])]


def test_a_source_is_searched_by_name_and_what_cannot_be_searched_is_refused():
    wiki, pairs = Shelf("wiki"), Shelf("pairs")
    (ran,) = Runner(Llm(Echo()), {"wiki": wiki, "pairs": pairs}).run(two_stages("pairs"), QUESTIONS[:1])
    assert (wiki.batches, ran.result.documents[0].id) == ([], "pairs-0")
    with refused(ConfigError, "'web'", "'wiki', 'pairs'"):
        Runner(Llm(Echo()), {"wiki": wiki, "pairs": pairs}).run(two_stages("web"), QUESTIONS[:1])
    with refused(ConfigError, "'q7'", "'shelf-0'"):
        Runner(Llm(Echo()), {"": Shelf()}).run(two_stages(), [Question("q7", "seven", excluded=("shelf-0",))])
    (ran,) = Runner(Llm(Echo()), {"": Shelf(down=True)}).run(two_stages(), QUESTIONS[:1])
    assert (ran.result.failure, ran.cost.searches) == (NO_RANKING, 1)


class Judgement(BaseModel):
    fits: bool


def test_reader_and_writer_may_be_two_models():
    async def draft(question, ask, search):
        draft = await ask(question.text, LONG, role="reader")
        comment = await ask(draft.texts[0].text, SHORT)
        form = await ask.structured(FormPrompt("Judge.", question.text), Judgement, LONG, role="reader")
        return Result(notes={"about": comment.texts[0].text, "failed": bool(form.failure)})

    writer, reader = Echo(str.title), Echo(lambda text: f"{text[-3:]} {text[-3:]}")
    (ran,) = Runner(Llm(writer), {}, reader=Llm(reader)).run(draft, QUESTIONS[:1])
    assert ran.result.notes == {"about": "One One", "failed": True}
    assert writer.batches == [(8, ["one one"])]
    assert [tokens for tokens, _ in reader.batches] == [16, 16, 16], "the repaired form included"
    assert ran.cost.calls == 4
    alone = Echo()
    Runner(Llm(alone), {}).run(draft, QUESTIONS[:1])
    assert len(alone.batches) == 4, "one model is both"


def test_an_error_ends_the_run_and_a_notebook_can_run_methods():
    async def failing(question, ask, search):
        if question.id == "q1":
            raise ZeroDivisionError
        await ask(question.text, SHORT)

    async def notebook():
        return Runner(Llm(Echo()), {"": Shelf()}).run(two_stages(), QUESTIONS[:2])

    assert [run.result.failure for run in asyncio.run(notebook())] == ["", ""]
    assert Runner(Llm(Echo()), {}).run(two_stages(), []) == []
    with pytest.raises(ZeroDivisionError):
        Runner(Llm(Echo()), {}).run(failing, QUESTIONS)
