"""Which module imports which: no folder reaches up, and no two files import each other."""

from pathlib import Path

import pytest
from querylect.benchmarks.structure import ORDER_WITHIN, circles, graph, upward, upward_within

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def product():
    """Which module of the product imports which."""
    return graph(ROOT)


def test_the_graph_sees_imports(product):
    assert "train.credit" in product["train.trainer"]
    assert "envs.server.serve" in product["cli"], "inside a function"
    assert len(product) > 150


def test_no_folder_imports_from_one_above_it(product):
    assert upward({"data.load": {"envs.plan"}, "envs.plan": {"data.load"}}) == ["data.load -> envs.plan"]
    assert upward(product) == []


def test_no_subfolder_reaches_a_later_one(product):
    edges = {"envs.index.meta": {"envs.plan"}, "envs.plan": {"envs.server.app"}, "envs.server.app": {"envs.index.meta"}}
    upwards = [("index", "index"), ("index", "server"), ("server", "server")]
    assert upward_within(edges) == [f"envs.{source} -> envs.{target}" for source, target in upwards]
    assert upward_within({"envs.client.connect": {"envs.server.serve"}, "envs.server.serve": set()}) == []
    assert upward_within(product) == []


def test_every_subfolder_has_a_rank(product):
    subfolders = {tuple(module.split(".")[:2]) for module in product if module.count(".") > 1}
    assert subfolders == {(folder, name) for folder, names in ORDER_WITHIN.items() for name in names}


def test_no_two_files_import_each_other(product):
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"b", "d"}, "d": set()}) == [["b", "c"]]
    assert circles(product) == []
