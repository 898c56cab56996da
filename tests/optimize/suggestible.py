"""A policy that its prompt decides: it searches with the medicine words that the prompt has most often.

As the policy of lessons.py, but one attention layer averages over the whole prompt and hands the shares of the words on
to the output. So a system message that names a word changes every answer, and which word is best for the questions is
known.
"""

from pathlib import Path

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.types import Dataset, Document, Question, Split

from ..lessons import ASKED, CLOSE, OPEN, TEXTS, WORDS, change, lesson_settings, save_chain

START = """
system: Name the medicine, such as scurvy.
documents: "Found: {documents}"
no_documents: Found nothing.
examples:
  - question: itch
    turns:
      - {rewrite: menthol}
"""
BETTER = "Think of the blood."
"""It finds what two of the five questions ask for; `scurvy` what one does."""
WORSE = "Think of nothing."


def save_suggestible(folder: Path) -> Path:
    """Save the model with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    links = [("\n", (OPEN,), 1e-9), (OPEN, WORDS, None), *((word, (CLOSE,), None) for word in WORDS), (CLOSE, (), None)]
    save_chain(folder, [OPEN, CLOSE, *WORDS], links)
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    spare = len(tokenizer)  # dimensions that no embedding uses
    attention = model.model.layers[0].self_attn
    with torch.no_grad():
        attention.q_proj.weight.zero_()  # so that attention is uniform
        attention.v_proj.weight.zero_()
        model.lm_head.weight[:, spare:] = 0
        for index, word in enumerate(tokenizer.convert_tokens_to_ids(list(WORDS))):
            attention.v_proj.weight[index, word] = 1.0
            attention.o_proj.weight[spare + index, index] = 0.5
            model.lm_head.weight[word, spare + index] = 2.0
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def suggestible(tmp_path_factory) -> Path:
    """The folder of the policy."""
    return save_suggestible(tmp_path_factory.mktemp("suggestible") / "policy")


@pytest.fixture(scope="session")
def world(tmp_path_factory) -> EnvironmentConfig:
    """Five documents, the same five questions in other words for each split, and a real BM25 index."""
    from querylect.data.beir import save_beir
    from querylect.envs.build import build_index

    folder = tmp_path_factory.mktemp("world")
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    splits = {}
    for split, prefix in (("train", ""), ("validation", "tell me: "), ("test", "please: ")):
        questions = [Question(f"{split}-{name}", f"{prefix}{text}") for name, (text, _) in ASKED.items()]
        splits[split] = Split(questions, {f"{split}-{name}": grades for name, (_, grades) in ASKED.items()})
    save_beir(Dataset("world", corpus, splits), folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="session")
def world_url(world, run_app):
    """The environment as a running service."""
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    with run_app(create_app(Environment.open(world))) as url:
        yield url


@pytest.fixture
def prompting(world, world_url, suggestible, tmp_path) -> RunConfig:
    """A run of 60 searches on it; the reflection model is to be set."""
    (tmp_path / "start.yaml").write_text(START)
    return change(
        lesson_settings(world, world_url, suggestible, tmp_path),
        **{
            "name": "prompt",
            "rewriter.prompt": str(tmp_path / "start.yaml"),
            "rollout.branching": [2],
            "reward.turn_weights": [1.0],
            "train.steps": 2,
            "optimize.searches": 60,
            "optimize.reflection": {"model": "m", "cache": None},
            "eval.turns": 1,
            "eval.permutations": 50,
            "eval.bootstrap": 50,
            "eval.run_baselines": [],
        },
    )
