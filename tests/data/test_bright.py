"""BRIGHT's published form, in rows of our own, from the files to a served environment, an evaluation and a reader."""

import json
import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig
from querylect.data.beir import load_beir
from querylect.data.benchmarks import open_bright
from querylect.data.get import get
from querylect.data.types import Question
from querylect.envs.build import build_index
from querylect.envs.client.client import EnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.plan import SearchPlan
from querylect.envs.schemas import Step
from querylect.envs.server.app import create_app
from querylect.errors import DataError

from ..command import end
from ..raising import refused

DOCUMENTS = {
    "moths/post_0.txt": "why do moths circle a lamp at night moths lamp",
    "moths/post_1.txt": "moths circle the lamp moths",
    "moths/navigation_0.txt": "moths keep light at a fixed angle",
    "moths/navigation_1.txt": "a lamp is near so the angle changes",
    "tides/moon_0.txt": "the moon pulls the sea",
}
LONG = {
    "moths/post.txt": "moths circle a lamp",
    "moths/navigation.txt": "moths and light",
    "tides/moon.txt": "moon sea",
}
EXAMPLES = [
    {
        "query": "why do moths circle a lamp",
        "reasoning": "navigation by distant light",
        "id": "0",
        "excluded_ids": ["moths/post_0.txt", "moths/post_1.txt", "not in the corpus"],
        "gold_ids_long": ["moths/navigation.txt"],
        "gold_ids": ["moths/navigation_0.txt", "moths/navigation_1.txt"],
    },
    {
        "query": "what pulls the sea",
        "reasoning": "",
        "id": "1",
        "excluded_ids": ["N/A"],
        "gold_ids_long": ["tides/moon.txt"],
        "gold_ids": ["tides/moon_0.txt"],
    },
]
MOTHS = SearchPlan.of(EXAMPLES[0]["query"], k=3)


def write(folder, examples=EXAMPLES, lines=False):
    tables = {
        "examples": examples,
        "documents": [{"id": name, "content": text} for name, text in DOCUMENTS.items()],
        "long_documents": [{"id": name, "content": text} for name, text in LONG.items()],
    }
    for table, rows in tables.items():
        (folder / table).mkdir(parents=True)
        if lines:
            (folder / table / "biology.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        else:
            parquet.write_table(pa.Table.from_pylist(rows), folder / table / "biology-00000-of-00001.parquet")
    return folder


def config(folder, subset="biology", queries="examples"):
    to = folder / f"{subset}-{queries}"
    get("bright", to, folder / "bright", subset, queries)
    return EnvironmentConfig(dataset=DatasetConfig(path=str(to)), index=str(folder / "index"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bright")
    write(folder / "bright")
    env = config(folder)
    build_index(env)
    return Environment.open(env)


@pytest.mark.parametrize("lines", [False, True], ids=["parquet", "jsonl"])
def test_a_domain_is_a_test_split_of_passages_or_of_whole_pages(tmp_path, lines):
    write(tmp_path / "bright", lines=lines)
    short, long = (load_beir(config(tmp_path, subset).dataset.path) for subset in ("biology", "biology-long"))
    assert {document.id: document.text for document in short.corpus} == DOCUMENTS
    assert {document.id: document.text for document in long.corpus} == LONG
    assert short.splits.keys() == long.splits.keys() == {"test"}
    excluded = tuple(EXAMPLES[0]["excluded_ids"])
    assert list(short.splits["test"].questions) == [
        Question("0", EXAMPLES[0]["query"], excluded=excluded),
        Question("1", EXAMPLES[1]["query"]),
    ]
    assert short.splits["test"].qrels["0"] == {"moths/navigation_0.txt": 1, "moths/navigation_1.txt": 1}
    assert long.splits["test"].qrels["0"] == {"moths/navigation.txt": 1}
    assert (short.name, long.name) == ("bright-biology", "bright-biology-long")
    assert "2407.12883" in short.licence


def test_files_and_rows_that_do_not_belong_together_are_refused(tmp_path):
    write(tmp_path / "bright")
    with refused(DataError, "'physics'", "biology"):
        config(tmp_path, "physics")
    with refused(DataError, "grit_reason", "biology"):
        config(tmp_path, queries="grit_reason")
    with refused(DataError, "--subset"):
        config(tmp_path, "")
    both = [{**EXAMPLES[0], "excluded_ids": ["moths/navigation_0.txt"]}]
    with refused(DataError, "row 1", "'0'"):
        open_bright(write(tmp_path / "both", both), "biology")
    with refused(DataError, "gold_ids"):
        open_bright(write(tmp_path / "text", [{**EXAMPLES[0], "gold_ids": "x"}], lines=True), "biology")


def test_excluded_documents_are_not_ranked_and_as_many_others_are(environment):
    restricted, free = environment.step(
        [Step(question_id="0", plan=MOTHS), Step(question_id="1", plan=MOTHS)], with_text=True
    )
    ids, all_ids = ([hit.id for hit in result.ranking] for result in (restricted, free))
    assert set(all_ids) > {"moths/post_0.txt", "moths/post_1.txt"}, "another question sees them"
    assert sorted(ids) == ["moths/navigation_0.txt", "moths/navigation_1.txt"]
    assert restricted.metrics["ndcg@10"] == 1.0
    narrow = environment.step([Step(question_id="0", plan=SearchPlan.of(EXAMPLES[0]["query"], k=1))])[0]
    assert len(narrow.ranking) == 1
    assert narrow.ranking[0].id in ids, "the place of an excluded document is taken by the next one"


@pytest.mark.server
def test_a_plan_leaves_out_the_documents_that_it_names(environment, run_app):
    """As a step of a question that excludes them, also over HTTP."""
    excluded = environment.questions("test")[0].excluded
    plans = [MOTHS.model_copy(update={"without": without}) for without in ((), excluded, ("not in the corpus",))]
    with run_app(create_app(environment)) as url, EnvironmentClient(ClientConfig(urls=[url])) as client:
        (step,) = client.step([Step(question_id="0", plan=MOTHS)])
        plain, restricted, same = ([hit.id for hit in result.ranking] for result in client.search(plans))
    assert restricted == [hit.id for hit in step.ranking]
    assert set(plain) & set(excluded), "the ranking with them is another one"
    assert same == plain


def test_the_packaged_spec_searches_questions_and_long_rewrites(tmp_path, monkeypatch, capsys):
    """By one command. The rewrite has the words of the right document, and one of a wrong one four times."""
    near = {"query": "why do they come near", "reasoning": "near near near moths keep light fixed", "id": "2",
            "excluded_ids": [f"moths/post_{number}.txt" for number in range(2)], "gold_ids_long": [],
            "gold_ids": ["moths/navigation_0.txt"]}  # fmt: skip
    copy = write(tmp_path / "bright", [near])
    rewritten = {**near, "query": f"{near['query']} {near['reasoning']}"}
    (copy / "gpt4_reason").mkdir()
    parquet.write_table(pa.Table.from_pylist([rewritten]), copy / "gpt4_reason" / "biology-00000-of-00001.parquet")
    monkeypatch.chdir(tmp_path)
    questions = {"biology": "examples", "biology-reasoned": "gpt4_reason"}
    for name, queries in questions.items():
        to = ["--queries", queries, "--to", f"datasets/bright-{name}"]
        assert end("data", "get", "bright", "--subset", "biology", "--from", copy, *to) == 0
    capsys.readouterr()
    assert end("eval", "bright", "training_free=[]", "bootstrap=50", "permutations=50") == 0
    table = Path(capsys.readouterr().out.strip()).with_name("tables.md").read_text()
    (row,) = [line for line in table.partition("## What")[0].splitlines() if line.startswith("| raw question")]
    question, reasoning, _ = re.findall(r"[01]\.\d{3}", row)
    assert question == "0.000", "only a wrong document has one of its words"
    assert reasoning == "0.631", "the second document"
