"""Documents as files: the text of each format, where passages are cut, what is skipped."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.beir import load_beir, save_beir
from querylect.data.document_readers import SourceDocument, TextSection, clean, read_documents, split_markdown
from querylect.data.documents import documents_of_passages, passages_of, word_count, write_corpus
from querylect.data.types import Dataset, Document

from .documents import LEAVE, save_documents

pytest.importorskip("pypdf", reason="the extra documents is not installed")


def passages(folder):
    return {document.id: document for document in load_beir(folder).corpus}


def test_every_format_is_read_and_what_cannot_be_read_is_named(tmp_path, caplog):
    docs = save_documents(tmp_path / "docs")
    (docs / "twice.jsonl").write_text('{"id": 1, "text": "a"}\n{"id": 1, "text": "b"}\n')
    report = write_corpus(docs, tmp_path / "corpus")
    texts = {name: (document.title, document.text) for name, document in passages(tmp_path / "corpus").items()}
    assert texts["notes.jsonl:7#1"] == ("Keys", "Keys are kept at the desk.")
    assert texts["notes.jsonl:line2#1"] == ("notes", "Doors close at ten.")
    assert texts["parking_rules.txt#1"][0] == "parking rules"
    assert texts["rules/leave.md#1"][0] == "Leave"
    assert texts["safety.pdf#1"] == ("Safety", "Wear a helmet in the hall.\n\nFire: leave by the stairs.")
    title, text = texts["rules/travel%20costs.html#1"]
    assert title == "Travel costs"
    assert "A kilometre by car" in text
    assert "Imprint" not in text
    assert len(texts) == 6
    reasons = {"broken.jsonl": "line 1", "empty.md": "no text", "latin.txt": "utf-8", "scan.pdf": "OCR"}
    reasons |= {"secret.pdf": "encrypted", "torn.pdf": "cannot be read", "twice.jsonl": "'1'"}
    skipped = json.loads((tmp_path / "corpus" / "meta.json").read_text())["skipped"]
    assert set(skipped) == set(reasons)
    for name, reason in reasons.items():
        assert reason in skipped[name]
        assert any(name in record.message and reason in record.message for record in caplog.records)
    assert "6 documents in 6 passages" in report[0]
    assert report[2].startswith("1 files of other formats")
    assert documents_of_passages(tmp_path / "corpus")["rules/leave.md#1"] == "rules/leave.md"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a \ud83d\ude00 b", "a 😀 b"),
        ("a \ud83d b", "a � b"),
        ("the ﬁnancial oﬃce, ﬂow, ﬀ", "the financial office, flow, ff"),
        ("of\ufb03ce", "office"),
        ("ﷲ ﻻ", "الله لا"),
        ("infor\u00admation\0, \ufeffzero\u200bwidth", "information, zerowidth"),
    ],
)
def test_characters_that_no_search_finds_are_replaced(text, cleaned):
    assert clean(text) == cleaned


def test_a_text_that_pypdf_reads_badly_ends_nothing(tmp_path, monkeypatch, caplog):
    docs = save_documents(tmp_path / "docs")
    texts = iter(["a lone \ud83d half", "is\0 lost in state-of-the-\nart infor\u00ad\nmation"])
    monkeypatch.setattr("pypdf.PageObject.extract_text", lambda _: next(texts))
    (document,) = read_documents(docs / "safety.pdf", "safety.pdf")
    assert document.sections[0].text == "a lone � half\n\nis lost in state-of-the-art information"
    assert caplog.records[-1].args[1] == 2, "characters lost"
    monkeypatch.setattr("pypdf.PageObject.extract_text", lambda _: [].pop())
    assert "safety.pdf" in write_corpus(docs, tmp_path / "corpus")[1]


def test_headings_title_and_links_of_markdown():
    title, sections = split_markdown(LEAVE)
    assert title == "Leave"
    headings = [section.headings for section in sections]
    assert headings == [(), ("Holidays",), ("Holidays", "Sick leave"), ("Holidays", "Underlined")]
    assert sections[1].text == "Everybody has thirty days."
    assert "# not a heading" in sections[2].text
    guide = "# Guide\ntext\n## [Part](x)\n| a |\n|---|\n| [more [x]](y) |\n![pic](z) and [ref][1]\n\n[1]: u"
    table = "| a |\n|---|\n| more [x] |\npic and ref\n\n[1]: u"
    assert split_markdown(guide) == ("Guide", [TextSection((), "text"), TextSection(("Part",), table)])


@pytest.mark.parametrize(
    ("head", "title"),
    [
        ("---\ntitle: >-\n  Pump\n  handbook\ntags: [a]\n---\n", "Pump handbook"),
        ('---\ntitle: "Plan \\"B\\" # no comment" # a comment\n---\n', 'Plan "B" # no comment'),
        ("---\ntitle: [broken\n---\n", ""),
        ("---\ntitle: 2024\n...\n", "2024"),
        ('+++\ntitle = "Pump"\n+++\n', "Pump"),
        ("---\ntitle: [a, b]\n---\n", ""),
        ("---\ntitle: Part 1: the pump\n---\n", "Part 1: the pump"),
        ('---\ndescription: a: b\ntitle: "Pump" # mine\n---\n', "Pump"),
        ("---\ntitle: Pump\ndate: 2024-13-45\n---\n", "Pump"),
    ],
)
def test_front_matter_is_yaml_or_toml(head, title):
    assert split_markdown(f"{head}\nText.") == (title, [TextSection((), "Text.")])


def test_text_between_two_rules_is_text_and_only_a_bare_fence_closes():
    assert split_markdown("---\nJust text.\n\n---\nMore.")[1] == [TextSection((), "---\nJust text.\n\n---\nMore.")]
    _, sections = split_markdown("# T\n\n```\na\n```python\n# comment\n```\n\n## After\n\ntext")
    assert [section.headings for section in sections] == [(), ("After",)]
    assert "# comment" in sections[0].text


def test_every_heading_stands_in_a_passage_under_the_headings_above_it():
    text = "# Book\n## Arctic\n### Hours\nNine to five.\n## Tropical\n### Hours\nSix to noon.\n"
    title, sections = split_markdown(f"{text}## File > Export\nA PDF.\n## No seals")
    (passage,) = passages_of(SourceDocument("b", title, tuple(sections)))
    assert passage.title == "Book"
    assert passage.text == (
        "Arctic > Hours\n\nNine to five.\n\nTropical > Hours\n\nSix to noon.\n\nFile > Export\n\nA PDF.\n\nNo seals"
    )
    assert split_markdown("# Only a title")[1] == [TextSection((), "Only a title")]
    marked = split_markdown("# *The* `x < y` pump\n## CO<sub>2</sub> [_in_](y) C# [¶](z)\ntext")
    assert marked == ("The x < y pump", [TextSection(("CO2 in C#",), "text")])
    faq = split_markdown("# FAQ\n## Do you ship? Yes.\n## By cheque? No.")
    assert [section.headings for section in faq[1]] == [("Do you ship? Yes.",), ("By cheque? No.",)]


PAGE = "<html><head><title>Site</title></head><body><div><h1>Shortcuts</h1></div>{}</body></html>"
BODY = "<p>" + "The pump moves water from the well to the tank on the hill. " * 5 + "</p>"


@pytest.mark.parametrize(
    ("body", "title"),
    [
        (f"<main><h1>Pump <i>1</i></h1>{BODY}</main>", "Pump 1"),
        (f"<main>{BODY}</main>", "Site"),
        (f"<main><h1>An <em>in</em>line <code>x &lt; y</code> <b>title</b></h1>{BODY}</main>", "An inline x < y title"),
        (f"<main><h1>CO<sub>2</sub> in<br>a café</h1>{BODY}</main>", "CO2 in a café"),
        (f'<main><h1>Pump <a href="x">two</a><a href="#p">¶</a></h1>{BODY}</main>', "Pump two"),
    ],
)
def test_the_title_of_a_page_is_its_own_and_stands_once(tmp_path, body, title):
    (tmp_path / "a.html").write_text(PAGE.format(body), encoding="utf-8")
    (document,) = read_documents(tmp_path / "a.html", "a.html")
    assert document.title == title
    assert [section.headings for section in document.sections] == [()]


def test_a_title_that_many_files_share_is_warned_of(tmp_path, caplog):
    (tmp_path / "docs").mkdir()
    for number in range(8):
        (tmp_path / "docs" / f"{number}.md").write_text(f"# {'Same' if number < 5 else number}\nText {number}.")
    write_corpus(tmp_path / "docs", tmp_path / "corpus")
    assert [record.args for record in caplog.records] == [(5, 8, "Same")]


TEXT = st.lists(st.sampled_from(["alpha", "beta.", "gamma!", "\n\n", "\n", "維生素", "δ", "x" * 40]), max_size=120)


@given(TEXT, st.integers(20, 60), st.integers(0, 9))
def test_no_passage_is_too_long_and_no_word_is_lost(pieces, words, overlap):
    text = " ".join(pieces)
    cut = passages_of(SourceDocument("d", "D", (TextSection((), text),)), words, overlap)
    assert all(word_count(passage.text) <= words for passage in cut)
    assert word_count(text) <= sum(word_count(passage.text) for passage in cut)
    passage_words = {word for passage in cut for word in passage.text.split()}
    assert all(word in passage_words for word in text.split() if len(word) > 1 and "維" not in word)


def test_long_sections_keep_their_headings_and_repeat_the_end_of_the_passage_before():
    first = " ".join(f"Alpha {number} is here." for number in range(9))  # 36 words
    second = " ".join(f"Beta {number} is there." for number in range(4))  # 16 words
    sections = (TextSection(("One",), f"{first} {second}"), TextSection(("Two",), first))
    cut = passages_of(SourceDocument("a.md", "Guide", sections), words=40, overlap=9)
    assert {passage.id: passage.title for passage in cut} == {
        "a.md#1": "Guide > One",
        "a.md#2": "Guide > One",
        "a.md#3": "Guide > Two",
    }
    assert cut[1].text.startswith("Alpha 8")
    assert "Alpha 8" in cut[0].text, "the last sentences stand in both"
    assert cut[1].text.endswith("Beta 3 is there.")


def test_a_corpus_in_beir_form_is_taken_as_it_is(tmp_path):
    documents = (Document("d1", "T", "word " * 500), Document("d2", "T", "word " * 500))
    save_beir(Dataset("mine", documents, {}, licence="CC0"), tmp_path / "mine")
    (line,) = write_corpus(tmp_path / "mine", tmp_path / "to")
    assert "2 documents in 2 passages" in line
    assert (load_beir(tmp_path / "to").corpus, load_beir(tmp_path / "to").licence) == (documents, "CC0")
    assert documents_of_passages(tmp_path / "to") == {"d1": "d1", "d2": "d2"}
