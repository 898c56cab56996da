"""The parts that docs/extending.md shows, each written to its file, imported and put to work."""

import importlib.util

import pytest
from querylect.configs.schema import RewriterConfig
from querylect.data.beir import load_beir
from querylect.data.types import Document, Question
from querylect.methods.methods import METHODS, KnownMethod, make_method
from querylect.rewriters import registry
from querylect.rewriters.retriever_info import RetrieverInfo

from ..pages import blocks
from ..scripted import ASKED, Shelf, doc, run

CARD = RetrieverInfo("bm25", "bm25")


@pytest.fixture
def page_module(tmp_path):
    """`page_module("faq.py")`: the module that the page has under that name."""
    files = {block.file: block.text for block in blocks("extending.md") if block.language == "python"}

    def load(name):
        path = tmp_path / name
        path.write_text(files[name], encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"shown_{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_a_table_becomes_a_dataset(page_module, tmp_path):
    rows = [f"how {number},answer {number // 2},title {number // 2}" for number in range(12)]
    (tmp_path / "faq.csv").write_text("\n".join(["question,answer,title", *rows]))
    page_module("faq.py").convert(tmp_path / "faq.csv", tmp_path / "faq")
    dataset = load_beir(tmp_path / "faq")
    assert len(dataset.corpus) == 6
    assert dataset.corpus[1] == Document("a1", "title 1", "answer 1")
    assert [question.text for question in dataset.splits["test"].questions] == ["how 0", "how 1", "how 10", "how 11"]
    assert dataset.splits["train"].qrels["train-0"] == {"a1": 1}
    answers = [{name for judged in split.qrels.values() for name in judged} for split in dataset.splits.values()]
    assert not answers[0] & answers[1]


def test_a_rewriter_is_asked_for_by_name(page_module, monkeypatch):
    monkeypatch.setattr(
        registry, "REWRITERS", {**registry.REWRITERS, "translate": page_module("translate.py").translate}
    )
    rewriter = registry.make_rewriter(RewriterConfig(name="translate"), CARD)
    (message,) = rewriter.first(Question("q", "my head hurts"))
    assert "in German" in message["content"]
    assert "my head hurts" in message["content"]
    rewrite = rewriter.parse(ASKED, "<think>Schmerz</think><rewrite>Kopfschmerzen</rewrite>", 1)
    assert rewrite.plan.probes[0].terms[0].text == "Kopfschmerzen"
    assert rewriter.parse(ASKED, "Kopfschmerzen", 1).plan is None


def test_a_method_of_two_searches(page_module, monkeypatch):
    module = page_module("quoted.py")
    monkeypatch.setitem(METHODS, "quoted", KnownMethod(module.QuotedConfig, module.quoted))
    shelf = Shelf({ASKED.text: [doc("a", title="Red dogs")], f"{ASKED.text} Clifford": [doc("c")]})
    outcome, model = run(make_method("quoted", {"k": 3}, CARD), lambda prompt: "Clifford", **{"": shelf})
    assert "Found:\nRed dogs\n" in model.prompts[0]
    assert [plan.k for plan in shelf.plans] == [3, 3]
    assert outcome.notes == {"term": "Clifford"}
    assert [document.id for document in outcome.documents] == ["c"]
    silent, _ = run(make_method("quoted", {}, CARD), lambda prompt: None, **{"": shelf})
    assert silent.failure == "no reply"


def test_a_metric_by_hand(page_module):
    rbp = page_module("rbp.py").rbp
    assert rbp(["a", "x", "b"], {"a": 1, "b": 2}) == pytest.approx(0.2 * (1 + 0.8**2))
    assert rbp(["x", "a"], {"a": 1}, 1) == 0
    assert rbp(["x"], {"x": 0}) == 0
    with pytest.raises(ValueError, match="more than once"):
        rbp(["x", "x"], {})


def test_a_reward_with_a_price(page_module):
    priced = page_module("priced.py").priced
    assert priced(1.0, True, 0.1, 12, 0.01) == pytest.approx(0.98)
    assert priced(1.0, True, 0.1, 10, 0.01) == 1
    assert priced(None, True, 0.1, 50, 0.01) is None
