"""Tiny causal language models with random weights, built on the spot and saved as real model folders.

The tokenizer is a byte-level BPE (every text has ids and comes back unchanged) with the ChatML control tokens.
"""

from pathlib import Path

import pytest

TRAINING_TEXT = [
    "what helps when my head hurts, and what lowers the sugar in the blood?",
    "<think>the title that fits best</think><rewrite>triptan for migraine</rewrite>",
    "system user assistant Rewrite the question. These documents were found: Better:",
]

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SIZE = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
    "tie_word_embeddings": False,
}
"""Sizes of all tiny models. The wide initialisation makes next-token distributions peaked, not uniform."""


def tiny_tokenizer(chat_template: str | None = CHATML):
    """A byte-level tokenizer of about 320 ids that ends its turns with <|im_end|>."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    core.train_from_iterator(TRAINING_TEXT, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=chat_template,
    )


def tiny_model(kind: str = "llama", seed: int = 0, **changes):
    """A random float32 causal language model of transformers' architecture `kind` (llama, qwen3, mistral, …)."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tiny_tokenizer()
    ids = {"eos_token_id": tokenizer.eos_token_id, "bos_token_id": None, "pad_token_id": tokenizer.pad_token_id}
    config = AutoConfig.for_model(kind, **{**SIZE, "vocab_size": len(tokenizer), **ids, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return AutoModelForCausalLM.from_config(config).float().eval()


def save_tiny(folder: Path, kind: str = "llama", seed: int = 0, chat_template: str | None = CHATML, **changes) -> Path:
    """Save a tiny model with its tokenizer as a model folder and return the folder."""
    tiny_model(kind, seed, **changes).save_pretrained(folder)
    tiny_tokenizer(chat_template).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def tiny_policy(tmp_path_factory) -> Path:
    """The folder of a tiny Llama (2 layers, hidden 64, 4 heads, 2 key-value heads) with a ChatML template."""
    return save_tiny(tmp_path_factory.mktemp("tiny") / "llama", "llama")


@pytest.fixture(scope="session")
def tiny_qwen3(tmp_path_factory) -> Path:
    """The folder of a tiny Qwen3 with a ChatML template."""
    return save_tiny(tmp_path_factory.mktemp("tiny") / "qwen3", "qwen3")
