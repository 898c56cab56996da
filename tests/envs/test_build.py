"""Builds in parts: every number of shards, and a kill -9 at any time, give the same bytes."""

import json
import os
import resource
import signal
from pathlib import Path

import pytest
from querylect.configs.schema import DatasetConfig, EnvironmentConfig
from querylect.envs import build
from querylect.envs.build import build_index, build_shard, merge_index
from querylect.envs.environment import Environment
from querylect.errors import ConfigError, DataError, IndexFolderError, StorageError

from ..forked import forked
from ..raising import refused

pytestmark = [pytest.mark.server, pytest.mark.slow]

WORDS = ["wing", "heat", "slab", "flow", "drag", "lift", "plate", "stream", "boundary", "layer"]
DOCUMENTS = 90
BLOCK = 1500
"""Bytes of about 15 documents: six parts."""


def text_of(number):
    return " ".join(WORDS[(number * factor) % 10] for factor in range(2, 3 + number % 5)) + f" word{number}"


def write_corpus(folder, documents=DOCUMENTS, changed=None):
    """A BEIR folder; blank lines, non-ASCII text, a document longer than a block and one without any word."""
    (folder / "qrels").mkdir(parents=True)
    lines = []
    for number in range(documents):
        text = {7: "heat " * 800, 30: "", 31: "é" * 40 + " Wärme"}.get(number, text_of(number))
        record = {"_id": f"d{number}", "title": f"T{number}", "text": text if number != changed else "other text"}
        lines.append(json.dumps(record, ensure_ascii=bool(number % 2)))
        if number % 20 == 3:
            lines.append("  ")
    (folder / "corpus.jsonl").write_text("\n".join(lines), encoding="utf-8")
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "heat of a wing"}\n')
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td4\t1\n")
    return DatasetConfig(path=str(folder))


@pytest.fixture(autouse=True)
def _in_parts(monkeypatch):
    monkeypatch.setattr(build, "BLOCK_BYTES", BLOCK)


@pytest.fixture
def config(tmp_path):
    """Settings of an index by BM25 in parts."""
    return EnvironmentConfig(dataset=write_corpus(tmp_path / "data"), index=str(tmp_path / "in" / "it"))


def at(config, name):
    return config.model_copy(update={"index": str(Path(config.index).with_name(name))})


def content_of(config):
    """Every file of an index but the meta.json, whose origin holds a time."""
    return {path.name: path.read_bytes() for path in Path(config.index).iterdir() if path.name != "meta.json"}


def parts_of(config):
    return sorted(Path(config.index).parent.glob(f".{Path(config.index).name}.parts/0*"))


def test_any_number_of_shards_gives_the_same_bytes(config):
    """Those of the other kinds: test_kinds.py."""
    reference = build_index(config)
    assert reference.documents == DOCUMENTS
    for shards in (1, 3):
        cut = at(config, f"cut{shards}")
        for shard in range(shards, 0, -1):
            build_shard(cut, shard, shards)
        assert merge_index(cut).index_hash == reference.index_hash
        assert content_of(cut) == content_of(config)
    assert sorted(os.listdir(Path(config.index).parent)) == ["cut1", "cut3", "it"]


KILLED = """
import os, signal, sys
from querylect.configs.schema import EnvironmentConfig
from querylect.envs import build

real, count = os.rename, 0
build.BLOCK_BYTES = int(sys.argv[3])

def build_killed(name, moment):
    def rename(*paths):
        global count
        count += 1
        if count == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        real(*paths)

    os.rename = rename
    config = EnvironmentConfig.model_validate_json(sys.argv[1])
    build.build_index(config.model_copy(update={"index": config.index + name}))

total = int(sys.argv[2])
for moment in (1, total // 2, total):
    child = os.fork()
    if not child:
        build_killed(f".{moment}", moment)
        os._exit(0)
    print(moment, os.WTERMSIG(os.waitpid(child, 0)[1]))
"""
"""Builds an index again and again, each time killed when a further folder is to be renamed."""


def test_a_build_killed_at_any_moment_goes_on_and_ends_with_the_same_bytes(config, tmp_path, monkeypatch):
    renamed, real = [], os.rename
    monkeypatch.setattr(os, "rename", lambda *paths: renamed.append(paths) or real(*paths))
    reference = build_index(config)
    monkeypatch.undo()
    builds = forked([config.model_dump_json(), str(len(renamed)), str(BLOCK)], tmp_path / "builds", os.environ, KILLED)
    ended = builds.stdout.split()
    assert ended[1::2] == [str(int(signal.SIGKILL))] * 3, builds.stderr
    for moment in ended[::2]:
        killed = at(config, f"it.{moment}")
        last = moment == ended[-2]
        assert Path(killed.index).exists() == last, "the last rename discards the parts"
        finished = {path: path.stat().st_mtime_ns for path in parts_of(killed) if not path.suffix}
        assert bool(finished) == (moment != "1")
        assert build_index(killed, overwrite=last).index_hash == reference.index_hash
        assert content_of(killed) == content_of(config)
    assert not [name for name in os.listdir(Path(config.index).parent) if name.startswith(".")]


def test_parts_of_another_build_and_parts_that_are_missing_are_refused(config, tmp_path):
    with refused(IndexFolderError, "querylect index build --shard 1/N"):
        merge_index(config)
    build_shard(config, 2, 3)
    with refused(IndexFolderError, " 0.", "--shard i/N"):
        merge_index(config)
    with refused(ConfigError, "4/3"):
        build_shard(config, 4, 3)
    with refused(IndexFolderError, "engine", ".it.parts"):
        build_index(config.model_copy(update={"engine": "rank_bm25"}))
    with refused(IndexFolderError, "origin"):
        build_shard(config.model_copy(update={"dataset": write_corpus(tmp_path / "b", changed=5)}), 1, 3)
    build_shard(config, 1, 1)
    with (tmp_path / "data" / "corpus.jsonl").open("a") as file:
        file.write('\n{"_id": "late", "text": "x"}')
    with refused(DataError, "changed"):
        merge_index(config)


def test_an_id_that_stands_twice_is_found_across_parts(config, tmp_path):
    path = tmp_path / "data" / "corpus.jsonl"
    path.write_text(path.read_text().replace('"_id": "d80"', '"_id": "d3"'))
    with refused(DataError, "'d3'", "4 and 81"):
        build_index(config)


def test_a_corpus_file_with_other_content_is_refused_and_a_copy_is_not(config, tmp_path):
    build_index(config)
    copied = config.model_copy(update={"dataset": write_corpus(tmp_path / "copy")})
    os.utime(tmp_path / "copy" / "corpus.jsonl", ns=(1, 1))
    assert Environment.open(copied).info().corpus_size == DOCUMENTS
    path = tmp_path / "copy" / "corpus.jsonl"
    path.write_text(path.read_text().replace("word44", "word45"))
    with refused(IndexFolderError, "corpus.jsonl", "content"):
        Environment.open(copied)


def test_a_full_disk_keeps_what_is_finished(config):
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (7000, hard))
    try:
        with refused(StorageError, config.index):
            build_index(config)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(parts_of(config)) > 3
    assert build_index(config).documents == DOCUMENTS
