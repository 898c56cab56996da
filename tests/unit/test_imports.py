"""Which module imports which: no folder reaches up, and no two files import each other."""

from pathlib import Path

from querylect.benchmarks.structure import circles, graph, upward

ROOT = Path(__file__).parents[2]


def test_the_graph_sees_imports():
    edges = graph(ROOT)
    assert "train.credit" in edges["train.trainer"]
    assert "envs.server.serve" in edges["cli"], "inside a function"
    assert len(edges) > 250


def test_no_folder_imports_from_one_above_it():
    assert upward({"data.load": {"envs.plan"}, "envs.plan": {"data.load"}}) == ["data.load -> envs.plan"]
    assert upward(graph(ROOT)) == []


def test_no_two_files_import_each_other():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles(graph(ROOT)) == []
