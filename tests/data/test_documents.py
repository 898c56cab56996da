"""Documents as files: the text of each format, where passages are cut, what is skipped, how a killed call resumes."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.beir import load_beir, save_beir
from querylect.data.documents.corpus import documents_of_passages, write_corpus
from querylect.data.documents.formats import SourceDocument
from querylect.data.documents.markdown import HeadedText, split_markdown
from querylect.data.documents.passages import passages_of, word_count
from querylect.data.types import Dataset, Document

from ..command import end
from ..documents import LEAVE, save_documents


def passages(folder):
    return {document.id: document for document in load_beir(folder).corpus}


def test_every_format_is_read_and_what_cannot_be_read_is_named(tmp_path, caplog):
    pytest.importorskip("pypdf", reason="the extra documents is not installed")
    summary = write_corpus(save_documents(tmp_path / "docs"), tmp_path / "corpus")
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
    assert "Home" not in text
    assert len(texts) == 6
    reasons = {"broken.jsonl": "line 1", "empty.md": "no text", "latin.txt": "utf-8", "scan.pdf": "OCR"}
    reasons |= {"secret.pdf": "encrypted", "torn.pdf": "no readable PDF"}
    assert set(summary.skipped) == set(reasons)
    for name, reason in reasons.items():
        assert reason in summary.skipped[name]
        assert any(name in record.message and reason in record.message for record in caplog.records)
    assert (summary.documents, summary.passages, summary.repeated, summary.other_files) == (6, 6, 0, 1)
    assert json.loads((tmp_path / "corpus" / "meta.json").read_text())["summary"]["skipped"] == summary.skipped
    assert documents_of_passages(tmp_path / "corpus")["rules/leave.md#1"] == "rules/leave.md"
    assert not (tmp_path / ".corpus.parts").exists()


def test_headings_title_and_links_of_markdown():
    title, sections = split_markdown(LEAVE)
    assert title == "Leave"
    headings = [section.heading for section in sections]
    assert headings == ["", "Holidays", "Holidays > Sick leave", "Holidays > Underlined"]
    assert sections[1].text == "Everybody has thirty days."
    assert "# not a heading" in sections[2].text
    assert split_markdown("# Guide\ntext\n## Part\nmore")[1] == [HeadedText("", "text"), HeadedText("Part", "more")]


def test_passages_keep_headings_paragraphs_and_repeat_the_end_of_the_one_before():
    first = " ".join(f"Alpha {number} is here." for number in range(9))  # 36 words
    second = " ".join(f"Beta {number} is there." for number in range(4))  # 16 words
    document = SourceDocument("a.md", "Guide", (HeadedText("One", f"{first}\n\n{second}"), HeadedText("Two", first)))
    cut = passages_of(document, words=40, overlap=9)
    titles = {passage.id: passage.title for passage in cut}
    assert titles == {"a.md#1": "Guide > One", "a.md#2": "Guide > One", "a.md#3": "Guide > Two"}
    assert cut[1].text.startswith("Alpha ")
    assert cut[1].text.endswith("Beta 3 is there.")
    assert cut[0].text.split(". ")[-1] in cut[1].text, "the last sentence stands in both"
    short = SourceDocument("b", "B", (HeadedText("Tiny", "Two words."), HeadedText("Next", first)))
    assert [passage.title for passage in passages_of(short, words=60, overlap=9)] == ["B > Tiny"]


TEXT = st.lists(st.sampled_from(["alpha", "beta.", "gamma!", "\n\n", "\n", "維生素", "δ", "x" * 40]), max_size=120)


@given(TEXT, st.integers(20, 60), st.integers(0, 9))
def test_no_passage_is_too_long_and_no_word_is_lost(pieces, words, overlap):
    text = " ".join(pieces)
    cut = passages_of(SourceDocument("d", "D", (HeadedText("", text),)), words, overlap)
    assert all(word_count(passage.text) <= words for passage in cut)
    assert word_count(text) <= sum(word_count(passage.text) for passage in cut)
    passage_words = {word for passage in cut for word in passage.text.split()}
    assert all(word in passage_words for word in text.split() if len(word) > 1 and "維" not in word)


def test_a_corpus_in_beir_form_is_taken_as_it_is(tmp_path):
    text = "word " * 500
    documents = (Document("d1", "T", text), Document("d2", "T", text))
    save_beir(Dataset("mine", documents, {}, licence="CC0"), tmp_path / "mine")
    for source in (tmp_path / "mine", tmp_path / "mine" / "corpus.jsonl"):
        summary = write_corpus(source, tmp_path / f"to-{source.name}")
        assert load_beir(tmp_path / f"to-{source.name}").corpus == documents
        assert (summary.documents, summary.passages, summary.repeated) == (2, 2, 0)
    assert documents_of_passages(tmp_path / "to-mine") == {"d1": "d1", "d2": "d2"}
    assert json.loads((tmp_path / "to-mine" / "meta.json").read_text())["licence"] == "CC0"


def test_the_command_says_what_it_read(tmp_path, capsys):
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# A\n" + " ".join(f"Number {i} in a row." for i in range(30)))
    (tmp_path / "docs" / "b.md").write_text("")
    assert end("data", "documents", tmp_path / "docs", "--to", tmp_path / "c", "--words", 50, "--overlap", 5) == 0
    captured = capsys.readouterr()
    assert f"{tmp_path / 'c'}: 1 documents in 4 passages of" in captured.out
    assert "skipped 1 files: b.md" in captured.out
    assert "b.md is skipped: it holds no text" in captured.err
