"""benchmarks/query_saturation.py, whose table docs/add-a-retriever.md shows, on a folder of five passages."""

from querylect.benchmarks.query_saturation import K3, QUERIES, main


def test_the_table_has_each_kind_of_query_at_each_saturation(lessons, capsys):
    main(lessons.dataset.path)
    title, _, head, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "ndcg@10 of 5 test questions of data"
    assert head == "| query | linear | k3 = 0 | k3 = 2 | k3 = 8 | query-side |"
    table = {name: cells for name, *cells in ([cell.strip() for cell in row.strip("|").split("|")] for row in rows)}
    assert list(table) == list(QUERIES)
    assert {len(cells) for cells in table.values()} == {len(K3)}
    question, repeated = (list(map(float, table[name])) for name in ("question", "5 × question + passage"))
    assert all(0 < score <= 1 for score in (*question, *repeated))
    assert question[0] == question[2], "no word of these questions stands in one twice"
