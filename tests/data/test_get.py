"""`data get`: from a local copy and from a Hub on loopback; interrupted, unknown, measured as published."""

import gzip
import json
from functools import partial

import pytest
from huggingface_hub import snapshot_download
from querylect.data.beir import load_beir
from querylect.data.get import get
from querylect.errors import DataError, HubError

from ..command import end
from ..hub import Hub, Repository, serving
from ..jsonl import write_jsonl
from ..raising import refused

pytestmark = pytest.mark.server

CORPUS = gzip.compress(
    b"".join(json.dumps({"_id": f"d{i}", "title": "", "text": f"text {i * i}"}).encode() + b"\n" for i in range(400))
)
FILES = {
    "BeIR/scifact": {
        "README.md": b"---\nlicense: [cc-by-4.0, other]\n---\n# a card\n",
        "corpus.jsonl.gz": CORPUS,
        "queries.jsonl.gz": gzip.compress(b'{"_id": "d7", "text": "what is it?"}\n'),
        "unwanted.bin": b"x" * 100,
    },
    "BeIR/scifact-qrels": {"test.tsv": b"query-id\tcorpus-id\tscore\nd7\td8\t1\n"},
}


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub = Hub(token=None)
    for repo, files in FILES.items():
        hub.repositories[repo] = Repository(private=False)
        hub.repositories[repo].commit("main", "files", files)
    with serving(hub):
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)  # loopback is no network
        there = partial(snapshot_download, endpoint=hub.url, cache_dir=tmp_path / "cache")
        monkeypatch.setattr("huggingface_hub.snapshot_download", there)
        yield hub


def copy_of_scifact(folder):
    for subfolder, repo in {"": "BeIR/scifact", "qrels": "BeIR/scifact-qrels"}.items():
        (folder / subfolder).mkdir(parents=True, exist_ok=True)
        for name, content in FILES[repo].items():
            (folder / subfolder / name).write_bytes(content)
    return folder


def test_from_a_copy_and_from_the_hub_comes_the_same_dataset(tmp_path, hub, capsys):
    copy = copy_of_scifact(tmp_path / "copy")
    assert end("data", "get", "beir/scifact", "--from", copy, "--to", tmp_path / "one") == 0
    assert "scifact: 400 documents; questions: 1 test\nlicence: BEIR" in capsys.readouterr().out
    get("beir/scifact", tmp_path / "two")
    copied, downloaded = (load_beir(tmp_path / name) for name in ("one", "two"))
    assert downloaded == copied
    assert (copied.name, len(copied.corpus), copied.ignore_identical_ids) == ("scifact", 400, True)
    assert copied.splits["test"].qrels == {"d7": {"d8": 1}}
    assert copied.licence.endswith("on its card: cc-by-4.0, other")
    assert not any(request.endswith("unwanted.bin") for request in hub.requests)


def test_a_broken_download_goes_on_where_it_stopped(tmp_path, hub):
    hub.refuse = lambda method, path: 403 if path.endswith("queries.jsonl.gz") and method == "GET" else None
    with refused(HubError, "BeIR/scifact", "--from FOLDER"):
        get("beir/scifact", tmp_path / "scifact")
    assert not (tmp_path / "scifact").exists()
    hub.refuse = lambda method, path: None
    hub.requests.clear()
    get("beir/scifact", tmp_path / "scifact")
    assert not any(request.startswith("GET") and request.endswith("corpus.jsonl.gz") for request in hub.requests)
    assert len(load_beir(tmp_path / "scifact").corpus) == 400
    for repository in ("no/where", "a/b/c", " "):
        with refused(HubError, repository):
            get(f"hub:{repository}", tmp_path / "x")


@pytest.mark.parametrize(
    ("name", "copy", "facts"),
    [
        ("scifacts", "copy", ["'scifacts'", "ragbench"]),
        ("ragbench", "copy", ["copy", "covidqa", "--subset"]),
        ("finagentbench", None, ["finagentbench", "Kaggle"]),
        ("medqa", "copy", ["phrases_no_exclude_train.jsonl"]),
    ],
)
def test_what_is_unknown_or_missing_is_told(tmp_path, name, copy, facts):
    copy_of_scifact(tmp_path / "copy")
    with refused(DataError, *facts):
        get(name, tmp_path / "to", None if copy is None else tmp_path / copy)


def test_the_real_scifact_is_counted_as_published_and_read_as_tables(realdata, tmp_path):
    report = get("beir/scifact", tmp_path / "scifact", realdata / "scifact")
    assert report[0] == "scifact: 5,183 documents; questions: 300 test"
    ours, tables = load_beir(realdata / "scifact"), load_beir(tmp_path / "scifact")
    assert (tables.corpus, tables.splits) == (ours.corpus, ours.splits)


def test_beirs_msmarco_is_measured_from_grade_2_in_trec_dl_and_from_1_in_clicks(tmp_path):
    """From a copy that states nothing but its files; grade 1 is the only one of clicks, and "related" in TREC DL."""
    copy = tmp_path / "copy"
    (copy / "qrels").mkdir(parents=True)
    for name, ids in {"corpus": ("d1", "d2"), "queries": ("q1", "q2")}.items():
        write_jsonl(copy / f"{name}.jsonl", *({"_id": key, "title": "", "text": key} for key in ids))
    (copy / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\nq1\td2\t2\n")
    (copy / "qrels" / "validation.tsv").write_text("query-id\tcorpus-id\tscore\nq2\td2\t1\n")
    get("beir/msmarco", tmp_path / "folder", copy)
    dataset = load_beir(tmp_path / "folder")
    levels = {name: split.relevance_level(dataset.relevance_level) for name, split in dataset.splits.items()}
    assert levels == {"validation": 1, "test": 2}
