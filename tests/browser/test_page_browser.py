"""The playground in a real headless Chromium against a real service: what people see, type, hear and copy."""

import json
import math
from contextlib import contextmanager

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.page.router import PageRewrite
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.server.app import create_app

from ..chromium import contrasts

HOSTILE = "<script>window.hurt = true</script><img src=x onerror='window.hurt = true'> headache"


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Eight documents, one of them hostile and one long; two test questions and two for training."""
    folder = tmp_path_factory.mktemp("page")
    texts = {
        "aspirin": "aspirin relieves headache",
        "triptan": "triptan stops migraine and headache",
        "hostile": HOSTILE,
        "insulin": "insulin lowers glucose",
        "long": "statin " + "lowers cholesterol slowly " * 30 + "END",
        "hidden": "nothing asks for this",
        "lamp": "a lamp gives light",
        "bread": "bread is baked",
    }
    corpus = [Document(name, "" if name == "hostile" else f"About {name}", text) for name, text in texts.items()]
    questions = [Question("q-head", "headache & <b>pain</b>"), Question("q-sugar", "too much glucose")]
    qrels = {"q-head": {"triptan": 2, "hidden": 1}, "q-sugar": {"insulin": 1}}
    choice = Question("q-choice", "which of these is baked", ("<b>bread</b>", "a lamp"))
    train = Split([Question("q-light", "what gives light"), choice], {"q-light": {"lamp": 1}, "q-choice": {"bread": 1}})
    save_beir(Dataset("page", corpus, {"test": Split(questions, qrels), "train": train}), folder / "data")
    config = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=str(folder / "data")), index=str(folder / "index"), name="<i>page</i>"
    )
    build_index(config)
    return config, Environment.open(config)


@pytest.fixture
def visit(browser, environment, run_app):
    """`with visit(...) as page`: the page of a service with these settings; no error in its console, no other host."""
    config, opened = environment

    @contextmanager
    def open_page(token=None, writer=None, javascript_errors=(), scheme="light", **changes):
        app = create_app(opened, config.model_copy(update=changes), token, writer)
        with run_app(app) as url:
            context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 900})
            context.grant_permissions(["clipboard-read", "clipboard-write"], origin=url)
            page = context.new_page()
            page.set_default_timeout(60_000)
            errors, requests = [], []
            page.on("pageerror", lambda error: errors.append(str(error)))
            page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
            page.on("request", lambda request: requests.append(request.url))
            page.goto(url)
            yield page
            assert [error for error in errors if not any(part in error for part in javascript_errors)] == []
            assert all(address.startswith((url, "data:")) for address in requests)
            context.close()

    return open_page


def ready(page):
    page.get_by_role("status").filter(has_text="nDCG@10").wait_for()


def titles(page, side):
    return [" ".join(text.split()) for text in page.locator(f"#{side}-hits strong").all_inner_texts()]


def test_a_rewrite_is_ranked_beside_the_raw_question(visit):
    with visit(playground=True) as page:
        ready(page)
        assert page.locator("#about").inner_text() == "<i>page</i> · bm25 · 8 documents"
        assert page.get_by_label("Text, picked or typed").input_value() == "headache & <b>pain</b>"
        assert titles(page, "raw") == ["About aspirin", "About triptan", "hostile"]
        page.get_by_label("One query a line").fill("triptan migraine")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        ideal = 2 + 1 / math.log2(3)
        raw, new = 2 / math.log2(3) / ideal, 2 / ideal
        summary = f"nDCG@10: raw {raw:.3f}, rewrite {new:.3f} (+{new - raw:.3f})."
        assert page.get_by_role("status").inner_text() == summary
        assert page.locator("#new-score").inner_text() == f"nDCG@10 {new:.3f} +{new - raw:.3f}"
        assert titles(page, "new") == ["About triptan"]
        assert page.locator("#new-hits").get_by_label("1 place up").count() == 1
        assert page.locator("#new-hits li.relevant .badge").inner_text() == "★ relevant, grade 2"
        rows = [row.split("\t") for row in page.locator("#judged-rows tr").all_inner_texts()]
        assert rows == [
            ["About triptan triptan", "2", "2", "1", "▲ 1"],
            ["About hidden hidden", "1", "not found", "not found", "not found"],
        ]
        assert "Do not train against it" in page.locator("#judged-note").inner_text()


def test_judgements_stay_hidden_where_they_are_not_switched_on(visit):
    with visit() as page:
        ready(page)
        assert page.locator("#judged-table").is_hidden()
        assert page.locator(".relevant").count() == 0
        assert "env.playground=true" in page.locator("#judged-note").inner_text()
        assert "hidden" not in "".join(titles(page, "raw"))


def test_a_hostile_document_is_shown_as_text(visit):
    with visit(playground=True) as page:
        ready(page)
        assert HOSTILE in page.locator("#raw-hits li").nth(2).inner_text()
        assert page.locator("#raw-hits script, #raw-hits img").count() == 0
        assert page.evaluate("window.hurt") is None


def test_the_policy_of_the_page_stops_a_script_that_is_not_its_own(visit):
    with visit(javascript_errors=["Content Security Policy"]) as page:
        ready(page)
        page.evaluate("document.body.append(Object.assign(document.createElement('script'), {text: 'hurt = true'}))")
        assert page.evaluate("window.hurt") is None


def test_weights_and_several_rewrites_become_the_plan_that_is_copied(visit):
    with visit() as page:
        ready(page)
        page.get_by_label("One query a line").fill("headache ^0.5 | aspirin ^-2\n\n a \\| b \n glucose ^.5x")
        page.get_by_label("Lines joined by").select_option("rrf")
        page.get_by_label("Documents (k)").fill("7")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        page.get_by_role("button", name="Copy plan").click()
        page.get_by_role("status").filter(has_text="copied").wait_for()
        plan = SearchPlan.model_validate(json.loads(page.evaluate("navigator.clipboard.readText()")))
    assert plan == SearchPlan(
        probes=(
            Probe(terms=(Term(text="headache", weight=0.5), Term(text="aspirin", weight=-2))),
            Probe(terms=(Term(text="a | b"),)),
            Probe(terms=(Term(text="glucose ^.5x"),)),
        ),
        fuse="rrf",
        k=7,
    )


def test_everything_can_be_done_from_the_keyboard(visit):
    with visit() as page:
        ready(page)
        page.get_by_label("Text, picked or typed").focus()
        page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        assert page.locator("#before").get_attribute("open") is not None, "the conversation before the question opens"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.type("triptan")
        page.keyboard.press("Control+Enter")
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        assert titles(page, "new") == ["About triptan"]
        focused = []
        for _ in range(5):
            page.keyboard.press("Tab")
            focused.append(page.evaluate("document.activeElement.id"))
            assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        assert focused == ["fuse", "k", "compare", "copy", "plan"]
        unnamed = page.evaluate(
            "[...document.querySelectorAll('input, select, textarea')]"
            ".filter(e => !e.labels.length && !e.ariaLabel).map(e => e.id)"
        )
        assert unnamed == []


def test_questions_are_picked_by_number_and_split_and_typed(visit):
    with visit() as page:
        ready(page)
        question = page.get_by_label("Text, picked or typed")
        page.get_by_role("button", name="Next question").click()
        page.locator("#which", has_text="q-sugar").wait_for()
        page.locator("#status", has_text="1.000").wait_for()
        page.get_by_role("button", name="Next question").click()
        page.locator("body:not([aria-busy])").wait_for()
        assert page.get_by_label("Number").input_value() == "2"
        page.get_by_label("Split").select_option("train")
        page.locator("#which", has_text="q-light").wait_for()
        assert question.input_value() == "what gives light"
        question.fill("baked bread")
        assert "question of your own" in page.locator("#which").inner_text()
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="1 document.").wait_for()
        assert titles(page, "raw") == ["About bread"]
        assert page.locator("#raw-score").inner_text() == ""
        question.fill("  ")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="Type a question").wait_for()
        question.fill("statin")
        page.get_by_role("button", name="Compare").click()
        more = page.get_by_role("button", name="more")
        more.wait_for()
        assert "END" not in page.locator("#raw-hits").inner_text()
        more.click()
        assert "END" in page.locator("#raw-hits").inner_text()
        assert page.get_by_role("button", name="less").get_attribute("aria-expanded") == "true"


def test_a_refusal_is_told_in_the_words_of_the_service(visit):
    with visit(javascript_errors=["422"]) as page:
        ready(page)
        page.get_by_label("One query a line").fill("x ^1e5\ny")
        page.evaluate("document.getElementById('fuse').options[0].value = 'best'")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("alert").filter(has_text="fuse").wait_for()
        page.get_by_label("Lines joined by").select_option("sum")
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        assert page.get_by_role("alert").is_hidden()


def test_the_token_is_asked_for_and_kept_in_memory_alone(visit):
    with visit(token="s3cret", javascript_errors=["401"]) as page:
        token = page.get_by_label("Token of this service")
        token.wait_for()
        assert page.locator("#main").is_hidden()
        token.fill("wrong")
        page.keyboard.press("Enter")
        page.get_by_role("alert").filter(has_text="not the service's").wait_for()
        token.fill("s3cret")
        page.keyboard.press("Enter")
        ready(page)
        assert token.is_hidden()
        assert titles(page, "raw")
        stored = page.evaluate(
            "JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie, location.href, history.state,"
            " [...document.querySelectorAll('input')].map(e => e.value)])"
        )
        assert "s3cret" not in stored
        page.reload()
        token.wait_for()


class ScriptedWriter:
    name = "runs/<demo>"

    def __init__(self, *answers):
        self.answers, self.questions, self.histories = list(answers), [], []

    def __call__(self, question, card, search):
        self.questions.append((question.text, *question.options))
        self.histories.append([(entry.role, entry.text) for entry in question.history])
        return self.answers.pop(0)


def test_options_stand_below_their_question_and_go_to_the_rewriter(visit):
    writer = ScriptedWriter(*[PageRewrite("…", SearchPlan.of("bread"))] * 2)
    with visit(writer=writer) as page:
        ready(page)
        options = page.get_by_role("list", name="Options of the question")
        assert options.count() == 0
        page.get_by_label("Split").select_option("train")
        page.locator("#which", has_text="q-light").wait_for()
        page.get_by_role("button", name="Next question").click()
        page.locator("#which", has_text="q-choice").wait_for()
        assert options.get_by_role("listitem").all_inner_texts() == ["<b>bread</b>", "a lamp"]
        assert page.evaluate("getComputedStyle(document.getElementById('options')).listStyleType") == "upper-alpha"
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        page.get_by_label("Text, picked or typed").fill("baked")
        assert options.count() == 0
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("status").filter(has_text="Compared").wait_for()
        page.get_by_role("button", name="Previous question").click()
        page.locator("#which", has_text="q-light").wait_for()
        assert options.count() == 0
    assert writer.questions == [("which of these is baked", "<b>bread</b>", "a lamp"), ("baked",)]


def test_a_generated_rewrite_is_compared_and_can_be_edited(visit):
    plan = SearchPlan(
        probes=(
            Probe(terms=(Term(text="triptan\nmigraine"), Term(text="a | b", weight=0.25)), k=5),
            Probe(terms=(Term(text="headache"),)),
        ),
        fuse="interleave",
    )
    writer = ScriptedWriter(
        PageRewrite("…", plan, think="<u>why</u>"), PageRewrite("no <tags>", None, failure="missing think")
    )
    with visit(writer=writer) as page:
        ready(page)
        generate = page.get_by_role("button", name="Generate with runs/<demo>")
        with page.expect_request("**/page/rewrite") as sent:
            generate.click()
        name = sent.value.post_data_json["question_id"]
        assert name, "a picked question is sent with its id"
        assert name in page.locator("#which").inner_text()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        assert page.locator("#written").inner_text() == "Thought: <u>why</u>"
        lines = page.get_by_label("One query a line")
        assert lines.input_value() == "triptan migraine | a \\| b ^0.25\nheadache"
        displayed = SearchPlan.model_validate_json(page.locator("#plan").inner_text())
        assert displayed == plan.model_copy(update={"k": 100})
        lines.fill("aspirin")
        page.get_by_role("button", name="Compare").click()
        page.locator("#plan", has_text="aspirin").wait_for()
        assert titles(page, "new") == ["About aspirin"]
        generate.click()
        page.get_by_role("status").filter(has_text="did not keep the format").wait_for()
        assert "no <tags>" in page.locator("#written").inner_text()


def test_a_conversation_that_is_typed_goes_to_the_rewriter(visit):
    writer = ScriptedWriter(*[PageRewrite("…", SearchPlan.of("triptan"))] * 2)
    with visit(writer=writer) as page:
        ready(page)
        page.get_by_text("Conversation before it").click()
        history = page.get_by_label("Conversation before the question")
        history.fill("User: my head\nhurts\nassistant: since  when?")
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
        page.get_by_role("button", name="Next question").click()
        page.locator("#which", has_text="q-sugar").wait_for()
        assert history.input_value() == ""
        page.get_by_role("button", name="Generate").click()
        page.get_by_role("status").filter(has_text="rewrite").wait_for()
    assert writer.histories == [[("user", "my head hurts"), ("assistant", "since  when?")], []]


def test_a_service_that_has_gone_is_told(visit):
    with visit(javascript_errors=["ERR_"]) as page:
        ready(page)
        page.context.route("**/v1/**", lambda route: route.abort())
        page.get_by_role("button", name="Compare").click()
        page.get_by_role("alert").filter(has_text="does not answer").wait_for()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_its_ground(visit, scheme):
    """The contrast of every text colour with the ground that it stands on is at least 4.5 (WCAG 2 AA)."""
    with visit(playground=True, scheme=scheme) as page:
        ready(page)
        ratios = contrasts(page)
        assert len(ratios) > 30
        assert min(ratios)[0] >= 4.5, min(ratios)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.set_viewport_size({"width": 360, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways on a telephone"
