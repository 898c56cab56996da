"""What a training run of a few seconds needs: a policy that keeps the format, an environment that grades it, settings.

The policy is a real model folder whose samples put a random word into the tags. Its next token depends on the token
before it: identity embeddings, layers whose outputs start at zero, and an output head that is a table of what may
follow what, with a little noise so that the layers can tell words apart. So a run of a few steps has searches, rewards
that differ, and gradients (the adapters of the layers see the whole prompt), without any download.
"""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig, RunConfig
from querylect.data.types import Dataset, Document, Question, Split
from querylect.storage import file_sha256

from .jsonl import read_jsonl as records
from .tiny import CHATML, tiny_tokenizer

OPEN, CLOSE = "<think></think><rewrite>", "</rewrite>"
WORDS = ("aspirin", "insulin", "citrus", "triptan", "statin", "headache", "blood", "scurvy")
Link = tuple[str, Sequence[str], float | None]
"""A token, those of which one follows it (none: the turn ends), and how often another one slips in (None: never)."""
ANSWER_TOKENS = 4
"""Opening, word, closing, end of turn."""


def save_speaking(folder: Path, slips: float = 0.1, heads: int = 4, head_dim: int = 16) -> Path:
    """Save the model with its tokenizer. About `slips` of the turns begin with a wrong token: format failures."""
    links = [
        ("\n", (OPEN,), slips),
        (OPEN, WORDS, None),
        *((word, (CLOSE,), None) for word in WORDS),
        (CLOSE, (), None),
    ]
    return save_chain(folder, [OPEN, CLOSE, *WORDS], links, heads, head_dim)


def save_chain(folder: Path, tokens: Sequence[str], links: Sequence[Link], heads: int = 4, head_dim: int = 16) -> Path:
    """Save a model that writes one of some tokens after another: see `Link`."""
    import math

    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(CHATML)
    tokenizer.add_tokens(list(tokens))
    vocabulary = len(tokenizer)
    width = math.ceil(vocabulary / 64) * 64
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=head_dim,
        max_position_embeddings=4096,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LlamaForCausalLM(config).float()
        noise = 0.03 * torch.randn(vocabulary, width)
    follows = torch.zeros(vocabulary, vocabulary)
    for previous, after, slips in links:
        last = tokenizer(previous, add_special_tokens=False)["input_ids"][-1]
        next_ones = tokenizer.convert_tokens_to_ids(list(after)) or [tokenizer.eos_token_id]
        follows[last, next_ones] = 20.0 if slips is None else math.log(vocabulary / max(slips, 1e-6))
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(vocabulary, width))
        model.lm_head.weight.copy_(noise)
        model.lm_head.weight[:, :vocabulary] += follows.T / math.sqrt(width)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


PROMPT = """
system: Name the medicine.
documents: "Found: {documents}"
no_documents: Found nothing.
examples:
  - question: itch
    turns:
      - {rewrite: menthol}
      - {documents: [About menthol], rewrite: menthol}
"""

TEXTS = {
    "aspirin": "aspirin relieves headache",
    "insulin": "insulin lowers blood glucose",
    "citrus": "vitamin c prevents scurvy",
    "triptan": "triptan stops migraine and headache",
    "statin": "statin lowers cholesterol in blood",
}
ASKED = {
    "head": ("my head hurts", {"triptan": 2, "aspirin": 1}),
    "sugar": ("too much sugar", {"insulin": 1}),
    "gums": ("bleeding gums", {"citrus": 1}),
    "fat": ("fat in the blood", {"statin": 2, "insulin": 1}),
    "pills": ("common pills", {"aspirin": 1, "statin": 1}),
}
"""Five training questions: at two a step, a pass over them ends in the middle of a short run."""


@pytest.fixture(scope="session")
def lessons(tmp_path_factory) -> EnvironmentConfig:
    """Five documents, five training questions, and the same five in other words as the test, with a real BM25 index."""
    from querylect.data.beir import save_beir
    from querylect.envs.build import build_index

    folder = tmp_path_factory.mktemp("lessons")
    corpus = [Document(name, f"About {name}", text) for name, text in TEXTS.items()]
    questions = [Question(name, text) for name, (text, _) in ASKED.items()]
    split = Split(questions, {name: grades for name, (_, grades) in ASKED.items()})
    held_out = [Question(f"t-{question.id}", f"please: {question.text}") for question in questions]
    test = Split(held_out, {f"t-{name}": grades for name, grades in split.qrels.items()})
    save_beir(Dataset("lessons", corpus, {"train": split, "test": test}), folder / "data")
    config = EnvironmentConfig(dataset=DatasetConfig(path=str(folder / "data")), index=str(folder / "index"))
    build_index(config)
    return config


@pytest.fixture(scope="session")
def speaking(tmp_path_factory) -> Path:
    """The folder of the policy."""
    return save_speaking(tmp_path_factory.mktemp("speaking") / "policy")


@pytest.fixture(scope="session")
def lesson_url(lessons, run_app) -> Iterator[str]:
    """The environment as a running service."""
    from querylect.envs.environment import Environment
    from querylect.envs.server.app import create_app

    with run_app(create_app(Environment.open(lessons))) as url:
        yield url


@pytest.fixture
def settings(lessons, lesson_url, speaking, tmp_path) -> RunConfig:
    """Those of `lesson_settings`, in the folder of the test."""
    return lesson_settings(lessons, lesson_url, speaking, tmp_path)


def lesson_settings(lessons: EnvironmentConfig, url: str, speaking: Path, folder: Path) -> RunConfig:
    """Four steps of two questions with a 2×2 tree each, against the running service."""
    (folder / "prompt.yaml").write_text(PROMPT)
    return RunConfig.model_validate(
        {
            "name": "run",
            "output": str(folder / "runs"),
            "env": lessons.model_dump(),
            "client": {"urls": [url]},
            "policy": {"model": str(speaking), "dtype": "float32", "lora": {"r": 4, "alpha": 8}},
            "rewriter": {"name": "few_shot", "prompt": str(folder / "prompt.yaml")},
            "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
            "train": {"steps": 4, "questions_per_step": 2, "learning_rate": 0.01, "save_steps": 2},
            "tracking": {"wandb": "disabled"},
        }
    )


ENDLESS = {"train.steps": 500}
"""A run that only what a test does to it ends."""


def change(config: RunConfig, **values) -> RunConfig:
    """The config with dotted settings replaced: change(config, **{"train.steps": 2})."""
    plain = config.model_dump()
    for key, value in values.items():
        *path, last = key.split(".")
        section = plain
        for part in path:
            section = section[part]
        section[last] = value
    return RunConfig.model_validate(plain)


def contents(folder: Path) -> dict[str, str]:
    """The sha256 of every file below a folder, by its name."""
    return {str(path.relative_to(folder)): file_sha256(path) for path in folder.rglob("*") if path.is_file()}


def stopped_copy(config, folder, output, upto):
    """A copy in `output` of a finished run that saved every step, as if it had been stopped after step `upto`, its log
    running ahead of its checkpoint; gives its settings and its folder."""
    config = change(config, output=str(output))
    copy = Path(shutil.copytree(folder, output / folder.name))
    text = (folder / "config.yaml").read_text().replace(str(folder.parent), config.output)
    (copy / "config.yaml").write_text(text, encoding="utf-8")
    for step in range(upto + 1, config.train.steps + 1):
        shutil.rmtree(copy / "checkpoints" / f"checkpoint-{step}", ignore_errors=True)
    shutil.rmtree(copy / "final")
    return config, copy


def without_seconds(path: Path) -> list[dict]:
    """A log without what depends on the clock and on the process."""
    leave_out = ("seconds", "throughput", "memory", "cache")
    return [{key: value for key, value in line.items() if not key.startswith(leave_out)} for line in records(path)]
