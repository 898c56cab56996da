"""Pages of an evaluated run and of a spec with many datasets in a real Chromium: their height and width."""

import json

import pytest
from querylect.eval.report.folder_report import write_report

from ..chromium import contrasts
from ..evaluated import carry_out, plan_values
from ..evaluation.test_eval_report import draw, metrics, page, records

QUESTIONS = 4
SYSTEMS = (
    ("raw", 0), ("first_titles", 0), ("rm3", 0), ("weighted_words", 0), ("hyde", 1),
    ("untrained", 1), ("untrained", 2), ("warm start", 1), ("warm start", 2), ("trained", 1), ("trained", 2),
)  # fmt: skip


@pytest.fixture(scope="module")
def run_page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    extra = {f"format/turn{turn}": 0.9 for turn in (1, 2)}
    validation = [json.dumps({"step": step, "ndcg/turn1": 0.1, "ndcg/turn2": 0.2}) for step in (0, 30)]
    (folder / "validation.jsonl").write_text("".join(f"{line}\n" for line in validation))
    drawings = draw(folder, [{**row, **extra} for row in metrics()])
    (folder / "report.html").write_text(page(records(QUESTIONS, SYSTEMS), drawings, None))
    return (folder / "report.html").as_uri()


@pytest.fixture(scope="module")
def spec_page(lessons, lesson_url, speaking, tmp_path_factory):
    """Eight datasets, two systems of two turns and the training-free ones."""
    folder = tmp_path_factory.mktemp("spec")
    values = plan_values(lessons, lesson_url, speaking, folder)
    datasets = {f"lessons-{number}": lessons.dataset.model_dump() for number in range(8)}
    environment = {"urls": {name: [lesson_url] for name in datasets}}
    plan = {**values, "datasets": datasets, "environments": {"bm25": environment}}
    out, _, failed = carry_out(plan)
    assert failed is None
    return write_report([out], folder / "report.html", 10).as_uri()


@pytest.fixture
def visit(browser):
    def open_page(address, width=1280, scheme="light"):
        page = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900}).new_page()
        page.set_default_timeout(60_000)
        page.goto(address)
        return page

    return open_page


def height(page):
    return page.evaluate("document.documentElement.scrollHeight")


def open_all(page):
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")


def too_wide(page):
    """Labels of the tables that scroll sideways, and "page" where the whole page does."""
    return page.evaluate("""[
        ...[...document.querySelectorAll(".scroll")]
          .filter((one) => one.checkVisibility() && one.scrollWidth > one.clientWidth)
          .map((one) => one.getAttribute("aria-label")),
        ...(document.documentElement.scrollWidth > innerWidth ? ["page"] : []),
    ]""")


def test_a_run_page_is_read_in_a_few_screens_and_fits_a_laptop(visit, run_page):
    page = visit(run_page)
    assert height(page) < 4_000
    open_all(page)
    assert too_wide(page) == []
    for heading in ("What is written", "Every comparison", "What it costs", "Entropy", "Environment", "Versions"):
        assert page.locator("summary", has_text=heading).count() >= 1, "nothing is lost"
    assert page.get_by_role("region", name="Comparisons table").is_visible()
    assert page.locator("figure svg").count() >= 16
    page = visit(run_page, 1200)
    assert too_wide(page) == []
    open_all(page)
    assert too_wide(page) == []


def test_a_spec_page_of_eight_datasets_is_read_in_a_few_screens(visit, spec_page):
    page = visit(spec_page)
    assert height(page) < 5_000
    assert page.locator("table.wide thead th").count() >= 10
    assert page.locator("article").count() == 3
    page.get_by_role("button", name="Show 3 more").click()
    assert page.locator("article").count() == 6
    open_all(page)
    for number in range(8):
        assert page.get_by_role("region", name=f"ndcg@10, lessons-{number}", exact=True).is_visible()
    assert "page" not in too_wide(page)
    assert "page" not in too_wide(visit(spec_page, 1200))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_text_of_a_run_page_stands_out_from_its_ground(visit, run_page, scheme):
    """The contrast of every text colour with the ground that it stands on is at least 4.5 (WCAG 2 AA)."""
    page = visit(run_page, scheme=scheme)
    open_all(page)
    assert min(contrasts(page))[0] >= 4.5


@pytest.mark.parametrize("which", ["run", "spec"])
def test_a_page_on_a_phone_never_scrolls_sideways(visit, run_page, spec_page, which):
    page = visit({"run": run_page, "spec": spec_page}[which], 360)
    assert "page" not in too_wide(page)
    open_all(page)
    assert "page" not in too_wide(page)
