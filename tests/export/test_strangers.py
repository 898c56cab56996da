"""What a `querylect.json` of an untrusted author may set, and what is written into one. No model is loaded."""

import json

import pytest
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, ModelError
from querylect.export.card import model_card
from querylect.export.export import published
from querylect.export.exported import FILE, Exported, read_exported, settings_of
from querylect.export.source import BaseModelSource
from querylect.inference.load import open_trained
from querylect.inference.rewriter import Rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused

BM25 = {"name": "bm25", "kind": "bm25"}
BASE = BaseModelSource("acme/base", "acme/base", False, {"license": "mit"})
LLM = {"model": "acme/llm", "dtype": "float32"}
OBEYED_BY_NOBODY = {
    "base_url": "http://elsewhere/v1", "extra": {"user": "me"}, "cache": "/home/me/.bashrc", "deadline": 1e9
}  # fmt: skip


def exported(members=None, **config):
    """A complete file as plain data; `members` are the rewriters of several environments."""
    environment = {
        "name": "e", "corpus_size": 1, "corpus_hash": "c", "index_hash": "i", "settings_hash": "s",
        "splits": {"test": 1}, "retriever": BM25,
    }  # fmt: skip
    chat = {"question": "an itch", "messages": [], "stop_ids": []}
    rollout = {"branching": [1], "max_new_tokens": 8}
    config = {"policy": {"dtype": "float32"}, "rollout": rollout, "reward": {"turn_weights": [1.0]}, **config}
    if members:
        described = {name: {**environment, "retriever": {**BM25, "name": name}} for name in members}
        retrievers = {name: described[name]["retriever"] for name in members}
        environment = {**environment, "retriever": retrievers, "environments": described}
        config["mix"] = {"environments": {name: {"rewriter": settings} for name, settings in members.items()}}
    return {
        "querylect": "0.1.0",
        "base_model": "acme/base",
        "lora": False,
        "config": config,
        "environment": environment,
        "turn": 1,
        "turn_reason": "the only one",
        "chats": dict.fromkeys(members or [""], chat),
        "results": dict.fromkeys(members or [""]),
        "license": "mit",
        "run": {"name": "run", "checkpoint": "final", "checkpoint_hash": "h"},
    }


def test_a_file_of_somebody_else_chooses_no_address_no_key_and_no_file_to_write(tmp_path):
    stranger = exported(
        rewriter={"name": "hcqr", "llm": {**LLM, **OBEYED_BY_NOBODY}},
        env={"retriever": "python:evil.py", "index": "/home/me"},
        client={"urls": ["http://elsewhere"]},
        rollout={"branching": [1], "server": {"base_url": "http://elsewhere"}},
        members={"bm25": {"name": "few_shot", "prompt": "/home/me/secrets.yaml"}},
    )
    (tmp_path / FILE).write_text(json.dumps(stranger))
    settings = settings_of(read_exported(tmp_path), tmp_path)
    assert settings.rewriter.llm.model_dump(exclude_unset=True) == LLM
    assert settings.mix.environments["bm25"].rewriter.prompt == str(tmp_path / "secrets.yaml")
    assert (settings.env, settings.client) == (RunConfig().env, RunConfig().client)
    assert settings.rollout.server == RunConfig().rollout.server


@pytest.mark.parametrize("text", [None, "{", '{"querylect": "0.1"}'])
def test_a_file_that_describes_no_rewriter_is_told(tmp_path, text):
    if text is not None:
        (tmp_path / FILE).write_text(text)
    with refused(ModelError, tmp_path / FILE):
        read_exported(tmp_path)


def test_a_mixed_policy_is_asked_for_one_of_its_retrievers(tmp_path):
    (tmp_path / FILE).write_text(json.dumps(exported({"bm25": {"name": "general"}, "splade": {"name": "explore"}})))
    with refused(ConfigError, "bm25, splade", "retriever=NAME"):
        Rewriter(open_trained(str(tmp_path)), object()).select(RetrieverInfo(name="contriever", kind="dense"))


def test_the_card_names_the_base_and_the_environments():
    alone = model_card(Exported.model_validate(exported()), {}, BASE, None)
    linked = {"base_model: acme/base", "base_model_relation: finetune"}
    assert linked <= set(alone.splitlines()), "what the Hub makes a link of"
    assert "retriever=" not in alone
    card = model_card(Exported.model_validate(exported({"bm25": {}, "other": {}})), {}, BASE, "acme/x")
    assert 'rewrite("an itch", retriever="bm25")' in card
    assert "- bm25: the retriever `bm25` over `e`, 1 documents, corpus `c`\n" in card


def test_an_export_names_models_without_address_key_and_files(tmp_path):
    reader = {**OBEYED_BY_NOBODY, "model": "/data/reader-7b"}
    answer = {"reader": reader, "gold": "/home/me/gold.jsonl", "weight": 0.75, "metric": "em"}
    rewriter = {"name": "hcqr", "llm": {**OBEYED_BY_NOBODY, "model": "/data/llm"}}
    config = RunConfig.model_validate({"reward": {"kind": "answer", "answer": answer}, "rewriter": rewriter})
    values = published(config, BASE, tmp_path)
    assert values["reward"]["answer"]["reader"] == {"model": "reader-7b"}
    assert values["rewriter"]["llm"]["model"] == "llm"
    assert not [text for text in ("/home/me", "elsewhere", "/data") if text in str(values)]
