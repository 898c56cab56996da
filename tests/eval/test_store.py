"""The store of answers: complete lines only, the last record of a question, nothing lost when settings change."""

import json
from dataclasses import replace

import pytest
from querylect.data.types import Question
from querylect.errors import ConfigError, DataError
from querylect.eval.records import (
    RECORDS,
    STORE,
    RecordStore,
    answer_key,
    read_records,
    record_line,
    refuse_other,
)

from ..evaluated import row
from ..raising import refused


def keyed(question, *args, **more):
    return replace(row(question, *args, **more), key=f"key of {question}")


def test_records_come_back_by_key_and_the_last_line_counts(tmp_path):
    store = RecordStore(tmp_path)
    assert store.get("key of q0") == []
    store.add([keyed("q0", None), keyed("q1", 0.25)])
    store.add([keyed("q0", 0.75)])
    for read in (store, RecordStore(tmp_path)):
        assert read.get("key of q0") == [keyed("q0", 0.75)]
        assert read.get("key of q1") == [keyed("q1", 0.25)]


@pytest.mark.parametrize("cut", [1, 40, -1])
def test_a_torn_line_is_cut_off_and_writing_goes_on_behind_the_whole_ones(tmp_path, cut):
    path = tmp_path / STORE
    RecordStore(tmp_path).add([keyed("q0")])
    first, second = path.read_bytes(), record_line(keyed("q1")).encode()
    path.write_bytes(first + (second[:-cut] if cut > 0 else second[:1]))
    again = RecordStore(tmp_path)
    assert again.get("key of q1") == []
    again.add([keyed("q1")])
    assert path.read_bytes() == first + second
    path.write_bytes(first + b'{"system": "raw"}\n')
    with refused(DataError, path):
        RecordStore(tmp_path)


def test_a_later_turn_never_outlives_the_turn_that_it_followed(tmp_path):
    store = RecordStore(tmp_path)
    first = [keyed("q0", turn=1), keyed("q0", None, turn=2), keyed("q0", turn=3)]
    store.add([*first, keyed("q0", turn=1, sample=1), keyed("q0", turn=2, sample=1)])
    store.add([keyed("q0", 0.75, turn=1)])
    assert [(record.turn, record.sample) for record in store.get("key of q0")] == [(1, 0), (1, 1), (2, 1)]


def test_only_the_records_of_the_tables_are_published(tmp_path):
    store = RecordStore(tmp_path)
    store.add([keyed("q1"), keyed("q0"), keyed("q2")])
    store.publish([keyed("q0"), keyed("q1")])
    assert read_records(tmp_path / RECORDS) == [keyed("q0"), keyed("q1")]
    assert RecordStore(tmp_path).get("key of q2") == [keyed("q2")]


QUESTION = Question("q", "text")


@pytest.mark.parametrize(
    "other",
    [
        ("settings", replace(QUESTION, text="other"), {"d": 1}),
        ("settings", replace(QUESTION, options=("a",)), {"d": 1}),
        ("settings", QUESTION, {"d": 2}),
        ("others", QUESTION, {"d": 1}),
    ],
)
def test_a_key_is_of_the_settings_the_question_and_its_judgements(other):
    key = answer_key("settings", QUESTION, {"d": 1})
    assert answer_key("settings", Question("q", "text"), {"d": 1}) == key
    assert answer_key(*other) != key


def test_other_results_are_not_replaced_in_silence(tmp_path):
    path = tmp_path / "results.json"
    refuse_other(path, {"split": "test"})
    path.write_text(json.dumps({"identity": {"split": "test", "systems": {"a": {"engine": "vllm"}, "gone": {}}}}))
    for same in ({"split": "test"}, {"systems": {"a": {"engine": "vllm"}, "new": {"engine": "transformers"}}}):
        refuse_other(path, same)
    other = {"split": "test", "systems": {"a": {"engine": "transformers"}}}
    with refused(ConfigError, path, "systems.a.engine: vllm → transformers", "--overwrite"):
        refuse_other(path, other)
    refuse_other(path, other, overwrite=True)
