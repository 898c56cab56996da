"""Dense retrieval: presets against plain torch on small random models, and exact search against FAISS."""

import json
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from querylect.data.types import Document
from querylect.envs.presets import RetrieverPreset, find_preset
from querylect.envs.retrievers import dense
from querylect.envs.retrievers.encoder import Encoder, token_batches
from querylect.errors import ModelError
from transformers import AutoTokenizer

from ..encoders import DOCUMENTS, QUERIES, hidden_states, save_bert, save_qwen
from ..raising import refused
from .test_nearest import WIDTH, Axes, probe

pytestmark = pytest.mark.model

CORPUS = [Document(str(number), "", text) for number, text in enumerate(DOCUMENTS)]


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return save_bert(tmp_path_factory.mktemp("bert"))


def test_qwen_preset_is_the_last_token_behind_the_instruction_at_length_one(tmp_path):
    def by_hand(text):
        assert AutoTokenizer.from_pretrained(qwen)(text)["input_ids"][-1] == 0, "a text must end with <|endoftext|>"
        hidden = hidden_states(qwen, text)
        return (hidden[-1] / hidden[-1].norm()).numpy()

    qwen = save_qwen(tmp_path)
    encoder = Encoder(find_preset("qwen3-embedding-0.6b", qwen))
    task = "Given a web search query, retrieve relevant passages that answer the query"
    expected = np.stack([by_hand(f"Instruct: {task}\nQuery:{text}") for text in QUERIES])
    np.testing.assert_allclose(encoder.queries(QUERIES), expected, atol=1e-5)
    expected = np.stack([by_hand(text) for text in DOCUMENTS])
    np.testing.assert_allclose(encoder.documents(CORPUS), expected, atol=1e-5)
    assert np.abs(encoder.queries(DOCUMENTS) - expected).max() > 0.01


@pytest.mark.parametrize("pooling", ["cls", "mean", "lasttoken", "max", "weightedmean"])
def test_pooling_of_a_bare_transformer_follows_the_preset(bert, pooling):
    preset = RetrieverPreset(name="x", kind="dense", trained="", model=bert, pooling=pooling, similarity="dot")
    hidden = hidden_states(bert, DOCUMENTS[0])
    rising = torch.arange(1, len(hidden) + 1)[:, None] / sum(range(1, len(hidden) + 1))
    expected = {
        "cls": hidden[0],
        "mean": hidden.mean(dim=0),
        "lasttoken": hidden[-1],
        "max": hidden.max(dim=0).values,
        "weightedmean": (rising * hidden).sum(dim=0),
    }[pooling]
    np.testing.assert_allclose(Encoder(preset).documents(CORPUS)[0], expected.numpy(), atol=1e-5)


@given(lengths=st.lists(st.integers(1, 600), max_size=60), budget=st.integers(1, 2000))
def test_a_batch_of_texts_keeps_to_its_tokens_and_no_text_is_lost(lengths, budget):
    batches = token_batches(lengths, budget)
    assert sorted(position for batch in batches for position in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(lengths[position] for position in batch) <= budget


def test_search_equals_an_exact_flat_index_for_every_limit_of_a_batch():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(300, WIDTH)).astype(np.float32)
    index = faiss.IndexFlatIP(WIDTH)
    index.add(vectors)
    queries, limits = random.normal(size=(40, WIDTH)).astype(np.float32), [1, 10, 40, 100] * 10
    scores, documents = index.search(queries, 100)
    rankings = dense.Dense(Axes(), vectors).rank(list(map(probe, queries)), limits)
    for ranking, limit, exact, values in zip(rankings, limits, documents, scores, strict=True):
        assert ranking.documents.tolist() == exact[:limit].tolist()
        np.testing.assert_allclose(ranking.scores, values[:limit], rtol=1e-4, atol=1e-6)


def test_a_model_that_compares_by_distance_is_refused(bert, tmp_path):
    from sentence_transformers import SentenceTransformer

    SentenceTransformer(bert, similarity_fn_name="euclidean").save(str(tmp_path))
    preset = find_preset(str(tmp_path))
    with refused(ModelError, "euclidean"):
        Encoder(preset)
    assert Encoder(preset.model_copy(update={"similarity": "dot"})).preset.similarity == "dot"


def test_medcpt_reads_pairs_with_one_encoder_and_short_queries_with_the_other(bert, tmp_path):
    query_model = save_bert(tmp_path, seed=1)
    preset = find_preset("medcpt").model_copy(update={"model": bert, "query_model": query_model, "query_max_length": 8})
    encoder = Encoder(preset)
    articles = [
        Document("1", "Heat", "the heat transfer of a slab"),
        Document("2", "", "a wing in a wind tunnel " * 300),
    ]
    cut = {"truncation": True, "max_length": 512}
    expected = [hidden_states(bert, article.title, article.text, **cut)[0].numpy() for article in articles]
    np.testing.assert_allclose(encoder.documents(articles), expected, atol=1e-5)
    for text in ("heat", articles[1].text):
        expected = hidden_states(query_model, text, truncation=True, max_length=8)[0].numpy()
        np.testing.assert_allclose(encoder.queries([text])[0], expected, atol=1e-5)
    assert encoder.fingerprint != Encoder(preset.model_copy(update={"query_model": bert})).fingerprint


def test_in_bfloat16_the_transformer_computes_in_it_and_vectors_are_float32(bert):
    preset, computed = find_preset("contriever", bert), set()
    encoder = Encoder(preset.model_copy(update={"dtype": "bfloat16"}))
    linear = next(layer for layer in encoder._model.modules() if isinstance(layer, torch.nn.Linear))
    linear.register_forward_hook(lambda _layer, _inputs, output: computed.add(output.dtype))
    vectors = encoder.documents(CORPUS)
    assert (computed, vectors.dtype) == ({torch.bfloat16}, np.float32)
    mean = torch.from_numpy(vectors)
    assert (mean - mean.bfloat16()).abs().max() > 1e-3, "means that bfloat16 cannot hold"
    np.testing.assert_allclose(vectors, Encoder(preset).documents(CORPUS), atol=0.1)


def test_code_that_a_model_brings_is_not_run(bert, tmp_path):
    for file in Path(bert).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "homemade", "auto_map": {"AutoConfig": "code.Config", "AutoModel": "code.Model"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    with pytest.raises(ModelError):
        Encoder(find_preset("contriever", str(tmp_path)))
    assert not (tmp_path / "ran").exists()
