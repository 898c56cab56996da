"""Retrieval from Milvus: the rankings of the local index, from an embedded database and from a served one."""

import json
import socket
import subprocess
import sys

import pytest
from querylect.configs.environment import EnvironmentConfig, RecipeConfig
from querylect.data.types import Document
from querylect.envs.build import build_index, build_shard, merge_index
from querylect.envs.environment import Environment
from querylect.envs.retrievers.open import verify_indexes
from querylect.errors import (
    EnvironmentUnavailableError,
    IndexFolderError,
    RequestError,
)

from ..encoders import save_bert
from ..raising import refused
from ..several import free_port
from ..waiting import until
from .wings import PROBES, documents, plan, save

pytestmark = [pytest.mark.server, pytest.mark.slow]

CORPUS = [*documents(200), Document("blank", "", "the of and")]
"""Many equal documents, and one without a word for BM25."""
POSITIVE = [
    [("heat of a wing", 1.0)],
    [("heat", 2.0), ("flow wing", 0.3)],
    [("heat heat wing", 1.0)],
    [("unheard", 1.0)],
]
SIGNED = {"bm25": POSITIVE, "dense": [*POSITIVE, *PROBES]}


@pytest.fixture(scope="module", autouse=True)
def _in_parts():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("querylect.envs.build.BLOCK_BYTES", 2000)
        yield


def plans(kind):
    return [plan(terms, k) for k in (5, 201) for terms in SIGNED[kind]]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return save(tmp_path_factory.mktemp("data") / "mine", CORPUS)


def settings(dataset, index, **changes):
    return EnvironmentConfig(dataset=dataset, index=str(index), **changes)


def built(config):
    build_index(config, overwrite=True)
    return Environment.open(config)


def same_scores(rankings, expected):
    """Equal but for Milvus's rounding, which may swap documents whose scores it makes equal."""
    for ranking, reference in zip(rankings, expected, strict=True):
        assert [hit.score for hit in ranking] == pytest.approx([hit.score for hit in reference], rel=1e-4, abs=1e-5)
        last = reference[-1].score if reference else 0.0
        scores = {hit.id: hit.score for hit in reference}
        assert all(hit.id in scores or hit.score == pytest.approx(last, rel=1e-4) for hit in ranking)
        assert all(
            hit.score == pytest.approx(scores[hit.id], rel=1e-4, abs=1e-5) for hit in ranking if hit.id in scores
        )


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_probes_score_as_with_the_local_index_also_from_shards(kind, dataset, tmp_path):
    retriever = {}
    if kind == "dense":
        recipe = RecipeConfig(pooling="cls", similarity="cos")
        retriever = {"retriever": "contriever", "model": save_bert(tmp_path / "model"), "recipe": recipe}
    local = built(settings(dataset, tmp_path / "local", **retriever))
    config = settings(dataset, tmp_path / "milvus", engine="milvus", **retriever)
    for shard in (2, 1):
        build_shard(config, shard, 2)
    merge_index(config)
    milvus = Environment.open(config)
    rankings = milvus.rank(plans(kind))
    same_scores(rankings, local.rank(plans(kind)))
    same_scores([milvus.rank([single])[0] for single in plans(kind)], rankings)
    assert milvus.info().retriever["engine"] == "milvus"
    assert milvus.info().retriever.get("frequent_terms") == local.info().retriever.get("frequent_terms")
    assert milvus.info().index_hash != local.info().index_hash
    verify_indexes(config)


def test_a_collection_without_all_rows_is_refused_and_loaded_again(dataset, tmp_path):
    from pymilvus import MilvusClient

    config = settings(dataset, tmp_path / "index", engine="milvus")
    environment = built(config)
    with refused(RequestError, "'wing'", "-0.5", "negative"):
        environment.rank([plan([("heat", 1.0), ("wing", -0.5)])])
    expected = environment.rank(plans("bm25"))
    described = json.loads((tmp_path / "index" / "collection.json").read_text())
    client, name = MilvusClient(f"{tmp_path}/index.milvus.db"), described["collection"]
    client.delete(name, ids=[3])
    for check in (Environment.open, verify_indexes):
        with refused(IndexFolderError, name, described["rows"], described["rows"] - 1):
            check(config)
    client.drop_collection(name)
    with refused(IndexFolderError, name):
        Environment.open(config)
    assert built(config).rank(plans("bm25")) == expected


@pytest.fixture
def served(tmp_path):
    """milvus-lite's server in a process of its own, and its URL."""
    port = free_port()
    command = [
        sys.executable,
        "-m",
        "milvus_lite",
        "server",
        "--data-dir",
        str(tmp_path / "served"),
        "--port",
        str(port),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def listens():
        assert process.poll() is None
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    until(listens)
    yield process, f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_a_served_collection_ranks_alike_and_its_outage_is_no_ranking(dataset, tmp_path, served, monkeypatch):
    monkeypatch.setattr("querylect.envs.retrievers.milvus._SECONDS", 2)
    process, url = served
    config = settings(dataset, tmp_path / "index", engine="milvus", milvus_uri=url)
    environment = built(config)
    same_scores(environment.rank(plans("bm25")), built(settings(dataset, tmp_path / "l")).rank(plans("bm25")))
    process.kill()
    process.wait()
    with refused(EnvironmentUnavailableError, url, "env.milvus_uri"):
        environment.rank(plans("bm25"))
