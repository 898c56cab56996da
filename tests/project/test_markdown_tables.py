from querylect.markdown_tables import markdown_table


def test_a_table_has_a_head_a_rule_and_its_rows() -> None:
    table = markdown_table(["system", "nDCG@10"], [["raw", ".220"]])
    assert table == ["| system | nDCG@10 |", "|---|--:|", "| raw | .220 |"]


def test_columns_are_aligned_as_asked() -> None:
    assert markdown_table(["a", "b", "c"], [], "lcr")[1] == "|---|:-:|--:|"


def test_a_pipe_or_a_line_break_in_a_cell_does_not_break_the_table() -> None:
    assert markdown_table(["a"], [["x | y\nz"]])[2] == "| x \\| y z |"
