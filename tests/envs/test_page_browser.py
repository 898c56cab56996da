"""The playground in a real headless Chromium against a real service."""

import json
import math
from contextlib import contextmanager

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.server.app import create_app

pytestmark = pytest.mark.server

HOSTILE = "<script>window.hurt = true</script><img src=x onerror='window.hurt = true'> headache"


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Six documents, one of them hostile, and two questions."""
    folder = tmp_path_factory.mktemp("page")
    texts = {
        "aspirin": "aspirin relieves headache",
        "triptan": "triptan stops migraine and headache",
        "hostile": HOSTILE,
        "insulin": "insulin lowers glucose",
        "hidden": "nothing asks for this",
        "lamp": "a lamp gives light",
    }
    corpus = [Document(name, "" if name == "hostile" else f"About {name}", text) for name, text in texts.items()]
    questions = [Question("q-head", "headache & <b>pain</b>"), Question("q-sugar", "too much glucose")]
    qrels = {"q-head": {"triptan": 2, "hidden": 1}, "q-sugar": {"insulin": 1}}
    save_beir(Dataset("page", corpus, {"test": Split(questions, qrels)}), folder / "data")
    return folder


def opened(folder, retriever):
    """The environment of the data with a retriever."""
    config = EnvironmentConfig(
        dataset=DatasetConfig(path=str(folder / "data")),
        retriever=retriever,
        index=str(folder / retriever),
        name="<i>page</i>",
    )
    build_index(config)
    return Environment.open(config)


@pytest.fixture(scope="module")
def environment(data):
    return opened(data, "bm25")


@pytest.fixture
def visit(browser, environment, run_app):
    """`with visit(...) as page`: the page of the service; no error in its console, no other host."""

    @contextmanager
    def open_page(token=None, extend=None, javascript_errors=(), environment=environment):
        with run_app(create_app(environment, token, extend)) as url:
            page = browser.new_page()
            page.set_default_timeout(300_000)
            errors, requests = [], []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("request", lambda request: requests.append(request.url))
            page.goto(url)
            yield page
            assert [error for error in errors if not any(part in error for part in javascript_errors)] == []
            assert all(address.startswith((url, "data:")) for address in requests)
            page.close()

    return open_page


def ready(page):
    page.get_by_role("status").filter(has_text="Question q-head").wait_for()


def titles(page, side):
    return [" ".join(text.split()) for text in page.locator(f"#{side}-hits strong").all_inner_texts()]


def test_a_rewrite_is_ranked_beside_the_question_also_one_of_ones_own(visit):
    with visit() as page:
        ready(page)
        assert page.locator("#about").inner_text() == "<i>page</i> · bm25 · 6 documents"
        assert page.get_by_label("Question, picked or typed").input_value() == "headache & <b>pain</b>"
        assert titles(page, "raw") == ["About aspirin", "About triptan", "hostile"]
        page.get_by_label("Rewrite, one query a line").fill("triptan ^0.5 | migraine ^2")
        page.get_by_role("button", name="Compare").click()
        page.locator("#new-score").filter(has_text="nDCG").wait_for()
        ideal = 2 + 1 / math.log2(3)
        assert page.locator("#raw-score").inner_text() == f"nDCG@10 {2 / math.log2(3) / ideal:.3f}"
        assert page.locator("#new-score").inner_text() == f"nDCG@10 {2 / ideal:.3f}"
        assert titles(page, "new") == ["About triptan"]
        assert "was 2" in page.locator("#new-hits li").inner_text()
        plan = json.loads(page.locator("#plan").inner_text())
        assert plan["probes"] == [{"terms": [{"text": "triptan", "weight": 0.5}, {"text": "migraine", "weight": 2}]}]
        page.get_by_label("Question, picked or typed").fill("glucose")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="has no score").wait_for()
        assert titles(page, "raw") == ["About insulin"]
        assert page.locator("#raw-score").inner_text() == ""


def test_a_query_is_asked_as_written_and_its_hits_or_its_error_are_shown(visit, data):
    with visit(environment=opened(data, "fts5")) as page:
        ready(page)
        line, score = page.get_by_label("Rewrite, one query a line"), page.locator("#new-score")
        page.get_by_label("Asked as").select_option("native")
        for query, said, found in (
            ("headache NOT (migraine OR script)", "nDCG@10 0.000 · 1 hits", ["About aspirin"]),
            ("head, ache", 'nDCG@10 0.000 · refused: fts5: syntax error near ","', []),
            ("head ache", "nDCG@10 0.000 · 0 hits", []),
        ):
            line.fill(query)
            page.get_by_role("button", name="Compare").click()
            score.filter(has_text=said.rpartition(" · ")[2]).wait_for()
            assert (score.inner_text(), titles(page, "new")) == (said, found)
        page.get_by_label("Asked as").select_option("text")
        page.get_by_role("button", name="Compare").click()
        score.filter(has_not_text="hits").wait_for()
        assert json.loads(page.locator("#plan").inner_text())["mode"] == "text"
    with visit() as page:
        ready(page)
        assert page.get_by_label("Asked as").is_hidden()


def test_a_hostile_document_is_shown_as_text_and_a_foreign_script_is_stopped(visit):
    with visit(javascript_errors=["Content Security Policy"]) as page:
        ready(page)
        assert HOSTILE in page.locator("#raw-hits li").nth(2).inner_text()
        assert page.locator("#raw-hits script, #raw-hits img").count() == 0
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hurt = true'}))")
        assert page.evaluate("window.hurt") is None


def test_a_service_with_a_token_asks_for_it(visit):
    with visit(token="s3cret", javascript_errors=["401"]) as page:
        for token in ("wrong", "s3cret"):
            page.get_by_role("alert").filter(has_text="token").wait_for()
            page.get_by_label("Token of this service").fill(token)
            page.get_by_role("button", name="Use token").click()
        ready(page)


def test_a_rewriter_of_the_service_writes_the_rewrite(visit):
    def extend(app):
        @app.post("/v1/ask")
        async def answer(body: dict) -> dict:
            plan = SearchPlan(probes=(Probe(terms=(Term(text=f"triptan {body['questions'][0]['text'][:8]}"),)),))
            return {"answers": [{"turns": [{"plan": plan.model_dump(), "failure": None}]}]}

    with visit(extend=extend) as page:
        ready(page)
        page.get_by_role("button", name="Generate").click()
        page.locator("#new-score").filter(has_text="nDCG").wait_for()
        assert page.get_by_label("Rewrite, one query a line").input_value() == "triptan headache"
