"""The page of `querylect report` in a real Chromium, from a file: what is filtered, read, and never run."""

from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest
from querylect.eval.report.folder_report import write_report

from ..chromium import contrasts
from ..evaluated import HOSTILE, LONG


@pytest.fixture(scope="module")
def address(hostile, tmp_path_factory):
    """The page as a file."""
    return write_report([hostile], tmp_path_factory.mktemp("page") / "report.html", 10).as_uri()


@pytest.fixture
def visit(browser, address):
    """`with visit() as page`: no error in its console, no request but that of the file, no hostile script run."""

    @contextmanager
    def open_page(scheme="light", width=1200):
        context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
        page = context.new_page()
        page.set_default_timeout(60_000)
        errors, requests = [], []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("request", lambda request: requests.append(request.url))
        page.goto(address)
        yield page
        assert errors == []
        assert requests == [address]
        assert page.evaluate("window.hurt") is None
        context.close()

    return open_page


def field(page, label):
    """A field of the filters."""
    return page.get_by_role("search").get_by_label(label)


def cards(page):
    """[(head, score of the raw question, score of the rewrite)] of the questions on the page."""
    return [
        (" ".join(card.locator("h3").inner_text().split()), *card.locator(".score").all_inner_texts())
        for card in page.locator("article").all()
    ]


def test_questions_are_filtered_and_read_by_what_is_shown(visit):
    with visit() as page:
        status = page.get_by_role("status")
        field(page, "System").select_option("prompted")
        field(page, "Turn").select_option("turn 2")
        assert status.inner_text() == "4 comparisons fit; the first 3 are shown."
        page.get_by_role("button", name="Show 1 more of 1").click()
        assert status.inner_text() == "4 comparisons fit."
        assert cards(page) == [
            ("prompted, turn 2 −1.000 hurt", "ndcg@10 1.000", "ndcg@10 0.000"),
            ("prompted, turn 2 +0.500 helped", "ndcg@10 0.500", "ndcg@10 1.000"),
            ("prompted, turn 2 +0.250 helped", "ndcg@10 0.000", "ndcg@10 0.250"),
            ("prompted, turn 2 unchanged", "ndcg@10 0.500", "ndcg@10 0.500"),
        ]
        field(page, "Change").select_option("helped")
        assert [head for head, *_ in cards(page)] == [
            "prompted, turn 2 +0.500 helped",
            "prompted, turn 2 +0.250 helped",
        ]
        field(page, "Words in questions").fill("REWRITTEN gums")
        assert status.inner_text() == "1 comparison fits."
        assert page.locator("article .where").inner_text() == "lessons · bm25 · question t-gums"
        field(page, "Words in questions").fill("nothing has this")
        assert status.inner_text() == "No question fits."
        page.get_by_role("button", name="Show all").click()
        page.get_by_role("status").filter(has_text="comparisons fit").wait_for()
        assert field(page, "Change").input_value() == ""
        assert int(page.get_by_role("status").inner_text().split()[0]) > 4
        assert page.locator("article").count() == 3


def test_rankings_stand_side_by_side_and_relevant_documents_are_marked(visit):
    with visit() as page:
        field(page, "Turn").select_option("turn 2")
        field(page, "Words in questions").fill("gums")
        raw, new = (page.locator("article ol").nth(number).locator("li") for number in (0, 1))
        assert raw.all_inner_texts()[1] == "About citrus citrus ★ relevant"
        assert [" ".join(text.split()) for text in new.all_inner_texts()][3] == "About citrus citrus ★ relevant was 2"
        assert raw.first.inner_text() == f"{HOSTILE} aspirin"
        field(page, "Words in questions").fill("pills")
        assert page.get_by_role("status").inner_text() == "No question fits.", "it has no score and is in no group"


def test_hostile_and_endless_text_is_only_ever_text(visit):
    with visit(width=360) as page:
        field(page, "System").select_option("prompted")
        field(page, "Turn").select_option("turn 2")
        field(page, "Change").select_option("helped")
        texts = page.locator("article").first.locator(".said").all_inner_texts()
        assert texts[:2] == [HOSTILE, HOSTILE]
        field(page, "Change").select_option("hurt")
        long = page.locator("article details.said")
        assert long.locator("summary").inner_text() == f"{LONG[:400]}…"
        long.locator("summary").click()
        assert long.locator("p").inner_text() == LONG.strip()
        assert long.locator("p").evaluate("(one) => getComputedStyle(one).direction") == "rtl"
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), "it scrolls sideways on a telephone"
        assert page.locator("article img, article script").count() == 0


def test_the_tables_are_downloaded_from_the_page_itself(visit, hostile):
    with visit() as page:
        for name in ("tables.md", "tables.tex", "scores.csv", "comparisons.csv"):
            with page.expect_download() as download:
                page.get_by_role("link", name=name, exact=True).click()
            assert download.value.suggested_filename == name
            content = Path(download.value.path()).read_text()
            if name != "tables.md":  # which has the notes of the folder's own file
                assert content == (hostile / name).read_text()
            assert "prompted, turn 2" in content


def test_four_questions_make_a_page_of_readable_height_whose_charts_are_whole(visit):
    outside = """[...document.querySelectorAll("svg")].flatMap((svg) => {
        const box = svg.getBoundingClientRect();
        return [...svg.querySelectorAll("text, path, use")].filter((one) => !one.closest("defs, clipPath"))
          .map((one) => one.getBoundingClientRect())
          .filter((one) => one.left < box.left - 1 || one.right > box.right + 1
            || one.top < box.top - 1 || one.bottom > box.bottom + 1);
      }).length"""
    with visit() as page:
        assert page.evaluate("document.documentElement.scrollHeight") < 5_000
        page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
        assert page.locator("svg").count() >= 2
        assert page.evaluate(outside) == 0
    with visit(width=360) as page:
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        figure = page.locator("table.wide tbody tr").first.locator("td").first
        label = page.locator("table.wide tbody tr").first.locator("th")
        assert label.bounding_box()["width"] < 220, "the labels leave room for the figures"
        assert figure.bounding_box()["x"] + figure.bounding_box()["width"] <= 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_can_be_read_and_used_without_a_mouse(visit, scheme):
    with visit(scheme) as page:
        ratios = contrasts(page)
        assert len(ratios) > 100
        assert min(ratios)[0] >= 4.5, min(ratios)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        labelled = page.evaluate(
            "[...document.querySelectorAll('svg')].every((one) => one.getAttribute('aria-label') && one.role === 'img')"
        )
        assert labelled
        levels = page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((one) => Number(one.tagName[1]))")
        assert levels[0] == 1
        assert all(after <= before + 1 for before, after in pairwise(levels))
        field(page, "Change").focus()
        page.keyboard.press("h")
        assert field(page, "Change").input_value() == "helped"
        page.keyboard.press("Tab")
        page.keyboard.type("sugar")
        assert field(page, "Words in questions").input_value() == "sugar"
