"""A flipped byte of any file of an index is found by `index verify`."""

from pathlib import Path

import pytest
from querylect.configs.schema import EnvironmentConfig
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.builder.build import build_index
from querylect.envs.retrievers.open import verify_indexes
from querylect.errors import IndexFolderError

from ..encoders import save_bert
from ..question_models import save_corpus
from ..raising import refused
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
    return {"bert": str(save_bert(folder / "bert"))}


def settings_of(kind, models, folder):
    """The retriever settings of each kind of index; a hybrid's members lie beside it."""
    dense = {"retriever": "bge-small-en-v1.5", "model": models["bert"]}
    return {
        "bm25": {},
        "rank_bm25": {"engine": "rank_bm25"},
        "flat": dense,
        "hnsw": {**dense, "vectors": {"search": "hnsw", "dtype": "float16"}},
        "ivfpq": {**dense, "vectors": {"search": "ivfpq"}},
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
    """Flip a byte in the middle of every file in turn; verifying names the file."""
    files = [
        file
        for folder in folders
        for file in sorted(Path(folder).iterdir())
        if file.stat().st_size and file.name not in ("manifest.json", "questions.json")
    ]
    for file in files:
        content = file.read_bytes()
        middle = len(content) // 2
        file.write_bytes(content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :])
        with refused(IndexFolderError, file.parent, f"{file.name} "):
            verify_indexes(config)
        file.write_bytes(content)
    verify_indexes(config)
    return {file.name for file in files}


KINDS = {
    "bm25": {"words.bin", "data.csc.index.npy", "documents.order.npy"},
    "rank_bm25": {"tokens.npy", "lengths.npy"},
    "flat": {"vectors.npy"},
    "hnsw": {"vectors.npy", "nearest.faiss"},
    "ivfpq": {"vectors.npy", "nearest.faiss"},
    "hybrid": {"vectors.npy", "words.bin"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_flipped_byte_of_any_file_is_found_by_verifying(built, kind):
    config = built(kind)
    members = [member.index for member in config.hybrid.members] if config.hybrid else []
    assert flipped_one_by_one(config, [config.index, *members]) > KINDS[kind] | {"documents.bin"}


def test_a_flipped_byte_of_any_file_of_qb_rag_is_found_by_verifying(tmp_path):
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
    assert names > {"answers.ends.npy", "answers.jsonl", "words.bin"}
