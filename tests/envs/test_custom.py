"""A retriever in one file of the user's own, as docs/add-a-retriever.md shows it, and what the file may not do."""

from pathlib import Path

import pytest
import torch
from querylect.envs.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.errors import ConfigError, IndexFolderError
from transformers import AutoModelForMaskedLM

from ..conftest import TEXTS
from ..encoders import loaded, save_mlm
from ..pages import blocks
from ..raising import refused

pytestmark = pytest.mark.server

GUIDE = blocks("add-a-retriever.md")
CONTENTS = {name: f"About {name} {text}" for name, text in TEXTS.items()}


def example(word):
    """The guide's retriever file with this word in its first line."""
    codes = [block.text for block in GUIDE if block.language == "python"]
    (code,) = (code for code in codes if word in code.partition("\n")[0])
    return code


@pytest.fixture
def config(small_environment, tmp_path):
    file = tmp_path / "trigrams.py"
    file.write_text(example("trigram"), encoding="utf-8")
    return small_environment.model_copy(update={"retriever": f"python:{file}", "index": str(tmp_path / "index")})


def trigrams(text):
    text = f" {text.lower()} "
    return {text[i : i + 3] for i in range(len(text) - 2)}


def test_the_file_of_the_guide_ranks_signed_probes_as_computed_by_hand(config, small_environment):
    build_index(config)
    environment = Environment.open(config)
    terms = (Term(text="headache", weight=1.0), Term(text="migraine", weight=-0.5))
    (ranking,) = environment.rank([SearchPlan(probes=(Probe(terms=terms),), k=10)])
    expected = {}
    for name, text in CONTENTS.items():
        contents = trigrams(text)
        score = sum(term.weight * len(trigrams(term.text) & contents) / len(trigrams(term.text)) for term in terms)
        if score > 0:
            expected[name] = score
    assert {hit.id: hit.score for hit in ranking} == pytest.approx(expected)
    assert [hit.score for hit in ranking] == sorted(expected.values(), reverse=True)
    assert ranking[0].id == "aspirin"
    assert (environment.info().retriever["kind"], environment.info().retriever["name"]) == ("custom", "trigrams")
    assert environment.info().retriever["trained"].startswith("Trigram overlap")


def test_the_splade_of_the_guide_ranks_signed_probes_as_computed_by_hand(config, tmp_path):
    @torch.no_grad()
    def weights(text):
        logits = loaded(model, AutoModelForMaskedLM)(text).logits[0]
        return torch.log1p(torch.relu(logits)).max(dim=0).values.double().numpy()

    model = save_mlm(tmp_path / "mlm")
    file = tmp_path / "splade.py"
    file.write_text(example("sparse vectors").replace("naver/splade-cocondenser-ensembledistil", model))
    config = config.model_copy(update={"retriever": f"python:{file}", "index": str(tmp_path / "splade")})
    build_index(config)
    environment = Environment.open(config)
    terms = (Term(text="headache", weight=1.0), Term(text="blood sugar", weight=-0.5))
    (ranking,) = environment.rank([SearchPlan(probes=(Probe(terms=terms),), k=10)])
    query = weights("headache") - 0.5 * weights("blood sugar")
    scores = {name: weights(text) @ query for name, text in CONTENTS.items()}
    expected = {name: score for name, score in scores.items() if score > 0}
    assert {hit.id: hit.score for hit in ranking} == pytest.approx(expected, rel=1e-4)
    assert [hit.score for hit in ranking] == sorted((hit.score for hit in ranking), reverse=True)


def test_an_index_of_other_code_is_refused(config):
    manifest = build_index(config)
    file = Path(config.retriever.removeprefix("python:"))
    file.write_text(file.read_text() + "\n# another version\n")
    with refused(IndexFolderError, config.index):
        Environment.open(config)
    assert build_index(config, overwrite=True).index_hash != manifest.index_hash


def test_a_file_that_is_no_retriever_is_refused(config, tmp_path):
    (tmp_path / "empty.py").write_text("")
    with refused(ConfigError, tmp_path / "empty.py", "Retriever"):
        build_index(config.model_copy(update={"retriever": f"python:{tmp_path / 'empty.py'}"}))
    with refused(ConfigError, "nowhere.py"):
        build_index(config.model_copy(update={"retriever": "python:nowhere.py"}))
    (tmp_path / "words.txt").write_text("")
    with refused(ConfigError, tmp_path / "words.txt", ".py"):
        build_index(config.model_copy(update={"retriever": f"python:{tmp_path / 'words.txt'}"}))


@pytest.mark.parametrize(
    ("code", "says"),
    [("x = (", "SyntaxError"), ("\nimport nosuchmodule", "nosuchmodule'; line 2"), ("x = 1/0", "line 1")],
)
def test_a_file_that_does_not_run_is_the_users_mistake(config, code, says):
    Path(config.retriever.removeprefix("python:")).write_text(code)
    with refused(ConfigError, "trigrams.py cannot be run", says):
        build_index(config)
