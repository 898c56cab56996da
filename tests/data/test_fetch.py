"""`data get`: from a local copy and from a Hub on loopback; interrupted, damaged, refused."""

import gzip
import hashlib
import json
from pathlib import Path

import pytest
from querylect.configs.schema import DatasetConfig
from querylect.data.check import check
from querylect.data.fetch import fetch
from querylect.data.fetched import changed_files, source_of
from querylect.data.known import HubFiles, KnownBenchmark, known, look_up
from querylect.data.load import load_dataset
from querylect.errors import DataError, HubError

from ..hub import COMMIT, Hub, serving
from ..raising import refused

pytestmark = pytest.mark.server

CORPUS = gzip.compress(
    b"".join(json.dumps({"_id": f"d{i}", "title": "", "text": f"text {i * i}"}).encode() + b"\n" for i in range(400))
)
FILES = {
    "BeIR/scifact": {
        "README.md": b"# a card\n",
        "corpus.jsonl.gz": CORPUS,
        "queries.jsonl.gz": gzip.compress(b'{"_id": "d7", "text": "what is it?"}\n'),
        "unwanted.bin": b"x" * 100,
    },
    "BeIR/scifact-qrels": {"test.tsv": b"query-id\tcorpus-id\tscore\nd7\td8\t1\n"},
}


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is no network
    hub = Hub({repo: dict(files) for repo, files in FILES.items()})
    hub.large.add("corpus.jsonl.gz")
    with serving(hub):
        yield hub


def copy_of_scifact(folder: Path) -> Path:
    for subfolder, repo in {"": "BeIR/scifact", "qrels": "BeIR/scifact-qrels"}.items():
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
        for name, content in FILES[repo].items():
            (folder / subfolder / name).write_bytes(content)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "source.json"
    }


def test_from_a_copy_and_from_the_hub_come_the_same_files(tmp_path, hub):
    entry = look_up("beir/scifact")
    copied = fetch(entry, tmp_path / "one", copy_of_scifact(tmp_path / "copy"))
    downloaded = fetch(entry, tmp_path / "two", endpoint=hub.url)
    assert contents(copied) == contents(downloaded)
    assert sorted(contents(copied)) == ["README.md", "corpus.jsonl.gz", "qrels/test.tsv", "queries.jsonl.gz"]
    metadata = json.loads((downloaded / "source.json").read_text())
    assert metadata["source"]["revisions"] == {"BeIR/scifact": COMMIT, "BeIR/scifact-qrels": COMMIT}
    assert metadata["files"]["corpus.jsonl.gz"]["sha256"] == hashlib.sha256(CORPUS).hexdigest()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "one", "two"]
    dataset = load_dataset(DatasetConfig(kind="mteb", path=str(downloaded)))
    assert (dataset.name, len(dataset.corpus), dataset.ignore_identical_ids) == ("scifact", 400, True)
    assert dataset.splits["test"].qrels == {"d7": {"d8": 1}}


def test_a_broken_download_goes_on_where_it_stopped(tmp_path, hub, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 500)  # what it keeps of a broken answer
    entry, target = look_up("beir/scifact"), tmp_path / "scifact"
    hub.refused.add("queries.jsonl.gz")
    with refused(HubError, "BeIR/scifact"):
        fetch(entry, target, endpoint=hub.url)
    assert not target.exists()
    hub.refused.clear()
    hub.ranges.clear()
    fetch(entry, target, endpoint=hub.url)
    assert "corpus.jsonl.gz" not in [name for name, _ in hub.ranges]
    assert contents(target)["corpus.jsonl.gz"] == CORPUS


def test_offline_says_what_to_do(tmp_path):
    with refused(HubError, "BeIR/scifact", "--from FOLDER"):
        fetch(look_up("beir/scifact"), tmp_path / "x", endpoint="http://127.0.0.1:9")
    assert not (tmp_path / "x").exists()


def test_what_the_hub_does_not_have_is_told(tmp_path, hub):
    with refused(DataError, "no/where"):
        fetch(look_up("hub:no/where"), tmp_path / "x", endpoint=hub.url)
    wrong = KnownBenchmark("w", "mteb", "", "", (HubFiles("BeIR/scifact", ("corpus/*.parquet",)),))
    with refused(DataError, "corpus/*.parquet", "README.md"):
        fetch(wrong, tmp_path / "y", endpoint=hub.url)


def test_a_copy_is_checked_too(tmp_path):
    copy = copy_of_scifact(tmp_path / "copy")
    with refused(DataError, tmp_path / "absent"):
        fetch(look_up("beir/scifact"), tmp_path / "x", tmp_path / "absent")
    with refused(DataError, copy, "*/*.parquet, README.md"):
        fetch(look_up("ragbench"), tmp_path / "y", copy)
    target = fetch(look_up("beir/scifact"), tmp_path / "z", copy)
    with refused(DataError, target):
        fetch(look_up("beir/scifact"), target, copy)
    with refused(DataError, "finagentbench", "Kaggle"):
        fetch(look_up("finagentbench"), tmp_path / "w")


def test_check_tells_counts_overlap_and_changed_files(tmp_path):
    target = fetch(look_up("beir/scifact"), tmp_path / "scifact", copy_of_scifact(tmp_path / "copy"))
    report = "\n".join(check(target))
    assert "4 files, each with the sha256" in report
    assert "scifact: 400 documents, documents with the id of a question are ignored" in report
    assert "test: 1 questions, 1 judgements above 0 (1.00 a question; grades 1)" in report
    assert "beir/scifact, test: 400 documents, not 5,183; 1 questions, not 300; 1 judgements, not 339" in report
    (target / "corpus.jsonl.gz").write_bytes(b"other")
    with refused(DataError, "1 of 4", "corpus.jsonl.gz"):
        list(check(target))
    assert changed_files(target, source_of(target).files) == ["corpus.jsonl.gz"]


def test_all_sets_of_the_paper_are_known():
    names = "arguana msmarco trec-covid nfcorpus nq hotpotqa fiqa webis-touche2020 quora dbpedia-entity scidocs fever "
    names += "climate-fever scifact"
    entries = known()
    for name in names.split():
        entry = entries[f"beir/{name}"]
        assert entry.ignore_identical_ids
        assert entry.licence
        assert entry.split == ("validation" if name == "msmarco" else "test")
    assert len([name for name in entries if name.startswith("beir/")]) == 14
    with refused(DataError, "'scifacts'", "ragbench"):
        look_up("scifacts")


def test_the_real_scifact_is_counted_as_published(realdata, tmp_path):
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        target = tmp_path / "scifact" / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((realdata / "scifact" / name).read_bytes())
    assert "beir/scifact, test: as many documents, questions and judgements as published" in list(
        check(tmp_path / "scifact")
    )
