"""The papers' figures as data: every table whole, every figure a rate or a similarity, stars on columns there are."""

from pathlib import Path

import pytest
import yaml

FILES = sorted((Path(__file__).parents[1] / "data" / "papers").glob("*.yaml"))


@pytest.mark.parametrize("file", [file for file in FILES if file.stem == "qb_rag"], ids=lambda file: file.stem)
def test_tables_are_whole_and_cite_their_paper(file):
    paper = yaml.safe_load(file.read_text(encoding="utf-8"))
    assert "Geometry of Queries" in paper["citation"]
    assert [table["table"] for table in paper["tables"]] == [1, 2, 3, 4, 5, 6]
    for table in paper["tables"]:
        assert table["setting"]
        for values in table["values"].values():
            assert len(values) == len(table["columns"])
            assert all(0 <= value <= 1 for value in values)
        for method, columns in table.get("significant", {}).items():
            assert method in table["values"]
            assert method != "Naive RAG"
            assert set(columns) <= set(table["columns"])
        assert set(table.get("lower_is_better", [])) <= set(table["columns"])
    first, last = paper["tables"][0], paper["tables"][4]
    assert first["values"]["QB-RAG-8"][0] - first["values"]["Naive RAG"][0] == pytest.approx(0.45), "from 44% to 89%"
    assert last["values"]["QB-RAG-8"][0] == max(values[0] for values in last["values"].values()), "the bold figure"
