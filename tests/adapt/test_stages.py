"""When a stage of `querylect adapt` is finished."""

import pytest
from querylect.adapt.stages import Stage


@pytest.mark.parametrize(
    ("files", "finished"),
    [
        ({}, False),
        ({"report.html": "<!doctype html>"}, True),
        ({"report.html": "<!doctype html>", "results.json": '{"failed": []}'}, True),
        ({"report.html": "<!doctype html>", "results.json": '{"failed": [{"system": "hyde"}]}'}, False),
    ],
)
def test_a_stage_is_finished_once_its_output_is_whole(tmp_path, files, finished):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert Stage("evaluation", ["eval", "run"], tmp_path / "report.html", {}).is_finished is finished
