"""Files of an index that rot or are overwritten: found by a check of all files, and no ranking while it is served."""

import os
import shutil
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from querylect.configs.schema import EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.builder.build import build_index
from querylect.envs.environment import Environment
from querylect.envs.index.open import verify_index
from querylect.envs.plan import SearchPlan
from querylect.envs.retrievers.open import verify_indexes
from querylect.envs.server.app import create_app
from querylect.errors import EnvironmentUnavailableError, IndexFolderError

from ..encoders import save_bert, save_mlm
from ..question_models import save_corpus
from ..raising import refused
from ..served import served
from .test_qb_rag import add_questions

WORDS = ("heat", "wing", "air", "layer", "tunnel", "plate", "drag")
TEXTS = {f"d{n}": f"{WORDS[n % 7]} {WORDS[n % 5]} of a {WORDS[n % 3]} number{n}" for n in range(260)}
"""As many documents as an IVF-PQ index learns from."""


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "beir"
    split = Split([Question("q", "heat")], {"q": {"d0": 1}})
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    save_beir(Dataset("rot", corpus, {"test": split}), folder)
    return {"kind": "beir", "path": str(folder)}


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"bert": str(save_bert(folder / "bert")), "mlm": str(save_mlm(folder / "mlm"))}


def settings_of(kind, models, folder):
    """The retriever settings of each kind of index; a hybrid's members lie beside it."""
    dense = {"retriever": "bge-small-en-v1.5", "model": models["bert"]}
    return {
        "bm25": {},
        "rank_bm25": {"engine": "rank_bm25"},
        "flat": dense,
        "hnsw": {**dense, "vectors": {"search": "hnsw", "hnsw_links": 8, "dtype": "float16"}},
        "ivfpq": {**dense, "vectors": {"search": "ivfpq", "ivf_lists": 4, "pq_bytes": 4}},
        "splade": {"retriever": "splade", "model": models["mlm"]},
        "hybrid": {
            "retriever": "hybrid",
            "hybrid": {
                "members": [
                    {"retriever": "bm25", "index": f"{folder}/member-bm25"},
                    {**dense, "index": f"{folder}/member-dense"},
                ]
            },
        },
    }[kind]


@pytest.fixture(scope="module")
def built(dataset, models, tmp_path_factory):
    """`built(kind)`: the settings of a built index, in a folder of its own."""
    configs = {}

    def build(kind):
        if kind not in configs:
            folder = tmp_path_factory.mktemp(kind)
            plain = {"dataset": dataset, "index": f"{folder}/index", **settings_of(kind, models, folder)}
            configs[kind] = EnvironmentConfig.model_validate(plain)
            build_index(configs[kind])
        return configs[kind]

    return build


def flipped_one_by_one(config, folders):
    """Flip a byte in the middle of every file in turn; the next opening that verifies names the file."""
    checked = config.model_copy(update={"verify": True})
    files = [file for folder in folders for file in sorted(Path(folder).iterdir()) if file.stat().st_size]
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        for check in (verify_indexes, Environment.open):
            with refused(IndexFolderError, file.parent, f"{file.name} "):
                check(checked)
        file.write_bytes(content)
    verify_indexes(checked)
    return {file.name for file in files}


KINDS = {
    "bm25": {"words.bin", "data.csc.index.npy", "documents.order.npy"},
    "rank_bm25": {"tokens.npy", "lengths.npy"},
    "flat": {"vectors.npy"},
    "hnsw": {"vectors.npy", "nearest.faiss"},
    "ivfpq": {"vectors.npy", "nearest.faiss"},
    "splade": {"words.weights.npy", "words.documents.npy", "words.ends.npy"},
    "hybrid": {"vectors.npy", "words.bin"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_of_any_file_is_found_where_an_opening_verifies(built, kind):
    config = built(kind)
    members = [member.index for member in config.hybrid.members] if config.hybrid else []
    assert flipped_one_by_one(config, [config.index, *members]) > KINDS[kind] | {"manifest.json", "documents.bin"}


def test_a_flipped_byte_of_any_file_of_qb_rag_is_found_where_an_opening_verifies(tmp_path):
    config = EnvironmentConfig.model_validate(
        {
            "dataset": save_corpus(tmp_path / "data").model_dump(),
            "retriever": "qb-rag",
            "index": str(tmp_path / "index"),
            "question_index": {"folder": str(tmp_path / "questions"), "index": str(tmp_path / "of-questions")},
        }
    )
    add_questions(config, tmp_path)
    build_index(config)
    names = flipped_one_by_one(config, [config.index, *(tmp_path / name for name in ("questions", "of-questions"))])
    assert names > {"answers.ends.npy", "questions.json", "answers.jsonl", "words.bin"}


def rankings_of(http, text):
    """The status of a search, and its rankings or the detail of the problem."""
    plan = SearchPlan.of(text).model_dump()
    answer = http.post("/v1/search", json={"plans": [plan], "with_text": True})
    step = http.post("/v1/step", json={"steps": [{"question_id": "q", "plan": plan}]})
    assert step.status_code == answer.status_code, "and no reward where there is no ranking"
    return answer.status_code, answer.json().get("rankings") or answer.json()["detail"]


@contextmanager
def harmed(file, harm):
    """The file changed in place by `harm`, as `cp` over it or a full disk does, and restored afterwards."""
    content = file.read_bytes()
    with file.open("r+b") as opened:
        harm(opened, content)
    try:
        yield
    finally:
        with file.open("r+b") as opened:
            opened.truncate(len(content))
            opened.write(content)


HARMS = {
    "emptied": lambda file, content: file.truncate(0),
    "cut in half": lambda file, content: file.truncate(len(content) // 2),
    "cut by a byte": lambda file, content: file.truncate(len(content) - 1),
    "overwritten with ones": lambda file, content: file.write(b"\xff" * len(content)),
    "a byte flipped": lambda file, content: file.write(bytes([content[0] ^ 1])),
    "made longer": lambda file, content: (file.seek(0, os.SEEK_END), file.write(b"more")),
}


@pytest.mark.parametrize("kind", ["bm25", "hnsw"])
def test_a_file_changed_in_place_while_a_process_serves_it_is_a_503_that_names_it(built, tmp_path, kind):
    folder = Path(shutil.copytree(built(kind).index, tmp_path / "index"))
    config = built(kind).model_copy(update={"index": str(folder), "log": "none"})
    checked_files = {"hnsw": ("vectors.npy", "nearest.faiss")}
    files = [folder / name for name in checked_files.get(kind, [*verify_index(folder).files])]
    searches = 0
    with served(config, tmp_path) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        expected = [rankings_of(http, f"heat {word}") for word in WORDS]
        assert {status for status, _ in expected} == {200}
        for file in files:
            for name, harm in HARMS.items():
                with harmed(file, harm):
                    for text in ("heat wing", f"heat of the wing {searches}"):  # cached, and not
                        status, detail = rankings_of(http, text)
                        assert (status, f"{file} has " in detail) == (503, True), (file, name, detail)
                        searches += 1
                    assert http.get("/readyz").status_code == 503
            os.utime(file)
            os.replace(shutil.copy(file, folder / "another"), file)
            file.write_bytes(b"of another index")
            assert rankings_of(http, f"heat {searches}")[0] == 200, (
                "only touched; then replaced, which the process keeps"
            )
        assert [rankings_of(http, f"heat {word}") for word in WORDS] == expected
        assert http.get("/readyz").status_code == 200, "whole again"


def damaged_copy(config, tmp_path, name, change):
    """The settings of a copy of an index in which the array of a file was changed before it was opened."""
    folder = Path(shutil.copytree(config.index, tmp_path / "index"))
    array = np.load(folder / name)
    change(array)
    np.save(folder / name, array)
    return config.model_copy(update={"index": str(folder)}), folder / name


def beyond(array):
    array[:] = 2**30


ROTTEN = {
    "a posting of no document": ("bm25", "indices.csc.index.npy", beyond),
    "postings that are nowhere": ("bm25", "indptr.csc.index.npy", lambda array: array[1:-1].fill(2**40)),
    "a weight that is no number": ("bm25", "data.csc.index.npy", lambda array: array.fill(np.inf)),
    "a text that begins nowhere": ("bm25", "documents.offsets.npy", lambda array: array[1:-1].fill(2**40)),
    "a posting of no document, SPLADE": ("splade", "words.documents.npy", beyond),
}


@pytest.mark.parametrize("name", ROTTEN)
def test_earlier_rot_that_makes_a_search_fail_is_a_503_with_the_file(built, tmp_path, run_app, name):
    """Without `env.verify` nothing is read at opening; a search that fails has all files checked."""
    kind, file, change = ROTTEN[name]
    config, path = damaged_copy(built(kind), tmp_path, file, change)
    app = create_app(Environment.open(config), config)
    with run_app(app) as url, httpx.Client(base_url=url, timeout=60, trust_env=False) as http:
        for text in ("heat", "wing"):
            status, detail = rankings_of(http, text)
            assert (status, f"{path} has sha256 " in detail) == (503, True), detail
        assert http.get("/readyz").status_code == 503


def test_a_file_damaged_during_a_search_is_refused_until_opened_anew(built, tmp_path):
    """Damaged data may be cached, so restoring the file is not enough."""
    folder = Path(shutil.copytree(built("bm25").index, tmp_path / "index"))
    environment = Environment.open(built("bm25").model_copy(update={"index": str(folder)}))
    content = (folder / "documents.bin").read_bytes()
    rank = environment._retriever.rank

    def harmed_rank(probes, limits):
        with (folder / "documents.bin").open("r+b") as file:
            file.write(bytes(len(content)))
        return rank(probes, limits)

    environment._retriever.rank = harmed_rank
    for _ in range(2):
        with refused(EnvironmentUnavailableError, folder / "documents.bin"):
            environment.search([SearchPlan.of("heat")])
        with (folder / "documents.bin").open("r+b") as file:
            file.write(content)
    assert environment.damage


def test_damage_that_one_thread_finds_is_not_forgotten_by_another(built, monkeypatch):
    """Answers are written in threads beside the search; one checks the files just before another detects damage."""
    environment, looks = Environment.open(built("bm25")), []

    def meanwhile():
        with refused(EnvironmentUnavailableError, "broken"), environment.intact():
            pass

    class Guard:
        damage = ""

        def check(self, everything=False):
            looks.append(everything)
            number = len(looks)
            if number == 2:
                meanwhile()
            return "broken" if number == 4 else ""

    monkeypatch.setattr(environment, "_guards", [Guard()])
    with refused(EnvironmentUnavailableError, "broken"), environment.intact():
        pass
    assert environment.damage == "broken"


def test_a_bug_of_a_retriever_is_not_called_damage(built):
    environment = Environment.open(built("bm25"))

    def fail(probes, limits):
        raise IndexError("a bug")

    environment._retriever.rank = fail
    for _ in range(2):
        with pytest.raises(IndexError, match="a bug"):
            environment.search([SearchPlan.of("heat")])
    assert not environment.damage
