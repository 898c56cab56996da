"""The page of an evaluated run, parsed back with the standard library's HTML parser."""

from html.parser import HTMLParser

import pytest
from querylect.configs.schema import RunConfig
from querylect.eval.records import EvalRecord
from querylect.eval.report.figures import Curve, CurveFigure, draw_curves
from querylect.eval.results import provenance
from querylect.eval.run import examples_of_run, page_of_run
from querylect.eval.run_table import tabulate_run
from querylect.eval.text import html

from ..evaluated import environment_info

pytestmark = pytest.mark.model

HOSTILE = "</td><script>alert('x')</script><img src=http://evil.example/a onerror=1> & \"quoted\" {{ 7 * 7 }}"
VOID = {"meta", "link", "img", "br", "hr", "input"}
DRAWING = draw_curves(
    CurveFigure("Reward", "reward", "mean reward"), [Curve(0, 1, [1, 2], [0.1, 0.2], [0.1, 0.2], [0.1, 0.2], 1)], [""]
)


def records(n=30, systems=(("raw", 0), ("untrained", 1), ("untrained", 2), ("trained", 1), ("trained", 2))):
    rows = []
    for index in range(n):
        for position, (system, turn) in enumerate(systems):
            value = (index % 4) * 0.1 + 0.1 * position
            scores = {"ndcg@10": value, "recall@10": 1.0, "mrr@10": 0.5}
            text = HOSTILE if index == 0 else f"question {index}"
            written, costs = (HOSTILE, (f"{system}{turn} {text}",)), (20 * turn, 300 * turn, max(1, turn))
            rows.append(EvalRecord(system, turn, f"q{index:02}", text, *written, ("d1",), scores, *costs, True))
    return rows


def page(rows=None, **settings):
    rows = records() if rows is None else rows
    config = RunConfig(**settings).model_copy(update={"name": HOSTILE})
    card = {"name": "bm25", "trained": HOSTILE}
    environment = environment_info(retriever=card, index_hash="9f" * 32, splits={"test": 30})
    source = provenance(config, environment, None, "", licence="CC BY 4.0 (cite it)")
    results = tabulate_run(rows, resamples=200, permutations=500, seed=0)
    return html(page_of_run(config, results, source, "toy", [DRAWING], [examples_of_run(rows)]))


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


def test_the_page_is_well_formed_and_shows_every_system():
    parsed = Reader(page())
    assert parsed.open == []
    wide, scores, written, comparisons, examples = parsed.tables
    names = ["Raw question", "Untrained, turn 1", "Untrained, turn 2", "Trained, turn 1", "Trained, turn 2"]
    for table in (wide, scores, written):
        assert [row[0] for row in table] == ["system", *names]
    assert wide[-1][1].startswith("0.543†")
    assert scores[1][1].startswith("0.143 (")
    (trained,) = [row for row in comparisons if row[0] == "Trained, turn 2 against Untrained, turn 2"]
    assert trained[2] == "+0.200*"
    assert len(examples) == 1 + 4, "a third of twelve; there is no loss and nothing unchanged"


def test_hostile_text_is_shown_and_never_becomes_markup():
    parsed = Reader(page())
    assert "script" not in parsed.tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert HOSTILE in "".join(parsed.text)


def test_the_page_needs_nothing_from_elsewhere():
    parsed = Reader(page())
    assert not {"script", "link", "iframe", "object"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "action"):
            assert value.startswith("data:image/svg+xml;base64,"), f"<{tag} {name}={value!r}> loads something"
    policy = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
    assert ("meta", "content", policy) in parsed.attributes


def test_the_page_can_be_read_by_assistive_technology():
    parsed = Reader(page())
    assert ("html", "lang", "en") in parsed.attributes
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("th") == sum(1 for tag, name, _ in parsed.attributes if (tag, name) == ("th", "scope"))
    assert [value for tag, name, value in parsed.attributes if (tag, name) == ("img", "alt")] == [
        "Reward: turn 1 0.1 → 0.2."
    ]
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value for _, name, value in parsed.attributes if name == "aria-labelledby"} <= set(ids)


def test_the_source_of_the_numbers_stands_on_the_page():
    text = "".join(Reader(page(seed=41)).text)
    for fact in ("9f" * 32, "CC BY 4.0 (cite it)", "10,000 sign flips", "retriever.name", "torch", "seed: 41"):
        assert fact in text


def test_the_examples_show_each_policys_rewrite_and_score():
    table = Reader(page()).tables[-1]
    assert table[0] == ["Question", "Change", "Raw question", "Untrained, turn 2", "Trained, turn 2"]
    row = next(row for row in table if row[0] == "question 1")
    assert row[1:] == ["+0.200", "0.100", "untrained2 question 10.300", "trained2 question 10.500"]


@pytest.mark.parametrize("value", [0.25, None])
def test_a_page_of_the_raw_question_alone_still_renders(value):
    scores = dict.fromkeys(("ndcg@10", "recall@10", "mrr@10"), value)
    text = "".join(Reader(page([EvalRecord("raw", 0, "q", "t", "", ("t",), (), scores, 0, 0, 1, True)])).text)
    assert "Only the raw question was evaluated: nDCG@10 is 0.250." in text or value is None
