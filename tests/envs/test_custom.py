"""A retriever in one file of the user's own, as docs/add-a-retriever.md shows it, and what the file may not do."""

from pathlib import Path

import pytest
import torch
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.errors import ConfigError, IndexFolderError
from transformers import AutoModelForMaskedLM

from ..conftest import SMALL
from ..encoders import loaded, save_mlm
from ..pages import blocks
from ..raising import refused
from .wings import plan

CONTENTS = {name: f"About {name} {text}" for name, text in SMALL.items()}


def example(word):
    """The guide's retriever file with this word in its first line."""
    codes = [block.text for block in blocks("add-a-retriever.md") if block.language == "python"]
    (code,) = (code for code in codes if word in code.partition("\n")[0])
    return code


@pytest.fixture
def config(small_environment, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(example("trigram"), encoding="utf-8")
    return small_environment.model_copy(update={"retriever": f"python:{file}", "index": str(tmp_path / "index")})


def check(config, terms, score):
    """Build and rank a probe; `score` is that of one text and one document by hand."""
    build_index(config)
    environment = Environment.open(config)
    (ranking,) = environment.rank([plan(terms, 10)])
    scores = {name: sum(weight * score(text, content) for text, weight in terms) for name, content in CONTENTS.items()}
    expected = {name: value for name, value in scores.items() if value > 0}
    assert {hit.id: hit.score for hit in ranking} == pytest.approx(expected, rel=1e-4)
    assert [hit.score for hit in ranking] == sorted((hit.score for hit in ranking), reverse=True)
    return environment.info().retriever


def test_the_file_of_the_guide_ranks_signed_probes_as_computed_by_hand(config):
    def trigrams(text):
        text = f" {text.lower()} "
        return {text[i : i + 3] for i in range(len(text) - 2)}

    def score(text, content):
        return len(trigrams(text) & trigrams(content)) / len(trigrams(text))

    retriever = check(config, [("headache", 1.0), ("migraine", -0.5)], score)
    assert (retriever["kind"], retriever["name"]) == ("custom", "mine")
    assert retriever["trained"].startswith("Trigram overlap")
    file = Path(config.retriever.removeprefix("python:"))
    file.write_text(file.read_text() + "\n# another version\n")
    with refused(IndexFolderError, config.index):
        Environment.open(config)


@pytest.mark.model
def test_the_splade_of_the_guide_ranks_signed_probes_as_computed_by_hand(config, tmp_path):
    @torch.no_grad()
    def weights(text):
        logits = loaded(model, AutoModelForMaskedLM)(text).logits[0]
        return torch.log1p(torch.relu(logits)).max(dim=0).values.double().numpy()

    model = save_mlm(tmp_path / "mlm")
    (tmp_path / "mine.py").write_text(
        example("sparse vectors").replace("naver/splade-cocondenser-ensembledistil", model)
    )
    check(config, [("headache", 1.0), ("blood sugar", -0.5)], lambda text, content: weights(text) @ weights(content))


@pytest.mark.parametrize(
    ("name", "code", "says"),
    [
        ("mine.py", "x = (", "SyntaxError"),
        ("mine.py", "\nimport nosuchmodule", "nosuchmodule'; line 2"),
        ("mine.py", "", "no class Retriever"),
        ("mine.py", "class Retriever:\n def __init__(self, documents): 1 / 0\n def rank(self): 0", "line 2"),
        ("mine.py", "class Retriever:\n def __init__(self, documents): 0", "abstract method rank"),
        ("words.txt", "", ".py"),
        ("nowhere.py", None, "no file"),
    ],
)
def test_a_file_that_is_no_retriever_is_the_users_mistake(config, tmp_path, monkeypatch, name, code, says):
    monkeypatch.chdir(tmp_path)
    if code is not None:
        (tmp_path / name).write_text(code)
    with refused(ConfigError, name, says):
        config = config.model_copy(update={"retriever": f"python:{name}"})
        build_index(config)
        Environment.open(config)
