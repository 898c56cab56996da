"""What a `querylect.json` of somebody else may say, and what readers take from it. No model is loaded."""

import json

from querylect.configs.rewriter import RewriterConfig
from querylect.hub.describe import _settings
from querylect.hub.exported import FILE, read_exported, rewriter_of

BM25 = {"name": "bm25", "kind": "sparse"}


def exported(members=None, **changes):
    """A whole file as plain data; `members` are the rewriters of several environments."""
    environment = {"name": "e", "corpus_size": 1, "corpus_hash": "c", "index_hash": "i", "splits": {"test": 1}}
    chat = {"question": "an itch", "messages": [], "stop": [], "stop_ids": []}
    one = {"chat": chat, "retriever": BM25, "environment": environment}
    values = {
        "format": 1,
        "querylect": "0.1.0",
        "base_model": "acme/base",
        "lora": False,
        "rollout": {
            "turns": 1, "max_new_tokens": [8], "max_prompt_tokens": 128, "documents": 1, "document_tokens": 8, "k": 10,
        },
        "policy": {"dtype": "float32"},
        "training": {},
        "license": "mit",
        "run": {"name": "run", "id": "x", "checkpoint": "final", "checkpoint_hash": "h"},
    }  # fmt: skip
    if members is None:
        values |= {"rewriter": {"name": "general"}, **one}
    else:
        values["environments"] = {
            name: {**one, "retriever": {**BM25, "name": name}, "rewriter": rewriter}
            for name, rewriter in members.items()
        }
    return values | changes


def write(folder, values):
    """The file in a folder; the folder."""
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(values))
    return folder


LLM = {"model": "acme/llm", "dtype": "float32", "max_prompt_tokens": 512}
OBEYED_BY_NOBODY = {
    "base_url": "http://elsewhere/v1",
    "api_key_env": "HF_TOKEN",
    "extra": {"user": "me"},
    "cache": "/home/me/.bashrc",
    "deadline": 1e9,
}


def test_a_file_of_somebody_else_chooses_no_address_no_key_and_no_file_to_write(tmp_path):
    said = {"name": "hcqr", "llm": {**LLM, **OBEYED_BY_NOBODY}}
    told = rewriter_of(read_exported(write(tmp_path, exported(rewriter=said))).member(), tmp_path).llm
    assert told.model_dump(exclude_unset=True) == LLM
    assert (told.base_url, told.api_key_env, told.cache) == (None, "QUERYLECT_LLM_KEY", "auto")


def test_an_export_says_no_address_and_no_key_of_the_model_that_its_rewriter_asked(tmp_path):
    rewriter = RewriterConfig.model_validate({"name": "hcqr", "llm": {**LLM, **OBEYED_BY_NOBODY}})
    assert _settings(rewriter, "", None, tmp_path).llm.model_dump(exclude_unset=True) == LLM
