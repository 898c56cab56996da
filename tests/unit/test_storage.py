"""Journals of keyed records, locks and atomic writes."""

import errno
import fcntl
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from querylect import storage
from querylect.errors import StorageError
from querylect.storage import (
    KeyedJournal,
    command_at_work,
    data_sha256,
    folder_reaches_the_disk,
    locked,
    only_command,
    only_writer,
    parse_json,
    refuse_unwritable,
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
    return KeyedJournal(folder / "notes.jsonl", Note, "Remove it.", complete=lambda note: note.text is not None)


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


@pytest.mark.parametrize("rewritten", [False, True])
def test_an_answer_that_changed_on_the_disk_is_never_found(tmp_path, rewritten):
    journal = open_journal(tmp_path)
    journal.append([Note("a", "one")])
    if rewritten:
        journal.rewrite([Note("a", "one")])
    journal.append([Note("b", "two")])
    journal.path.write_text(journal.path.read_text().replace("one", "ten"))
    with refused(StorageError, journal.path, "Remove it."):
        open_journal(tmp_path)
    journal.path.unlink()
    again = open_journal(tmp_path)
    assert not again.by_key
    again.append([Note("c", "three")])
    assert list(open_journal(tmp_path).by_key) == ["c"]


def test_an_incomplete_record_is_written_and_never_found(tmp_path):
    journal = open_journal(tmp_path)
    journal.append([Note("a", None), Note("b", "two")])
    assert journal.get("a") is None
    assert open_journal(tmp_path).get("a") is None
    assert len(journal.path.read_text().splitlines()) == 2
    journal.rewrite([Note("b", "two")])
    assert len(journal.path.read_text().splitlines()) == 1


def test_a_rewrite_keeps_complete_records_of_other_keys(tmp_path):
    journal = open_journal(tmp_path)
    journal.append([Note("a", "one"), Note("b", "two"), Note("c", None)])
    journal.rewrite([Note("b", "changed"), Note("d", "four"), Note("e", None)])
    expected = {"b": Note("b", "changed"), "d": Note("d", "four"), "a": Note("a", "one")}
    assert journal.by_key == open_journal(tmp_path).by_key == expected
    assert [json.loads(line)["key"] for line in journal.path.read_text().splitlines()] == ["b", "d", "e", "a"]


def test_a_journal_that_cannot_be_read_or_written_says_what_to_do(tmp_path):
    (tmp_path / "notes.jsonl").mkdir()
    with refused(StorageError, tmp_path / "notes.jsonl", "Remove it."):
        open_journal(tmp_path)
    lost = KeyedJournal(tmp_path / "none" / "notes.jsonl", Note, "Remove it.")
    with refused(StorageError, lost.path):
        lost.append([Note("a", "one")])
    assert lost.get("a") is None


DEEP = '{"key": "k", "text": ' + "[" * 100_000


def test_brackets_nested_too_deeply_are_invalid_json_and_no_record(tmp_path):
    with pytest.raises(json.JSONDecodeError, match="nested too deeply"):
        parse_json(DEEP)
    (tmp_path / "notes.jsonl").write_text(DEEP + "\n")
    assert open_journal(tmp_path).get("k") is None


READ_OTHERWISE = {
    "storage.py": "parse_json itself",
    "slurm/ready.py": "the standard library alone; written by our own services",
    "doctor/gpu.py": "a finding of our own child process",
    "doctor/machine.py": "a report of our own child process",
    "llms/endpoint.py": "a schema of our own",
    "rollouts/chat_template.py": "between a process and its own child",
    "llms/json_answers.py": "as pairs, to see a key that stands twice; its callers take a RecursionError too",
}


def test_json_from_elsewhere_is_read_by_parse_json():
    root = Path(__file__).parents[2]
    folders = {path.name for path in root.iterdir() if path.is_dir() and path.name[0] != "."} - {"tests", "benchmarks"}
    files = [*root.glob("*.py"), *(path for folder in folders for path in (root / folder).rglob("*.py"))]
    reading = {str(path.relative_to(root)) for path in files if "json.loads(" in path.read_text(encoding="utf-8")}
    assert reading == set(READ_OTHERWISE)


def test_a_held_lock_is_refused_and_ends_with_its_block(tmp_path):
    def hold():
        return only_writer(tmp_path / "new", ".lock", "Give another.", "it is taken")

    with hold(), refused(StorageError, "it is taken"), hold():
        pass
    with hold():
        pass
    (tmp_path / "file").touch()
    with (
        refused(StorageError, tmp_path / "file", "Give another."),
        only_writer(tmp_path / "file", ".lock", "Give another.", ""),
    ):
        pass


def test_a_folder_whose_existence_cannot_be_known_is_refused_as_unwritable(tmp_path):
    """As one in somebody's private folder, a name that is too long makes even looking for it fail."""
    folder = tmp_path / ("a" * 300) / "run"
    refuse_unwritable(folder)  # the folder above could be written
    with refused(StorageError, folder), only_writer(folder, ".lock", "Name another.", "taken"):
        pass


@pytest.fixture
def no_flock(monkeypatch):
    """A file system without locks."""

    def unsupported(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", unsupported)


@pytest.fixture
def ended_process() -> int:
    """The id of a process of this host that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def claim_of(pid, host=None):
    """What a command of this process writes into its claim."""
    return json.dumps({"host": host or socket.gethostname(), "pid": pid, "started": "2026-01-01", "command": "train"})


def test_a_folder_on_a_file_system_without_locks_has_one_writer(tmp_path, no_flock):
    with only_command(tmp_path / "run"):
        claim_file = tmp_path / "run" / ".lock.held"
        assert str(os.getpid()) in (command_at_work(tmp_path / "run") or "")
        with (
            refused(StorageError, os.getpid(), "no locks", f"remove {claim_file}"),
            only_command(claim_file.parent),
        ):
            pass
        assert claim_file.is_file()
    assert not (tmp_path / "run").exists()


def test_without_flock_a_dead_process_of_this_host_holds_nothing(tmp_path, no_flock, ended_process):
    claim_file = tmp_path / ".lock.held"
    claim_file.write_text(claim_of(ended_process))
    assert command_at_work(tmp_path) is None
    with only_command(tmp_path):
        assert json.loads(claim_file.read_text())["pid"] == os.getpid()
    assert not claim_file.exists()


@pytest.mark.parametrize("text", ["", claim_of(2**22 + 1, "elsewhere")])
def test_without_flock_a_claim_of_an_unknown_process_is_refused(tmp_path, no_flock, text):
    """On another host, or killed while it wrote its id: whether it still runs is unknown."""
    claim_file = tmp_path / ".lock.held"
    claim_file.write_text(text)
    with refused(StorageError, f"remove {claim_file}"), only_command(tmp_path):
        pass
    assert claim_file.read_text() == text


@pytest.mark.parametrize("when", ["before it looks", "while it takes over"])
def test_of_two_commands_that_find_the_same_dead_claim_one_is_refused(
    tmp_path, no_flock, ended_process, monkeypatch, when
):
    claim_file, takeover = tmp_path / ".lock.held", tmp_path / ".lock.held.takeover"
    other_claim = claim_of(os.getppid())
    claim_file.write_text(claim_of(ended_process))
    checked, claimed_by = [], storage._claimed_by

    def other_comes_first(claim):
        owner = claimed_by(claim)
        if not checked and when == "before it looks":
            claim_file.write_text(other_claim)
        elif not checked:
            takeover.write_text(other_claim)
        checked.append(claim)
        return owner

    monkeypatch.setattr(storage, "_claimed_by", other_comes_first)
    blocking = claim_file if when == "before it looks" else takeover
    with refused(StorageError, os.getppid(), f"remove {blocking}"), only_command(tmp_path):
        pass
    assert blocking.read_text() == other_claim
    assert takeover.exists() == (blocking == takeover)


def test_a_claim_that_comes_after_its_predecessor_has_left_is_not_taken_over(
    tmp_path, no_flock, ended_process, monkeypatch
):
    claim_file, has_ended = tmp_path / ".lock.held", storage._has_ended
    claim_file.write_text(claim_of(ended_process))
    other_claim = claim_of(os.getppid())

    def others_come_and_go(claim):
        claim_file.unlink()  # the one that had the lock leaves, and the next one comes after the look
        ended = has_ended(claim)
        claim_file.write_text(other_claim)
        return ended

    monkeypatch.setattr(storage, "_has_ended", others_come_and_go)
    with refused(StorageError, os.getppid()), only_command(tmp_path):
        pass
    assert claim_file.read_text() == other_claim


def test_the_holder_of_a_claim_is_the_process_that_was_looked_at(tmp_path, no_flock, ended_process, monkeypatch):
    (tmp_path / ".lock").touch()
    claim_file = tmp_path / ".lock.held"
    claim_file.write_text(claim_of(os.getppid()))

    def running_and_replaced(_):
        claim_file.write_text(claim_of(ended_process))
        return True

    monkeypatch.setattr(storage, "_is_running", running_and_replaced)
    assert f"process {os.getppid()} " in (command_at_work(tmp_path) or "")


def test_without_flock_a_file_has_one_writer(tmp_path, no_flock):
    path = tmp_path / "file"

    def lock():
        return locked(file.fileno(), path, "taken")

    with path.open("w") as file:
        with lock(), refused(StorageError, "taken", os.getpid(), f"remove {path}.held"), lock():
            pass
        with ExitStack() as stack:
            stack.enter_context(lock())
            if os.fork() == 0:
                stack.close()
                os._exit(0)
            os.wait()
            assert Path(f"{path}.held").is_file(), "a forked child gives nothing back"
    assert list(tmp_path.iterdir()) == [path]


def test_without_any_lock_a_file_is_written_with_a_warning_and_a_folder_is_refused(
    tmp_path, no_flock, caplog, monkeypatch
):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(storage, "_create", full)
    with (tmp_path / "file").open("w") as file, locked(file.fileno(), tmp_path / "file", "taken"):
        assert [path for path, *_ in logged(caplog, "storage")] == [tmp_path / "file"]
    with refused(StorageError, tmp_path, "No locks", "No space left"), only_command(tmp_path):
        pass


def test_what_killed_writers_left_goes_with_the_next_write(tmp_path, ended_process):
    host = socket.gethostname()
    left = tmp_path / f".page[1].md.{host}.{ended_process}.partial"
    other_files = [
        f".page[1].md.{host}.{os.getppid()}.partial",
        f".page[1].md.elsewhere.{ended_process}.partial",
        f".page2.md.{host}.{ended_process}.partial",
    ]
    for name in [left.name, *other_files]:
        (tmp_path / name).write_text("half")
    write_text(tmp_path / "page[1].md", "whole", "")
    assert {file.name for file in tmp_path.iterdir()} == {"page[1].md", *other_files}


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.md"
    write_text(path, "old", "Free some space.")
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with refused(StorageError, path, "No space left", "Free some space."):
        write_text(path, "new", "Free some space.")
    assert [file.read_text() for file in path.parent.iterdir()] == ["old"]


@pytest.mark.parametrize("error", [UnicodeEncodeError, KeyboardInterrupt])
def test_text_that_cannot_be_encoded_and_ctrl_c_leave_no_partial_file(tmp_path, monkeypatch, error):
    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr("os.fsync", interrupt)
    with pytest.raises(error):
        write_text(tmp_path / "page.md", "\ud800" if error is UnicodeEncodeError else "text", "")
    assert list(tmp_path.iterdir()) == []


def test_a_file_system_that_cannot_fsync_folders_is_tolerated_and_files_are_not(tmp_path, monkeypatch):
    def refuse(descriptor):
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr("os.fsync", refuse)
    folder_reaches_the_disk(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="Invalid argument"):
        folder_reaches_the_disk(tmp_path)


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert data_sha256({"a": [1, "é"], "b": None}) == data_sha256({"b": None, "a": [1, "é"]}) != data_sha256({"a": 1})
