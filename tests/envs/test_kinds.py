"""Every kind of retriever, signed weights included, against scores computed by hand with plain transformers."""

import json
import os

import httpx
import numpy as np
import pytest
import torch
from querylect.configs.environment import (
    ClientConfig,
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
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.index import open_index
from querylect.envs.plan import Probe, SearchPlan, Term
from querylect.envs.retrievers.tokenizer import WordTokenizer
from querylect.envs.server.app import create_app
from querylect.errors import IndexFolderError, RequestError
from querylect.methods.method import Runner
from querylect.methods.methods import make_method
from querylect.rewriters.retriever_info import RetrieverInfo
from transformers import AutoModelForSequenceClassification

from ..encoders import DOCUMENTS, hidden_states, loaded, save_bert, save_cross_encoder
from ..raising import refused

pytestmark = pytest.mark.server

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


@pytest.fixture(scope="module", autouse=True)
def _in_parts():
    """About one document in a part."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("querylect.envs.build.BLOCK_BYTES", 100)
        yield


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {
        "one": save_bert(folder / "one"),
        "two": save_bert(folder / "two", seed=1),
        "cross": save_cross_encoder(folder / "cross"),
    }


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    split = Split([Question("q", "heat")], {"q": {"d0": 1}})
    save_beir(Dataset("tiny", CORPUS, {"test": split}), folder / "beir")
    return DatasetConfig(path=str(folder / "beir"))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of the indexes that no test changes; each is built when it is first opened."""
    return tmp_path_factory.mktemp("indexes")


@pytest.fixture(scope="module")
def configs(dataset, models, folder):
    """Settings of an index of each kind in that folder."""
    return {
        kind: EnvironmentConfig(dataset=dataset, index=str(folder / kind), **settings(models))
        for kind, (_, settings) in KINDS.items()
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


KINDS = {
    "bm25": (bm25_by_hand, lambda models: {"retriever": "bm25"}),
    "medcpt": (
        medcpt_by_hand,
        lambda models: {
            "retriever": "medcpt",
            "model": models["one"],
            "recipe": RecipeConfig(query_model=models["two"]),
        },
    ),
    "bge": (bge_by_hand, lambda models: {"retriever": "bge-small-en-v1.5", "model": models["one"]}),
    "yaml": (
        generic_by_hand,
        lambda models: {
            "retriever": models["one"],
            "recipe": RecipeConfig(
                pooling="mean",
                similarity="cos",
                query_prompt="query: ",
                document_prompt="passage: ",
            ),
        },
    ),
}
ONLY_ABOVE_0 = {"bm25"}


def scores_by_hand(kind, models, terms):
    """Score of every ranked document for a probe, by position in the corpus."""
    by_hand = KINDS[kind][0]
    weighted_texts = [(text, weight) for text, weight in terms if text.strip() and weight]
    scores = {
        position: sum(weight * by_hand(models, text, document) for text, weight in weighted_texts)
        for position, document in enumerate(CORPUS)
    }
    return {position: score for position, score in scores.items() if score > 0 or kind not in ONLY_ABOVE_0}


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


@pytest.mark.parametrize("kind", KINDS)
def test_signed_probes_score_as_computed_by_hand_in_an_index_of_two_shards(kind, configs, models, tmp_path):
    """The index is the same as that of one process."""
    expected = [scores_by_hand(kind, models, terms) for terms in PROBES]
    cut = configs[kind].model_copy(update={"index": str(tmp_path / "cut")})
    assert sum(build_shard(cut, shard, 2) for shard in (2, 1)) > 2
    manifest = merge_index(cut)
    assert open_index(cut.index).meta == manifest
    assert json.loads((tmp_path / "cut" / "meta.json").read_text())["documents"] == ALL
    environment = opened(configs[kind])
    assert manifest.index_hash == environment.info().index_hash
    check(Environment.open(cut), expected)
    check(environment, expected, k=3)


@pytest.mark.parametrize("kind", ["bm25", "yaml"])
def test_a_cross_encoder_scores_the_best_documents_of_any_kind(kind, configs, models):
    rerank = RerankConfig(model=models["cross"], depth=4)
    config = configs[kind].model_copy(update={"rerank": rerank})
    expected = []
    for terms in PROBES:
        candidates = order(scores_by_hand(kind, models, terms))[:4]
        weighted_texts = [(text, weight) for text, weight in terms if text.strip() and weight]
        logits = {
            position: [(weight, cross_by_hand(models, text, CORPUS[position])) for text, weight in weighted_texts]
            for position in candidates
        }
        expected.append({position: sum(w * x for w, x in parts) for position, parts in logits.items()})
    environment = opened(config)
    check(environment, expected, k=4)
    check(environment, expected, k=2)


def reranked(configs, models, **changes):
    """Settings of BM25 with a second stage."""
    return configs["bm25"].model_copy(update={"rerank": RerankConfig(**{"model": models["cross"], **changes})})


def test_documents_that_are_left_out_are_no_request_beyond_the_depth(configs, models, folder):
    """A stage of three documents is asked for three of them, of which one is left out."""
    for config in (reranked(configs, models, depth=3), hybrid(configs, folder, depth=3)):
        environment = opened(config)
        (plan, *_) = plans(3)
        (ranking,) = environment.rank([plan])
        (filtered,) = environment.rank([SearchPlan(probes=plan.probes, k=3, without=(ranking[0].id,))])
        assert len(ranking) == 3
        assert [hit.id for hit in filtered] == [hit.id for hit in ranking[1:]]


def test_queries_that_are_read_only_in_part_are_counted(configs, models, tmp_path, run_app):
    """By a retriever, by those that wrap it, through the service, and in a method's costs."""

    def short(kind):
        recipe = (configs[kind].recipe or RecipeConfig()).model_copy(update={"query_max_length": 8})
        return configs[kind].model_copy(update={"recipe": recipe, "index": str(tmp_path / kind)})

    config = short("medcpt")
    short_text, long_text = "a wing", "the heat transfer of a slab in a wind tunnel"
    plans = [
        SearchPlan.of(short_text, k=2),
        SearchPlan.of(long_text, k=2),
        SearchPlan(
            probes=[probe([(short_text, 1.0), (long_text, 0.5)]), probe([(long_text, 1.0)]), probe([(" ", 1.0)])], k=2
        ),
    ]
    environment = opened(config)
    assert [ranking.truncated for ranking in environment.rank(plans)] == [0, 1, 2]
    assert [ranking.truncated for ranking in opened(configs["medcpt"]).rank(plans)] == [0, 0, 0]
    members = [member_of(configs["bm25"]), member_of(config)]
    both = hybrid(configs, tmp_path).model_copy(update={"hybrid": HybridConfig(members=members)})
    assert [ranking.truncated for ranking in opened(both).rank(plans)] == [0, 1, 2]
    with (
        run_app(create_app(environment)) as url,
        EnvironmentClient(ClientConfig(), [url]) as client,
    ):
        assert [hits.truncated for hits in client.search(plans)] == [0, 1, 2]
        assert [hits.truncated for hits in client.search(plans)] == [0, 1, 2], "from the cache, too"
        assert "querylect_truncated_texts_total 6.0" in httpx.get(f"{url}/metrics").text
        method = make_method("std_rag", {"answers": False}, RetrieverInfo("medcpt", "dense"))
        questions = [Question("a", short_text), Question("b", long_text)]
        assert [run.cost.truncated for run in Runner(None, {"": client}).run(method, questions)] == [0, 1]


def member_of(config):
    """An environment's settings as those of a member of a hybrid."""
    return MemberConfig(index=config.index, retriever=config.retriever, model=config.model, recipe=config.recipe)


def hybrid(configs, folder, depth=100):
    """Settings of a hybrid whose members lie in the folder, too."""
    members = [
        member_of(configs[kind].model_copy(update={"index": str(folder / kind)})) for kind in ("bm25", "medcpt", "bge")
    ]
    return EnvironmentConfig(
        dataset=configs["bm25"].dataset,
        retriever="hybrid",
        index=str(folder / f"hybrid-{depth}"),
        hybrid=HybridConfig(members=members, depth=depth),
    )


def test_a_hybrid_adds_the_reciprocal_ranks_of_its_members_to_its_depth(configs, models, folder):
    expected, depth = [], 3
    for terms in PROBES:
        scores = {}
        for kind in ("bm25", "medcpt", "bge"):
            for rank, position in enumerate(order(scores_by_hand(kind, models, terms))[:depth], start=1):
                scores[position] = scores.get(position, 0) + 1 / (60 + rank)
        expected.append(scores)
    k = min(depth, len(CORPUS))
    environment = opened(hybrid(configs, folder, depth))
    rankings = environment.rank(plans(k))
    assert environment.rank(plans(1)) == [ranking[:1] for ranking in rankings], "members rank to their depth always"
    for ranking, scores in zip(rankings, expected, strict=True):
        assert len(ranking) == min(k, len(scores))
        assert [hit.score for hit in ranking] == pytest.approx(sorted(scores.values(), reverse=True)[:k])
        assert all(hit.score == pytest.approx(scores[int(hit.id[1:])]) for hit in ranking)
    with refused(RequestError, " 7 ", " 3", "env.hybrid.depth"):
        environment.rank(plans())
    with refused(IndexFolderError, " 3 "):
        Environment.open(hybrid(configs, folder, depth=4).model_copy(update={"index": str(folder / "hybrid-3")}))
