"""Every kind of retriever, signed weights included, against scores computed by hand with plain transformers."""

import os
import sqlite3

import numpy as np
import pytest
import torch
from querylect.configs.environment import (
    DatasetConfig,
    EnvironmentConfig,
    HybridConfig,
    MemberConfig,
    RecipeConfig,
    RerankConfig,
)
from querylect.data.beir import save_beir
from querylect.data.types import Dataset, Document, Question, Split
from querylect.envs.build import build_index, build_shard, merge_index
from querylect.envs.environment import Environment
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.tokenizer import WordTokenizer
from querylect.errors import IndexFolderError, RequestError
from transformers import AutoModelForSequenceClassification

from ..encoders import DOCUMENTS, hidden_states, loaded, save_bert, save_cross_encoder
from ..raising import refused

pytestmark = pytest.mark.model

TITLES = ["Heat", "Wings", "Layers", "", "Plates", "Air", "Tunnels"]
TEXTS = [*DOCUMENTS, "a stream of air", "heat of a wing in air"]
CORPUS = [Document(f"d{number}", title, text) for number, (title, text) in enumerate(zip(TITLES, TEXTS, strict=True))]
ALL = len(CORPUS)
PROBES = [
    [("heat transfer in air", 1.0)],
    [("heat of a wing", 1.0), ("drag of a wing in a stream of air", -0.5)],
    [("slender wing", 0.7), ("boundary layer", 0.6), ("heat", -1.2)],
    [("wing", -1.0), ("heat", 2.0), (" ", 3.0), ("air", 0.0)],
]
INSTRUCTION = "Represent this sentence for searching relevant passages: "


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "one": save_bert(folder / "one"),
        "two": save_bert(folder / "two", seed=1),
        "cross": save_cross_encoder(folder / "cross"),
    }


@pytest.fixture(scope="module")
def configs(models, tmp_path_factory):
    """Settings of an index of each kind, which is built when it is first opened; about one document in a part."""
    folder = tmp_path_factory.mktemp("indexes")
    split = Split([Question("q", "heat")], {"q": {"d0": 1}})
    save_beir(Dataset("tiny", CORPUS, {"test": split}), folder / "beir")
    dataset = DatasetConfig(path=str(folder / "beir"))
    settings = {
        "bm25": {},
        "fts5": {"retriever": "fts5"},
        "medcpt": {"retriever": "medcpt", "model": models["one"], "recipe": RecipeConfig(query_model=models["two"])},
        "bge": {"retriever": "bge-small-en-v1.5", "model": models["one"]},
        "yaml": {
            "retriever": models["one"],
            "recipe": RecipeConfig(
                pooling="mean", similarity="cos", query_prompt="query: ", document_prompt="passage: "
            ),
        },
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("querylect.envs.build.BLOCK_BYTES", 100)
        yield {
            kind: EnvironmentConfig(dataset=dataset, index=str(folder / kind), **settings)
            for kind, settings in settings.items()
        }


def cls(folder, *texts, **how):
    return hidden_states(folder, *texts, **how)[0].numpy().astype(np.float64)


def unit(vector):
    return vector / np.linalg.norm(vector)


def bm25_by_hand(models, text, document):
    documents = WordTokenizer("english")([entry.contents for entry in CORPUS])
    words, mean = documents[CORPUS.index(document)], np.mean([len(tokens) for tokens in documents])
    score = 0.0
    for query_word in WordTokenizer("english")([text])[0]:
        df = sum(query_word in tokens for tokens in documents)
        tf = words.count(query_word)
        score += (
            np.log(1 + (len(documents) - df + 0.5) / (df + 0.5)) * tf / (tf + 1.2 * (0.25 + 0.75 * len(words) / mean))
        )
    return score


def fts5_by_hand(models, text, document):
    """By SQLite alone; its least idf is 1e-6, of a word in half of the documents."""
    database = sqlite3.connect(":memory:")
    database.execute("CREATE VIRTUAL TABLE t USING fts5(body, tokenize='porter unicode61')")
    database.executemany("INSERT INTO t(rowid, body) VALUES (?, ?)", enumerate(entry.contents for entry in CORPUS))
    query, row = " OR ".join(text.split()), CORPUS.index(document)
    return sum(
        -score for (score,) in database.execute("SELECT bm25(t) FROM t WHERE t MATCH ? AND rowid = ?", (query, row))
    )


def medcpt_by_hand(models, text, document):
    article = cls(models["one"], document.title, document.text, truncation=True, max_length=512)
    return article @ cls(models["two"], text, truncation=True, max_length=64)


def bge_by_hand(models, text, document):
    return unit(cls(models["one"], document.contents)) @ unit(cls(models["one"], INSTRUCTION + text))


def generic_by_hand(models, text, document):
    """Mean of the tokens, cosine, documents behind `passage: `, queries behind `query: `."""
    query = hidden_states(models["one"], f"query: {text}").numpy().astype(np.float64).mean(axis=0)
    passage = f"passage: {document.contents}"
    return unit(hidden_states(models["one"], passage).numpy().astype(np.float64).mean(axis=0)) @ unit(query)


@torch.no_grad()
def cross_by_hand(models, text, document):
    return loaded(models["cross"], AutoModelForSequenceClassification)(text, document.contents).logits[0, 0].item()


BY_HAND = {
    "bm25": bm25_by_hand,
    "fts5": fts5_by_hand,
    "medcpt": medcpt_by_hand,
    "bge": bge_by_hand,
    "yaml": generic_by_hand,
}


def scores_by_hand(kind, models, terms):
    """Score of every ranked document for a probe, by position in the corpus."""
    by_hand = BY_HAND[kind]
    weighted_texts = [(text, weight) for text, weight in terms if text.strip() and weight]
    scores = {
        position: sum(weight * by_hand(models, text, document) for text, weight in weighted_texts)
        for position, document in enumerate(CORPUS)
    }
    return {position: score for position, score in scores.items() if score > 0 or kind not in ("bm25", "fts5")}


def order(scores):
    return sorted(scores, key=lambda position: -scores[position])


def probe(terms):
    return Probe(terms=tuple(Term(text=text, weight=weight) for text, weight in terms))


def plans(k=ALL):
    return [SearchPlan(probes=(probe(terms),), k=k) for terms in PROBES]


def opened(config):
    if not os.path.isdir(config.index):
        build_index(config)
    return Environment.open(config)


def check(environment, expected, k=ALL):
    """Rankings of all probes, alone and together, against scores by position."""
    together = environment.rank(plans(k))
    assert together == [environment.rank([plan])[0] for plan in plans(k)]
    for ranking, scores in zip(together, expected, strict=True):
        assert [hit.id for hit in ranking] == [f"d{position}" for position in order(scores)][:k]
        np.testing.assert_allclose(
            [hit.score for hit in ranking], [scores[position] for position in order(scores)][:k], rtol=1e-4, atol=1e-4
        )


@pytest.mark.parametrize("kind", BY_HAND)
def test_signed_probes_score_as_computed_by_hand_in_an_index_of_two_shards(kind, configs, models, tmp_path):
    """The index is the same as that of one process."""
    expected = [scores_by_hand(kind, models, terms) for terms in PROBES]
    cut = configs[kind].model_copy(update={"index": str(tmp_path / "cut")})
    assert sum(build_shard(cut, shard, 2) for shard in (2, 1)) > 2
    environment = opened(configs[kind])
    assert merge_index(cut).index_hash == environment.info().index_hash
    check(Environment.open(cut), expected)
    check(environment, expected, k=3)


def reranked(configs, models, kind, depth):
    """Settings of a kind with a second stage."""
    return configs[kind].model_copy(update={"rerank": RerankConfig(model=models["cross"], depth=depth)})


@pytest.mark.parametrize("kind", ["bm25", "fts5", "yaml"])
def test_a_cross_encoder_scores_the_best_documents_of_any_kind(kind, configs, models):
    expected = []
    for terms in PROBES:
        candidates = order(scores_by_hand(kind, models, terms))[:4]
        weighted_texts = [(text, weight) for text, weight in terms if text.strip() and weight]
        logits = {
            position: [(weight, cross_by_hand(models, text, CORPUS[position])) for text, weight in weighted_texts]
            for position in candidates
        }
        expected.append({position: sum(w * x for w, x in parts) for position, parts in logits.items()})
    environment = opened(reranked(configs, models, kind, depth=4))
    check(environment, expected, k=4)
    check(environment, expected, k=2)


def hybrid(configs, depth):
    """Settings of a hybrid over the indexes of three kinds."""
    members = [
        MemberConfig(index=config.index, retriever=config.retriever, model=config.model, recipe=config.recipe)
        for config in (configs[kind] for kind in ("bm25", "medcpt", "bge"))
    ]
    return EnvironmentConfig(
        dataset=configs["bm25"].dataset,
        retriever="hybrid",
        index=f"{configs['bm25'].index}-hybrid",
        hybrid=HybridConfig(members=members, depth=depth),
    )


def test_a_hybrid_adds_the_reciprocal_ranks_of_its_members_to_its_depth(configs, models):
    expected = []
    for terms in PROBES:
        scores = {}
        for kind in ("bm25", "medcpt", "bge"):
            for rank, position in enumerate(order(scores_by_hand(kind, models, terms))[:3], start=1):
                scores[position] = scores.get(position, 0) + 1 / (60 + rank)
        expected.append(scores)
    environment = opened(hybrid(configs, 3))
    rankings = environment.rank(plans(3))
    assert environment.rank(plans(1)) == [ranking[:1] for ranking in rankings], "members rank to their depth always"
    for ranking, scores in zip(rankings, expected, strict=True):
        assert [hit.score for hit in ranking] == pytest.approx(sorted(scores.values(), reverse=True)[:3])
        assert all(hit.score == pytest.approx(scores[int(hit.id[1:])]) for hit in ranking)
    with refused(RequestError, " 7 ", " 3", "env.hybrid.depth"):
        environment.rank(plans())
    with refused(IndexFolderError, " 3 "):
        Environment.open(hybrid(configs, 4))


def test_documents_that_are_left_out_are_no_request_beyond_the_depth(configs, models):
    """A stage of three documents is asked for three of them, of which one is left out."""
    for config in (reranked(configs, models, "bm25", depth=3), hybrid(configs, 3)):
        environment = opened(config)
        (plan, *_) = plans(3)
        (ranking,) = environment.rank([plan])
        (filtered,) = environment.rank([SearchPlan(probes=plan.probes, k=3, without=(ranking[0].id,))])
        assert len(ranking) == 3
        assert [hit.id for hit in filtered] == [hit.id for hit in ranking[1:]]


def test_queries_that_are_read_only_in_part_are_counted(configs, models, tmp_path):
    """By a retriever, and by one that wraps it."""
    recipe = configs["medcpt"].recipe.model_copy(update={"query_max_length": 8})
    short = configs["medcpt"].model_copy(update={"recipe": recipe, "index": str(tmp_path / "short")})
    short_text, long_text = [("a wing", 1.0)], [("the heat transfer of a slab in a wind tunnel", 0.5)]
    plans = [
        SearchPlan(probes=tuple(map(probe, texts)), k=2)
        for texts in ([short_text], [long_text], [short_text + long_text, long_text, [(" ", 1.0)]])
    ]
    assert [ranking.truncated for ranking in opened(short).rank(plans)] == [0, 1, 2]
    assert [ranking.truncated for ranking in opened(configs["medcpt"]).rank(plans)] == [0, 0, 0]
    both = short.model_copy(update={"rerank": RerankConfig(model=models["cross"], depth=2)})
    assert [ranking.truncated for ranking in opened(both).rank(plans)] == [0, 1, 2]
