"""Retrieval from Milvus: the rankings of the local index, from an embedded database and from a served one."""

import json
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest
from pydantic import ValidationError
from querylect.configs.environment import (
    DatasetConfig,
    EnvironmentConfig,
    HybridConfig,
    MemberConfig,
    MilvusConfig,
    RecipeConfig,
    VectorsConfig,
)
from querylect.data.types import Document
from querylect.envs.builder.build import build_index, build_shard, merge_index
from querylect.envs.environment import Environment
from querylect.envs.retrievers.milvus import check_limits
from querylect.envs.retrievers.milvus_collection import Collection
from querylect.envs.retrievers.open import verify_indexes
from querylect.errors import (
    ConfigError,
    EnvironmentUnavailableError,
    IndexFolderError,
    MissingPackageError,
    RequestError,
)

from ..encoders import save_bert
from ..raising import refused
from ..wings import PROBES, documents, plan, save

CORPUS = [*documents(200), Document("blank", "", "the of and")]
"""Many equal documents, and one without a word for BM25."""
ODD_PROBES = [
    [("heat", 1.0), ("heat", -0.999), ("slab", 0.001)],
    [("heat heat wing", 1.0)],
    [("unheard", 1.0)],
]
PLANS = [plan(terms, k) for k in (1, 5, 201) for terms in (*PROBES, *ODD_PROBES)]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return save(tmp_path_factory.mktemp("data") / "mine", CORPUS)


@pytest.fixture(scope="module")
def retrievers(tmp_path_factory):
    """The settings of each retriever: BM25, and a dense one with random weights."""
    model = save_bert(tmp_path_factory.mktemp("bert") / "model")
    recipe = RecipeConfig(pooling="cls", similarity="cos")
    return {"bm25": {}, "dense": {"retriever": "contriever", "model": model, "recipe": recipe}}


def settings(dataset, index, **changes):
    return EnvironmentConfig(dataset=dataset, index=str(index), block_mib=2e-3, **changes)


def built(config):
    build_index(config, overwrite=True)
    return Environment.open(config)


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_signed_probes_rank_and_score_as_with_the_local_index(kind, dataset, retrievers, tmp_path):
    local = built(settings(dataset, tmp_path / "local", **retrievers[kind]))
    milvus = built(settings(dataset, tmp_path / "milvus", engine="milvus", **retrievers[kind]))
    expected = local.search(PLANS)
    assert milvus.search(PLANS) == expected
    assert [milvus.search([single])[0] for single in PLANS] == expected
    assert milvus.card["engine"] == "milvus"
    assert milvus.card.get("frequent_terms") == local.card.get("frequent_terms")
    assert milvus.index_hash != local.index_hash
    long = plan([("heat " * 600, 1.0), ("wing", 1.0)])
    assert [environment.search([long])[0].truncated for environment in (local, milvus)] == [int(kind == "dense")] * 2


def test_an_approximate_index_scores_exactly_what_it_retrieves(dataset, retrievers, tmp_path):
    local = built(settings(dataset, tmp_path / "local", **retrievers["dense"]))
    hnsw = MilvusConfig(index_type="HNSW", index_params={"M": 16, "efConstruction": 100}, search_params={"ef": 300})
    config = settings(dataset, tmp_path / "milvus", engine="milvus", milvus=hnsw, **retrievers["dense"])
    exact = {hit.id: hit.score for hit in local.search([plan(PROBES[0], 201)])[0]}
    (ranking,) = built(config).search([plan(PROBES[0], 20)])
    assert [exact[hit.id] for hit in ranking] == [hit.score for hit in ranking]
    flat = config.model_copy(update={"milvus": MilvusConfig()})
    with refused(IndexFolderError, "HNSW", "FLAT"):
        Environment.open(flat)
    assert (
        Environment.open(config).settings_hash
        != Environment.open(
            config.model_copy(update={"milvus": hnsw.model_copy(update={"search_params": {"ef": 301}})})
        ).settings_hash
    )


def test_members_of_a_hybrid_may_be_in_milvus(dataset, retrievers, tmp_path):
    def hybrid(engine):
        members = [
            MemberConfig(index=str(tmp_path / engine / kind), engine=engine, **{"retriever": "bm25", **values})
            for kind, values in retrievers.items()
        ]
        return built(
            settings(dataset, tmp_path / engine / "hybrid", retriever="hybrid", hybrid=HybridConfig(members=members))
        )

    plans = [single for single in PLANS if single.k < 201]
    assert hybrid("milvus").search(plans) == hybrid("bm25s").search(plans)


@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_any_way_to_build_gives_the_same_index(kind, dataset, retrievers, tmp_path):
    """Blocks of another size, several processes, and shards; each in a database of its own."""
    reference = built(settings(dataset, tmp_path / "whole", engine="milvus", **retrievers[kind]))
    coarse = settings(dataset, tmp_path / "coarse", engine="milvus", **retrievers[kind])
    coarse = coarse.model_copy(update={"block_mib": 1.0})
    assert built(coarse).index_hash == reference.index_hash
    workers = settings(dataset, tmp_path / "workers", engine="milvus", **retrievers[kind])
    assert build_index(workers, workers=2).index_hash == reference.index_hash
    shards = settings(dataset, tmp_path / "shards", engine="milvus", **retrievers[kind])
    for shard in (1, 2):
        build_shard(shards, shard, 2)
    assert merge_index(shards).index_hash == reference.index_hash
    assert Environment.open(shards).search(PLANS) == reference.search(PLANS)


def recorded_rows(monkeypatch):
    """A list that collects the keys of all rows that are sent from now on."""
    call, sent = Collection._call, []

    def recorded(self, action, seconds, ask, *arguments, **options):
        if getattr(ask, "__name__", "") == "upsert":
            sent.extend(row["position"] for row in arguments[1])
        return call(self, action, seconds, ask, *arguments, **options)

    monkeypatch.setattr(Collection, "_call", recorded)
    return sent


def test_a_load_that_was_interrupted_goes_on(dataset, tmp_path, monkeypatch):
    config = settings(dataset, tmp_path / "index", engine="milvus", milvus=MilvusConfig(connections=1))
    send, blocks = Collection._send, []

    def broken(self, verify, keys, vectors):
        if len(blocks) == 3:
            raise EnvironmentUnavailableError("gone")
        blocks.append(keys)
        send(self, verify, keys, vectors)

    with monkeypatch.context() as patch:
        patch.setattr(Collection, "_send", broken)
        with pytest.raises(EnvironmentUnavailableError):
            build_index(config)
    assert not (tmp_path / "index").exists()
    sent = recorded_rows(monkeypatch)
    environment = built(config)
    loaded_first = {key for keys in blocks for key in keys}
    assert loaded_first.isdisjoint(sent)
    assert len(loaded_first) + len(sent) == len(CORPUS) - 1
    assert environment.search(PLANS) == built(settings(dataset, tmp_path / "local")).search(PLANS)


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_wrong_rows_are_sent_again_and_refused_once_complete(kind, dataset, retrievers, tmp_path, monkeypatch):
    """One wrong row that no sample shows, and a block with the right number of rows and other content."""
    from pymilvus import MilvusClient

    monkeypatch.setattr("querylect.envs.retrievers.milvus_collection._ROWS", 10)
    config = settings(dataset, tmp_path / "index", engine="milvus", **retrievers[kind])
    config = config.model_copy(update={"block_mib": 1.0})
    with monkeypatch.context() as patch:
        patch.setattr(Collection, "rename", lambda *_: pytest.fail("killed before the collection was complete"))
        with pytest.raises(pytest.fail.Exception):
            build_index(config)
    with refused(IndexFolderError, str(tmp_path / "index")):
        Environment.open(config)
    client = MilvusClient(f"{tmp_path}/index.milvus.db")
    (name,) = client.list_collections()
    assert name.endswith("_loading")

    def replace(name, rows, sources):
        stored = {row["position"]: row["vector"] for row in client.get(name, sources, ["position", "vector"])}
        pairs = zip(rows, sources, strict=True)
        client.upsert(name, [{"position": row, "vector": stored[source]} for row, source in pairs])

    replace(name, [13, *range(50, 60)], [14, *range(51, 60), 50])
    sent = recorded_rows(monkeypatch)
    environment = built(config)
    assert sorted(sent) == [*range(10, 20), *range(50, 60)]
    assert client.list_collections() == [name.removesuffix("_loading")]
    assert environment.search(PLANS) == built(settings(dataset, tmp_path / "local", **retrievers[kind])).search(PLANS)
    name = collection_of(config)["collection"]
    assert "13" not in collection_of(config)["checks"]
    verify_indexes(config)
    replace(name, [13], [14])
    with refused(IndexFolderError, name):
        verify_indexes(config)
    sent.clear()
    with refused(IndexFolderError, name, 10, 19):
        build_index(config, overwrite=True)
    assert sent == []


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_blank_lines_of_the_corpus_shift_no_row(kind, dataset, retrievers, tmp_path):
    lines = (Path(dataset.path) / "corpus.jsonl").read_text().splitlines(keepends=True)
    shutil.copytree(dataset.path, tmp_path / "data")
    (tmp_path / "data" / "corpus.jsonl").write_text(
        "".join(line + "\n" * (number % 3 == 1) for number, line in enumerate(lines))
    )
    gaps = DatasetConfig(kind="beir", path=str(tmp_path / "data"))
    local, milvus = (
        built(settings(gaps, tmp_path / engine, engine=engine, **retrievers[kind])) for engine in ("bm25s", "milvus")
    )
    assert milvus.search(PLANS) == local.search(PLANS)


def collection_of(config):
    return json.loads((Path(config.index) / "collection.json").read_text())


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_a_collection_that_was_changed_is_refused(kind, dataset, retrievers, tmp_path):
    from pymilvus import MilvusClient

    config = settings(dataset, tmp_path / "index", engine="milvus", **retrievers[kind])
    build_index(config)
    described = collection_of(config)
    client = MilvusClient(f"{tmp_path}/index.milvus.db")
    name, row = described["collection"], int(list(described["checks"])[-1])
    stored = client.get(name, [row], ["position", "vector"])[0]
    changed_vector = dict.fromkeys(stored["vector"], 9.0) if kind == "bm25" else [0.5] * len(stored["vector"])
    client.upsert(name, [{"position": row, "vector": changed_vector}])
    with refused(IndexFolderError, name, row):
        Environment.open(config)
    client.upsert(name, [{"position": row, "vector": stored["vector"]}])
    Environment.open(config)
    client.delete(name, ids=[row])
    with refused(IndexFolderError, name, described["rows"], described["rows"] - 1):
        Environment.open(config)
    client.drop_collection(name)
    with refused(IndexFolderError, name):
        Environment.open(config)
    assert built(config).search(PLANS[:3])


def test_a_missing_client_is_named_with_its_extra(dataset, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pymilvus", None)
    with refused(MissingPackageError, "'.[milvus]'"):
        build_index(settings(dataset, tmp_path / "index", engine="milvus"))


def test_an_embedded_database_is_opened_by_one_process(dataset, tmp_path):
    config = settings(dataset, tmp_path / "index", engine="milvus")
    build_index(config)
    program = f"from pymilvus import MilvusClient; MilvusClient({str(tmp_path / 'index.milvus.db')!r})"
    second_process = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False
    )
    assert second_process.returncode != 0, "this process has it open"
    holder = f"import time; {program}; print('open', flush=True); time.sleep(600)"
    uri = str(tmp_path / "other.db")
    process = subprocess.Popen(
        [sys.executable, "-c", holder.replace(str(tmp_path / "index.milvus.db"), uri)], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"open\n"
        taken = config.model_copy(update={"milvus": MilvusConfig(uri=uri), "index": str(tmp_path / "second")})
        with refused(ConfigError, uri, "env.milvus.uri"):
            build_index(taken)
    finally:
        process.kill()
        process.communicate()
    with pytest.raises(ValidationError, match=r"env\.workers"):
        settings(dataset, tmp_path / "index", engine="milvus", workers=2)


class Served:
    """milvus-lite's server in a process of its own."""

    def __init__(self, folder):
        self.folder = folder
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self.process = None

    def start(self):
        command = ["-m", "milvus_lite", "server", "--data-dir", str(self.folder), "--host", "127.0.0.1"]
        self.process = subprocess.Popen(
            [sys.executable, *command, "--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 60
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None
            time.sleep(0.1)
        raise AssertionError("the server does not listen")

    def stop(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def served(tmp_path):
    server = Served(tmp_path / "served")
    server.start()
    yield server
    server.stop()


def test_a_served_collection_ranks_alike_and_its_outage_is_no_ranking(dataset, tmp_path, served, caplog):
    milvus = MilvusConfig(uri=served.url, deadline=2.0, build_deadline=60.0)
    config = settings(dataset, tmp_path / "index", engine="milvus", milvus=milvus, workers=2)
    environment = built(config)
    expected = built(settings(dataset, tmp_path / "local")).search(PLANS)
    assert environment.search(PLANS) == expected
    served.stop()
    with refused(EnvironmentUnavailableError, served.url, "env.milvus.deadline"):
        environment.search(PLANS)
    with refused(EnvironmentUnavailableError, served.url):
        Environment.open(config)
    assert not [record for record in caplog.records if record.name.startswith("pymilvus") and record.levelno >= 40]
    served.start()
    assert eventually(lambda: Environment.open(config)).search(PLANS) == expected
    assert eventually(lambda: environment.search(PLANS)) == expected


def run_shards(config, kind):
    """Both shards at the same time: those of BM25 in processes, and all others, which import torch, in threads."""
    if kind != "bm25":
        with futures.ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda shard: build_shard(config, shard, 2), (1, 2)))
        return
    program = (
        "import sys; from querylect.configs.environment import EnvironmentConfig as Config; "
        "from querylect.envs.builder.build import build_shard; "
        "build_shard(Config.model_validate_json(sys.argv[1]), int(sys.argv[2]), 2)"
    )
    command = [sys.executable, "-c", program, config.model_dump_json()]
    for process in [subprocess.Popen([*command, str(shard)]) for shard in (1, 2)]:
        assert process.wait(300) == 0


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_shards_load_one_collection_at_the_same_time(kind, dataset, retrievers, tmp_path, served, monkeypatch):
    from pymilvus import MilvusClient

    milvus = MilvusConfig(uri=served.url)
    config = settings(dataset, tmp_path / "index", engine="milvus", milvus=milvus, **retrievers[kind])
    client = MilvusClient(served.url)
    if kind == "bm25":  # whose weights depend on all parts
        build_shard(config, 1, 2)
        assert client.list_collections() == []
    run_shards(config, kind)
    if kind == "bm25":
        run_shards(config, kind)
    (name,) = client.list_collections()
    assert name.endswith("_loading")
    rows = client.query(name, filter="", output_fields=["count(*)"], consistency_level="Strong")
    assert rows[0]["count(*)"] == len(CORPUS) - (kind == "bm25")
    with refused(IndexFolderError, str(tmp_path / "index")):
        Environment.open(config)
    sent = recorded_rows(monkeypatch)
    manifest = merge_index(config)
    assert sent == [], "the merge only compares"
    assert client.list_collections() == [name.removesuffix("_loading")]
    local = built(settings(dataset, tmp_path / "local", **retrievers[kind]))
    assert Environment.open(config).search(PLANS) == local.search(PLANS)
    embedded = settings(dataset, tmp_path / "embedded", engine="milvus", **retrievers[kind])
    assert build_index(embedded).index_hash == manifest.index_hash


def eventually(call):
    """The result of a call after the client reconnects: the longer the outage, the longer the pauses."""
    until = time.monotonic() + 120
    while True:
        try:
            return call()
        except EnvironmentUnavailableError:
            assert time.monotonic() < until


class Refusing(grpc.GenericRpcHandler):
    """A server that refuses every call."""

    def __init__(self, code):
        self.code = code

    def service(self, details):
        def refuse(request, context):
            context.abort(self.code, "no such user")

        return grpc.unary_unary_rpc_method_handler(refuse)


def test_a_server_that_wants_another_token_is_told_apart_from_an_outage(dataset, tmp_path):
    server = grpc.server(futures.ThreadPoolExecutor(2), handlers=[Refusing(grpc.StatusCode.UNAUTHENTICATED)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        milvus = MilvusConfig(uri=f"http://127.0.0.1:{port}", deadline=5.0)
        with refused(ConfigError, "QUERYLECT_MILVUS_TOKEN", f"127.0.0.1:{port}"):
            build_index(settings(dataset, tmp_path / "index", engine="milvus", milvus=milvus))
    finally:
        server.stop(None)


def test_settings_that_milvus_cannot_follow_are_refused(dataset, retrievers, tmp_path):
    with refused(ConfigError, "python:", "milvus"):
        build_index(settings(dataset, tmp_path / "index", engine="milvus", retriever=f"python:{__file__}"))
    vectors = VectorsConfig(search="hnsw")
    with refused(ConfigError, "hnsw", "env.milvus.index_type"):
        build_index(settings(dataset, tmp_path / "index", engine="milvus", vectors=vectors, **retrievers["dense"]))
    with refused(ConfigError, "DISKANN", "env.milvus.uri"):
        milvus = MilvusConfig(index_type="DISKANN")
        build_index(settings(dataset, tmp_path / "index", engine="milvus", milvus=milvus, **retrievers["dense"]))
    for uri in ("http://me:secret@host:1", "ftp://host", "http://", "http://host:port", "name", "host:19530"):
        with refused(ConfigError, "env.milvus.uri"):
            build_index(settings(dataset, tmp_path / "index", engine="milvus", milvus=MilvusConfig(uri=uri)))
        assert not list(tmp_path.iterdir()), "nothing is written before"
    check_limits([16_384, 16_385], 16_384)
    with refused(RequestError, 16_385):
        check_limits([10, 16_385], 10**6)


def test_cranfield_ranks_as_with_the_local_index(realdata, tmp_path):
    data = DatasetConfig(kind="beir", path=str(realdata / "cranfield"))
    local, milvus = (
        built(EnvironmentConfig(dataset=data, index=str(tmp_path / engine), engine=engine))
        for engine in ("bm25s", "milvus")
    )
    drawn, plans = random.Random(0), []
    for question in local._dataset.splits["test"].questions[:60]:
        words = question.text.split()
        expansion = " ".join(drawn.sample(words, min(3, len(words))))
        plans.append(plan([(question.text, 1.0), (expansion, drawn.choice([0.5, -0.7, 2.0]))], 10))
    assert milvus.search(plans) == local.search(plans)


@pytest.mark.parametrize("kind", ["bm25", "dense"])
def test_answers_are_bounded_in_bytes_and_see_every_row(kind, dataset, retrievers, tmp_path, monkeypatch):
    """One request per query where rankings are long; rankings longer than the limit come without their vectors."""
    local = built(settings(dataset, tmp_path / "local", **retrievers[kind])).search(PLANS)
    environment = built(settings(dataset, tmp_path / "index", engine="milvus", **retrievers[kind]))
    limit, call, answers = 4096, Collection._call, []

    def measured(self, action, seconds, ask, *arguments, **options):
        answer = call(self, action, seconds, ask, *arguments, **options)
        if action in ("a search", "reading"):
            assert options["consistency_level"] == "Strong"
            hits = [hit["entity"] for ranking in answer for hit in ranking] if action == "a search" else answer
            stored = [hit["vector"] for hit in hits if "vector" in hit]
            answers.append((action, sum(8 * len(row) if kind == "bm25" else 4 * len(row) for row in stored)))
        return answer

    monkeypatch.setattr(Collection, "_call", measured)
    environment.search(PLANS)
    unlimited, answers[:] = list(answers), []
    monkeypatch.setattr("querylect.envs.retrievers.milvus_collection._ANSWER_BYTES", limit)
    assert environment.search(PLANS) == local
    assert max(size for _, size in unlimited) > limit >= max(size for _, size in answers) > limit / 2
    assert ("a search", 0) in answers
    assert {action for action, _ in answers} == {"a search", "reading"}
