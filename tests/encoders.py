"""Encoders with random weights, saved as real model folders, and what plain transformers computes with them."""

from functools import cache

import torch
from querylect.envs.plan import Probe, Term
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import (
    AutoModel,
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3Model,
)

QUERIES = ["heat transfer", "what is the lift of a thin slender wing at supersonic speed", "{text} in braces"]
DOCUMENTS = [
    "the heat transfer of a slab",
    "lift and drag of a slender wing in a supersonic stream of air",
    "boundary layer",
    "a wing",
    "transfer of heat in a boundary layer over a flat plate, measured in a wind tunnel",
]
SIZE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}


def probe(*terms):
    return Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms))


def save_bert(folder, seed=0, model=BertModel, **changes):
    """A BERT with random weights as a bare transformers folder; `model` is one of transformers' BERT classes."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    tokenizer.train_from_iterator(
        DOCUMENTS, trainers.WordPieceTrainer(vocab_size=200, special_tokens=special, show_progress=False)
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    ).save_pretrained(folder)
    config = BertConfig(vocab_size=tokenizer.get_vocab_size(), initializer_range=0.2, **{**SIZE, **changes})
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model(config).save_pretrained(folder)
    return str(folder)


def save_qwen(folder):
    """A Qwen3 with random weights whose tokenizer closes every text with <|endoftext|>."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(
        DOCUMENTS,
        trainers.BpeTrainer(
            vocab_size=300,
            special_tokens=["<|endoftext|>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 0)]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<|endoftext|>", eos_token="<|endoftext|>"
    ).save_pretrained(folder)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(), num_key_value_heads=2, head_dim=8, initializer_range=0.2, **SIZE
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        Qwen3Model(config).save_pretrained(folder)
    return str(folder)


@cache
def loaded(folder, model=AutoModel):
    """What transformers computes of one text, or of a pair of texts, alone, so that no padding can play a part."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    network = model.from_pretrained(folder, dtype=torch.float32).eval()
    return lambda *texts, **how: network(**tokenizer(*texts, return_tensors="pt", **how))


@torch.no_grad()
def hidden_states(folder, *texts, **how):
    """Last hidden states (tokens, d)."""
    return loaded(folder)(*texts, **how).last_hidden_state[0]


def save_mlm(folder):
    """A BERT with random weights and a masked-language-model head: a SPLADE model to sentence-transformers."""
    return save_bert(folder, seed=2, model=BertForMaskedLM)


def save_cross_encoder(folder):
    """A BERT with random weights that gives a number for a pair of texts."""
    return save_bert(folder, seed=3, model=BertForSequenceClassification, num_labels=1)
