"""Journals of keyed records and atomic writes."""

import errno
import json
from dataclasses import dataclass

import pytest
from querylect.errors import StorageError
from querylect.storage import (
    KeyedJournal,
    atomic_folder,
    parse_json,
    restore_folder,
    write_text,
)

from ..raising import logged, refused


@dataclass(frozen=True, slots=True)
class Cost:
    calls: int


@dataclass(frozen=True, slots=True)
class Note:
    key: str
    text: str | None
    parts: tuple[str, ...] = ()
    spent: Cost | None = None


def open_journal(folder):
    return KeyedJournal(folder / "notes.jsonl", Note, complete=lambda note: note.text is not None)


def test_a_journal_gives_back_what_was_appended_under_its_key(tmp_path):
    first, second = Note("a", "é", ("x", "y"), Cost(2)), Note("b", "two")
    journal = open_journal(tmp_path)
    journal.append([first])
    journal.append([second])
    assert journal.get("a") == open_journal(tmp_path).get("a") == first
    assert open_journal(tmp_path).by_key == {"a": first, "b": second}
    assert journal.get("c") is None


def test_half_a_line_and_lines_of_another_form_are_left_out(tmp_path, caplog):
    journal = open_journal(tmp_path)
    journal.append([Note("a", "one")])
    with journal.path.open("a") as file:
        file.write('{"key": "b"}\nno json\n{"key": "c", "text": "x", "parts": [], "spent": null, "more": 1}\n{"key"')
    assert list(open_journal(tmp_path).by_key) == ["a"]
    assert [args[:2] for args in logged(caplog, "storage")] == [(journal.path, 3)]
    open_journal(tmp_path).append([Note("e", "after")])
    assert list(open_journal(tmp_path).by_key) == ["a", "e"]


def test_a_rewrite_keeps_complete_records_of_other_keys(tmp_path):
    journal = open_journal(tmp_path)
    journal.append([Note("a", "one"), Note("b", "two"), Note("c", None)])
    journal.rewrite([Note("b", "changed"), Note("d", "four"), Note("e", None)])
    expected = {"b": Note("b", "changed"), "d": Note("d", "four"), "a": Note("a", "one")}
    assert journal.by_key == open_journal(tmp_path).by_key == expected
    assert [json.loads(line)["key"] for line in journal.path.read_text().splitlines()] == ["b", "d", "e", "a"]


DEEP = '{"key": "k", "text": ' + "[" * 100_000


def test_brackets_nested_too_deeply_are_invalid_json_and_no_record(tmp_path):
    with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
        parse_json(DEEP)
    (tmp_path / "notes.jsonl").write_text(DEEP + "\n")
    assert open_journal(tmp_path).get("k") is None


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.md"
    write_text(path, "old")

    def fail(self, target):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(type(path), "replace", fail)
    with refused(StorageError, path, "No space left"):
        write_text(path, "new")
    assert [file.read_text() for file in path.parent.iterdir()] == ["old"]


def test_an_atomic_folder_replaces_the_old_one_or_leaves_it(tmp_path):
    target = tmp_path / "place"
    for text in ("old", "new"):
        with atomic_folder(target) as partial:
            (partial / "file").write_text(text)
    with refused(StorageError, target), atomic_folder(target) as partial:
        (partial / "none" / "file").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["place"]
    assert (target / "file").read_text() == "new"


def test_a_folder_that_a_kill_left_set_aside_is_put_back(tmp_path, monkeypatch):
    target = tmp_path / "place"
    (target / "file").parent.mkdir()

    def kill(self, to):
        if self.name.endswith(".partial"):
            monkeypatch.setattr("querylect.storage.restore_folder", lambda target: None)
            raise KeyboardInterrupt
        return rename(self, to)

    rename = type(target).rename
    monkeypatch.setattr(type(target), "rename", kill)
    with pytest.raises(KeyboardInterrupt), atomic_folder(target):
        pass
    monkeypatch.undo()
    assert not target.exists()
    restore_folder(target)
    assert [path.name for path in tmp_path.iterdir()] == ["place"]


@pytest.mark.parametrize(
    "error", [OSError(28, "No space left"), RuntimeError("I/O error: No space left (os error 28)")]
)
def test_a_disk_that_is_full_is_a_storage_error_and_another_mistake_is_not(tmp_path, error):
    with refused(StorageError, tmp_path / "place", "No space left"), atomic_folder(tmp_path / "place"):
        raise error
    with pytest.raises(RuntimeError, match="a mistake of ours"), atomic_folder(tmp_path / "place"):
        raise RuntimeError("a mistake of ours")
    assert list(tmp_path.iterdir()) == []
