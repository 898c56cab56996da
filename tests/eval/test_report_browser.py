"""The page of an evaluated run with hostile text in a real Chromium: nothing runs or is loaded, all can be read."""

import pytest

from ..chromium import contrasts
from .test_report import page, records

pytestmark = pytest.mark.server

SYSTEMS = (
    ("raw", 0), ("first_titles", 0), ("rm3", 0), ("weighted_words", 0), ("hyde", 1),
    ("untrained", 1), ("untrained", 2), ("warm start", 1), ("warm start", 2), ("trained", 1), ("trained", 2),
)  # fmt: skip


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(page(records(4, SYSTEMS)))
    return path.as_uri()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 360])
def test_a_run_page_is_read_without_errors_and_never_scrolls_sideways(browser, address, scheme, width):
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    errors, requests = [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(address)
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [address]
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert min(contrasts(opened))[0] >= 4.5
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    context.close()
