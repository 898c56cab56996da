"""The page of evaluations and training curves: read back by an HTML parser, and in a real Chromium."""

from html.parser import HTMLParser

import pandas as pd
import pytest
from querylect.eval.curves import draw_curves
from querylect.eval.summary import choose_examples
from querylect.eval.table import frame_of
from querylect.eval.text import html

from ..chromium import contrasts
from .test_table import RAW, TRAINED, TWO, evaluated, record

HOSTILE = "</td><script>alert('x')</script><img src=http://evil.example/a onerror=1> & \"quoted\" {{ 7 * 7 }}"
VOID = {"meta", "link", "img", "br", "hr", "input"}
ARMS = {"raw question": RAW, "prompted, turn 2": TWO, "trained": TRAINED}


def records(values):
    """The value of every question by arm."""
    return [
        record(arm, f"q{number:02}", value, question=HOSTILE if number == 0 else f"question {number}", **written(arm))
        for arm, scores in values.items()
        for number, value in enumerate(scores)
    ]


def written(arm):
    return {"think": HOSTILE, "rewrites": (f"{arm.system} {HOSTILE}", "wing " * 80), "ranking": ("d1", "d" * 90)}


def chosen(values):
    rows = records(values)
    ids = list(dict.fromkeys(row.question_id for row in rows))
    here = {label: arm for label, arm in ARMS.items() if arm in values}
    frame = frame_of(rows, {"one": ids}, ["ndcg@10"])
    return choose_examples(frame, rows, here, "ndcg@10", "Before and after", {"q01": {"d1": 1, "d2": 0}})


@pytest.fixture(scope="module")
def page():
    base = [0.1 * (number % 4) for number in range(30)]
    values = {RAW: base, TWO: [0.1 + value for value in base], TRAINED: [0.3 + value for value in base]}
    results = evaluated(records(values))
    results.name, results.headline, results.config = HOSTILE, f"trained {HOSTILE}", HOSTILE
    results.examples, results.trained_in = [chosen(values)], {"prompted": "bm25", "trained": "minilm"}
    results.facts = {"Licence": "CC BY 4.0 (cite it)", "Index": "9f" * 32, "Empty": ""}
    log = pd.DataFrame({"reward/turn1": [0.1, 0.2]}, index=[1, 2])
    drawing = draw_curves("Reward", "reward", "mean reward", {"": [log]})
    runs = pd.DataFrame([{"run": HOSTILE, "seed": "0"}])
    return html(HOSTILE, [results], [drawing], runs)


class Reader(HTMLParser):
    """Tags, attributes, cell texts by table, and whether every tag is closed in order."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.open, self.attributes, self.tables, self.text = [], [], [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)
        if "td" in self.open or ("th" in self.open and "table" in self.open):
            self.tables[-1][-1][-1] += data


def test_the_page_is_well_formed_and_shows_every_system(page):
    parsed = Reader(page)
    assert parsed.open == []
    wide, costs, _, scores, tests, examples, changes, runs = parsed.tables
    for table in (wide, costs, scores):
        assert [row[0] for row in table] == ["system", "raw question", "prompted, turn 2", "trained"]
    assert wide[-1][1].startswith("0.443†")
    assert scores[1][1].startswith("0.143 (")
    assert (tests[-1][0], tests[-1][2]) == ("trained against raw question", "+0.300*")
    assert examples[0] == ["Question", "Change", *ARMS]
    assert (len(examples), len(changes), runs[1][0]) == (1 + 12, 1 + 30, HOSTILE)
    row = examples[2]
    assert row[:2] == ["question 1", "+0.200"]
    assert row[2].startswith("0.1001. d1 ✓2. ddd"), "the ranking, and what is relevant in it"
    assert changes[2] == ["question 1", "+0.200", "0.200", "0.400"]


def test_hostile_text_is_shown_and_nothing_is_loaded_from_elsewhere(page):
    parsed = Reader(page)
    assert not {"script", "link", "iframe", "object"} & set(parsed.tags)
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert HOSTILE in "".join(parsed.text)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "action"):
            assert value.startswith("data:image/svg+xml;base64,"), f"<{tag} {name}={value!r}> loads something"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("meta", "content", policy) in parsed.attributes


def test_the_page_can_be_read_by_assistive_technology(page):
    parsed = Reader(page)
    assert ("html", "lang", "en") in parsed.attributes
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("th") == sum(1 for tag, name, _ in parsed.attributes if (tag, name) == ("th", "scope"))
    assert ("img", "alt", "Reward: turn 1 0.1 → 0.2.") in parsed.attributes
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value for _, name, value in parsed.attributes if name == "aria-labelledby"} <= set(ids)


def test_examples_are_the_largest_gains_and_losses():
    trained = [0.6, 0.9, 0.7, 0.1, 0.4, 0.3, 0.5, 0.5, *[0.55] * 6]
    examples = chosen({RAW: [0.5] * 14, TRAINED: trained})
    rows = [(row.change, row.question.removeprefix("question ")) for row in examples.rows]
    assert rows[:2] == [(0.4, "1"), (0.2, "2")]
    assert rows[-3:] == [(-0.1, "4"), (-0.2, "5"), (-0.4, "3")]
    assert "9 gained and 3 lost" in examples.rule
    assert len(examples.changes) == 12
    assert [len(side.rewrites) for side in examples.rows[0].sides] == [0, 2], "nobody wrote the raw question"
    assert chosen({RAW: [None], TRAINED: [0.5]}) is None, "without a score"


@pytest.mark.server
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_is_read_without_errors_and_nothing_is_clipped(browser, page, tmp_path, scheme, width):
    path = tmp_path / "report.html"
    path.write_text(page)
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 900})
    opened = context.new_page()
    opened.set_default_timeout(60_000)
    errors, requests = [], []
    opened.on("pageerror", lambda error: errors.append(str(error)))
    opened.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: requests.append(request.url))
    opened.goto(path.as_uri())
    opened.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    assert errors == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")
    clipped = """[...document.querySelectorAll('main *, header *')].filter((one) =>
        one.clientWidth && one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).overflowX !== 'auto'
    ).map((one) => one.outerHTML.slice(0, 80))"""
    assert opened.evaluate(clipped) == []
    assert min(contrasts(opened))[0] >= 4.5
    assert opened.evaluate("[...document.images].every((image) => image.naturalWidth > 0)")
    context.close()
