"""Digests of files: changes are detected, an append to a log is no change, and a process may die at any moment."""

import json
from pathlib import Path

import pytest
from querylect.digests import DIGESTS, FolderDigests, describe_folder, refuse_damaged, refuse_damaged_folder
from querylect.errors import StorageError
from querylect.storage import file_sha256

from ..raising import refused

LINE = '{"step": 1}\n'


def digests(folder):
    return FolderDigests(folder, Path.write_text)


def log(folder, *lines):
    """A log with these lines, appended one by one."""
    writer, path = digests(folder), folder / "metrics.jsonl"
    for line in lines:
        with path.open("a") as file:
            file.write(line)
        writer.appended(path, line.encode())
    return path


def refuse(path):
    refuse_damaged(path.parent, {path.name}, "Restore it.")


@pytest.fixture
def policy(tmp_path):
    folder = tmp_path / "final"
    (folder / "ref").mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(3_000_000))
    (folder / "ref" / "weights").write_bytes(b"reference")
    (folder / DIGESTS).write_text(describe_folder(folder))
    return folder


def test_a_folder_is_described_by_the_sha256_of_its_files(policy):
    recorded = json.loads((policy / DIGESTS).read_text())
    assert recorded == {
        name: {"bytes": (policy / name).stat().st_size, "sha256": file_sha256(policy / name)}
        for name in ("ref/weights", "weights")
    }
    assert describe_folder(policy) == (policy / DIGESTS).read_text(), "equal files, equal bytes"
    refuse_damaged_folder(policy, "")


@pytest.mark.parametrize("name", ["weights", "ref/weights"])
@pytest.mark.parametrize("damage", ["flipped", "cut", "longer", "missing"])
def test_a_changed_file_of_a_folder_is_named(policy, name, damage):
    path = policy / name
    content = path.read_bytes()
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 4]) + content[middle + 1 :]
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes({"flipped": flipped, "cut": content[:-1], "longer": content + b"\0"}[damage])
    with refused(StorageError, path, "Restore it."):
        refuse_damaged_folder(policy, "Restore it.")


@pytest.mark.parametrize(
    "content", [b"{", b"[]", b'{"weights": 1}', b'{"weights": {"bytes": "x", "sha256": ""}}', b"\xff"]
)
def test_damaged_digests_are_named_and_none_check_nothing(policy, content):
    (policy / DIGESTS).write_bytes(content)
    (policy / "weights").unlink()
    with refused(StorageError, policy / DIGESTS):
        refuse_damaged_folder(policy, "")
    (policy / DIGESTS).unlink()
    refuse_damaged_folder(policy, "")
    refuse_damaged_folder(policy / "none", "")


def test_a_log_may_grow_and_its_lines_may_not_change(tmp_path):
    path = log(tmp_path, LINE, LINE)
    refuse(path)
    with path.open("a") as file:
        file.write('{"step": 2')  # killed while it wrote, before the entry
    refuse(path)
    path.write_text(path.read_text().replace("1", "3", 1))
    with refused(StorageError, path, "Restore it."):
        refuse(path)
    path.write_text(LINE)
    with refused(StorageError, path, len(LINE), 2 * len(LINE)):
        refuse(path)
    path.unlink()
    refuse(path)


def test_every_appended_line_is_covered_also_after_the_log_was_cut_by_others(tmp_path):
    path = log(tmp_path, LINE)
    writer = digests(tmp_path)
    for content in (LINE + LINE, LINE + LINE + LINE, LINE):  # the last: cut back, and one line written
        path.write_text(content)
        writer.appended(path, LINE.encode())
        entry = json.loads((tmp_path / DIGESTS).read_text())[path.name]
        assert entry == {"bytes": len(content), "sha256": file_sha256(path)}


def test_a_file_has_no_digest_while_it_is_replaced(tmp_path):
    path, log_file = tmp_path / "config.yaml", log(tmp_path, LINE)
    with digests(tmp_path).replacing(path):
        path.write_text("old")
    replacing = digests(tmp_path).replacing(path)
    replacing.__enter__()
    path.write_text("new")  # killed here
    refuse(path)
    assert json.loads((tmp_path / DIGESTS).read_text()).keys() == {log_file.name}, "the others keep theirs"
    with digests(tmp_path).replacing(path):
        path.write_text("newer")
    path.write_text("older")
    with refused(StorageError, path):
        refuse(path)
    with digests(tmp_path).replacing(path):
        path.unlink()
    assert json.loads((tmp_path / DIGESTS).read_text()).keys() == {log_file.name}


def test_names_that_are_not_asked_for_are_not_read(tmp_path):
    path = log(tmp_path, LINE)
    path.write_text("{}")
    refuse_damaged(tmp_path, {"config.yaml"}, "")
