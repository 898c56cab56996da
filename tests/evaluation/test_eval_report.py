"""Figures and the page, parsed back with the standard library's HTML and XML parsers."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
from querylect.configs.schema import RunConfig
from querylect.errors import DataError
from querylect.eval.pages.figures import smooth
from querylect.eval.records import EvalRecord
from querylect.eval.report.curves import draw_run, read_metrics
from querylect.eval.report.examples import choose_examples
from querylect.eval.report.run_report import render
from querylect.eval.results import provenance
from querylect.eval.run_table import tabulate_run

from ..evaluated import environment_info
from ..raising import refused

HOSTILE = "</td><script>alert('x')</script><img src=http://evil.example/a onerror=1> & \"quoted\" {{ 7 * 7 }}"
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "img", "br", "hr", "input"}


def metrics(steps=30, turns=(1, 2)):
    rows = []
    for step in range(1, steps + 1):
        row = {"step": step, "entropy": 2.0 / step, "seconds/step": 8.0}
        for turn in turns:
            row |= {f"reward/turn{turn}": 0.01 * step * turn, f"think_tokens/turn{turn}": 20 + step}
            row |= {f"rewrite_tokens/turn{turn}": 8, f"zero_variance/turn{turn}": 0.5, f"copy/turn{turn}": 0.1}
        rows.append(row)
    return rows


def draw(folder, rows):
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return draw_run(RunConfig(), path)


@pytest.fixture(scope="module")
def drawings(tmp_path_factory):
    folder = tmp_path_factory.mktemp("drawings")
    (folder / "validation.jsonl").write_text('{"step": 0, "ndcg/turn2": 0.2}\n{"step": 30, "ndcg/turn2": 0.4}\n')
    return draw(folder, metrics())


def test_a_run_shows_validation_but_no_thinking_length_without_thinking(drawings, tmp_path):
    assert drawings[0].caption == "turn 2 0.2 → 0.4."
    silent = [{"step": step, "entropy": 1.0, "think_tokens/turn1": 0.0} for step in (1, 2)]
    assert [drawing.title for drawing in draw(tmp_path, silent)] == ["Entropy"]


def records(n=30, systems=(("raw", 0), ("untrained", 1), ("untrained", 2), ("trained", 1), ("trained", 2))):
    rows = []
    for index in range(n):
        for position, (system, turn) in enumerate(systems):
            value = (index % 4) * 0.1 + 0.1 * position
            scores = {"ndcg@10": value, "recall@10": 1.0, "mrr@10": 0.5}
            text = HOSTILE if index == 0 else f"question {index}"
            rows.append(
                EvalRecord(
                    system,
                    turn,
                    f"q{index:02}",
                    text,
                    HOSTILE,
                    (f"{system}{turn} {text}",),
                    ("d1",),
                    scores,
                    20 * turn,
                    300 * turn,
                    max(1, turn),
                    True,
                )
            )
    return rows


def page(rows=None, drawings=(), gold=None, **settings):
    rows = records() if rows is None else rows
    config = RunConfig(**settings).model_copy(update={"name": HOSTILE})
    environment = environment_info(
        retriever={"name": "bm25", "trained": HOSTILE}, index_hash="9f" * 32, splits={"test": 30}
    )
    return render(
        tabulate_run(rows, resamples=200, permutations=500, seed=0),
        provenance=replace(
            provenance(config, environment, None, "", licence="CC BY 4.0 (cite it)"), checkpoint="runs/demo/step-40"
        ),
        drawings=drawings,
        examples=choose_examples(rows, 12, gold),
        created="2026-01-02 03:04:05+00:00",
    )


class Reader(HTMLParser):
    """Tags, attributes, cell texts by table, scripts, and whether every tag is closed in order."""

    def __init__(self, html):
        super().__init__()
        self.tags, self.open, self.attributes, self.tables, self.text, self.scripts = [], [], [], [], [], []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)
        if tag == "script":
            self.scripts.append("")
        elif tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_startendtag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def values(self, *names):
        """The values of the attributes of these names."""
        return [value for _, name, value in self.attributes if name in names]

    def handle_data(self, data):
        if self.open and self.open[-1] == "script":
            self.scripts[-1] += data
        self.text.append(data)
        if "td" in self.open or ("th" in self.open and "table" in self.open):
            self.tables[-1][-1][-1] += data


def test_the_page_is_well_formed_and_shows_every_system():
    parsed = Reader(page())
    assert parsed.open == []
    results = parsed.tables[0]
    assert [row[0] for row in results] == [
        "System",
        "Raw question",
        "Untrained, turn 1",
        "Untrained, turn 2",
        "Trained, turn 1",
        "Trained, turn 2",
    ]
    assert results[0][1:] == [
        "nDCG@10",
        "95% interval",
        "Recall@10",
        "MRR@10",
        "against raw",
        "against untrained",
        "repeats the question",
        "n",
    ]
    assert results[1][1].startswith("0.143")
    assert results[5][5].strip() == "+0.400†"
    assert results[1][-2:] == ["–", "30"]
    assert results[5][-2:] == ["0.0%", "30"]


def test_an_insignificant_difference_has_no_dagger():
    rows = [r for r in records(n=4) if r.system != "trained"]
    cells = [cell for row in Reader(page(rows)).tables[1][1:] for cell in row]
    assert not any("†" in cell for cell in cells)


def test_hostile_text_is_shown_and_never_becomes_markup(drawings):
    html = page(drawings=drawings, gold={"q00": HOSTILE, "q01": HOSTILE})
    parsed = Reader(html)
    assert "script" not in parsed.tags
    assert "img" not in parsed.tags
    assert not [name for _, name, _ in parsed.attributes if name.startswith("on")]
    assert HOSTILE in "".join(parsed.text)
    assert "{{ 7 * 7 }}" in "".join(parsed.text)


def test_the_page_needs_nothing_from_elsewhere(drawings):
    html = page(drawings=drawings)
    parsed = Reader(html)
    assert not {"script", "link", "iframe", "img", "object"} & set(parsed.tags)
    for tag, name, value in parsed.attributes:
        if name in ("src", "href", "xlink:href", "action"):
            assert value.startswith("#"), f"<{tag} {name}={value!r}> loads something"
    styles = re.sub(r"url\(#[^)]*\)", "", html)
    assert "url(" not in styles
    assert "@import" not in styles
    assert ("meta", "content", "default-src 'none'; style-src 'unsafe-inline'") in parsed.attributes


def test_the_page_can_be_read_by_assistive_technology(drawings):
    parsed = Reader(page(drawings=drawings))
    assert ("html", "lang", "en") in parsed.attributes
    assert ("meta", "name", "viewport") in parsed.attributes
    assert parsed.tags.count("h1") == 1
    assert parsed.tags.count("th") == sum(1 for tag, name, _ in parsed.attributes if (tag, name) == ("th", "scope"))
    roles = [value for tag, name, value in parsed.attributes if (tag, name) == ("svg", "role")]
    assert roles == ["img"] * parsed.tags.count("svg")
    ids = [value for _, name, value in parsed.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    labels = {value for _, name, value in parsed.attributes if name == "aria-labelledby"}
    assert labels <= set(ids)


def luminance(colour):
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_has_the_contrast_of_wcag_aa(theme):
    block = re.findall(r":root \{(.*?)\}", page(), flags=re.S)[theme]
    colours = dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block))
    pairs = [(ink, paper) for ink in ("ink", "soft", "good", "bad", "mixed") for paper in ("paper", "card", "tint")]
    pairs += [(f"series-{n}", "card") for n in (1, 2, 3, 4)] + [("good", "good-tint"), ("bad", "bad-tint")]
    for ink, paper in pairs:
        light, dark = sorted((luminance(colours[ink]), luminance(colours[paper])), reverse=True)
        assert (light + 0.05) / (dark + 0.05) >= 4.5, f"{ink} on {paper}"


def test_the_source_of_the_numbers_stands_on_the_page():
    text = "".join(Reader(page(seed=41)).text)
    for fact in ("9f" * 32, "CC BY 4.0 (cite it)", "runs/demo/step-40", "10,000 sign flips", "retriever.name", "torch"):
        assert fact in text
    assert "seed: 41" in text
    assert "questions_per_step: 12" in text


def test_the_examples_show_each_policys_rewrite_and_the_ranks():
    table = Reader(page()).tables[4]
    assert table[0] == ["Question", "Change", "Raw question", "Untrained, turn 2", "Trained, turn 2"]
    row = next(row for row in table if row[0] == "question 1")
    assert row[2:] == ["rank 2 · 0.100", "untrained2 question 1rank 2 · 0.300", "trained2 question 1rank 2 · 0.500"]


def test_gold_titles_are_left_out_where_they_are_not_known():
    assert "relevant:" not in page()
    assert "relevant: Anosmia" in page(gold={f"q{i:02}": "Anosmia" for i in range(30)})


def test_without_a_trained_policy_the_page_has_no_column_for_it():
    rows = [r for r in records() if r.system != "trained"]
    parsed = Reader(page(rows))
    assert "against untrained" not in parsed.tables[0][0]
    assert "Training" not in parsed.text


def test_a_page_of_the_raw_question_alone_says_what_it_reaches():
    rows = [record for record in records() if record.system == "raw"]
    parsed = Reader(page(rows))
    mean = sum(record.metrics["ndcg@10"] for record in rows) / len(rows)
    assert f"Only the raw question was evaluated: nDCG@10 is {mean:.3f}." in "".join(parsed.text)


def test_a_page_where_nothing_could_be_scored_still_renders():
    rows = [
        EvalRecord("raw", 0, "q", "t", "", ("t",), (), dict.fromkeys(("ndcg@10", "recall@10", "mrr@10")), 0, 0, 1, True)
    ]
    assert "–" in "".join(Reader(page(rows)).text)


def test_every_drawing_is_xml_with_prefixed_ids_and_page_colours(drawings):
    assert [(drawing.title, len(drawing.svgs)) for drawing in drawings] == [
        ("Validation, greedy", 1),
        ("Reward", 2),
        ("Rewrites that repeat the question or a turn", 2),
        ("Length of rewrites", 2),
        ("Length of thinking", 2),
        ("Entropy", 1),
        ("Groups without signal", 2),
        ("Time of a step", 1),
    ]
    for drawing in drawings:
        for svg in drawing.svgs:
            root = ElementTree.fromstring(svg)
            assert root.tag == f"{SVG}svg"
            assert root.get("aria-label").startswith(drawing.title)
            assert "width" not in root.attrib
            assert "var(--ink)" in svg
            assert not re.search(r"#0[123]0[1-3]0[0-9]", svg)
            targets = set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg))
            assert targets <= {element.get("id") for element in root.iter()}


def test_drawings_are_the_same_every_time(drawings, tmp_path):
    again = draw(tmp_path, [{key: row[key] for key in ("step", "reward/turn1", "reward/turn2")} for row in metrics()])
    assert again == [drawing for drawing in drawings if drawing.title == "Reward"]


def test_missing_and_null_values_are_left_out(tmp_path):
    rows = [{"step": step, "reward/turn1": 0.1, "reward/turn2": 0.2} for step in range(1, 6)]
    rows[2]["reward/turn1"] = None
    rows[3]["reward/turn1"] = float("nan")
    del rows[4]["reward/turn2"]
    assert [drawing.title for drawing in draw(tmp_path, rows)] == ["Reward"]
    assert draw(tmp_path, [{"step": 1, "loss": 0.1}]) == []
    assert draw(tmp_path, []) == []


def test_the_caption_says_where_a_curve_began_and_ended(tmp_path):
    (drawing,) = draw(tmp_path, [{"step": step, "entropy": float(step)} for step in range(1, 21)])
    assert drawing.caption == "1.5 → 19.5. Lines: mean over 3 steps."


def test_smoothing_by_hand():
    assert smooth([1.0, 2.0, 6.0, 1.0], 3) == pytest.approx([1.5, 3.0, 3.0, 3.5])
    assert smooth([1.0, 5.0], 1) == [1.0, 5.0]


def test_metrics_of_a_resumed_run_count_the_last_line_of_a_step(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text(
        "".join(
            json.dumps(row) + "\n"
            for row in [
                {"step": 1, "loss": 1.0},
                {"step": 2, "loss": 2.0},
                {"step": 2, "loss": 2.5},
                {"step": 3, "loss": 3.0},
            ]
        )
    )
    assert [row["loss"] for row in read_metrics(path)] == [1.0, 2.5, 3.0]


@pytest.mark.parametrize("line", ["{", "[]", '{"loss": 1}', '{"step": "x"}'])
def test_a_broken_line_of_metrics_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + line + "\n")
    with refused(DataError, path, "line 2"):
        read_metrics(path)
