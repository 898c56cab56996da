"""Atomic writes of files and folders."""

import errno

import pytest
from querylect.errors import StorageError
from querylect.storage import (
    atomic_folder,
    restore_folder,
    write_text,
)

from ..raising import refused


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
