"""The state of a build: its steps and its finished parts, in a hidden folder beside the index.

A part is created atomically (written under another name, flushed, renamed), so an interrupted build resumes with the
parts that exist. Parts with other steps are refused.
"""

import fcntl
import hashlib
import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from ...configs.environment import SearchEngine
from ...configs.section import Strict
from ...data.corpus import Origin
from ...data.jsonl import Span
from ...errors import IndexFolderError
from ...storage import data_sha256, folder_reaches_the_disk, parse_json
from ..index.manifest import write_json
from ..recipes import RetrieverRecipe, content_fields

_STEPS, _PART, _LOCK = "plan.json", "part.json", "lock"


class PartSettings(Strict):
    """Everything that a part depends on besides the corpus."""

    engine: SearchEngine | None
    dtype: str | None
    """Of stored vectors; None for other retrievers than dense ones."""
    block_mib: float
    recipe: RetrieverRecipe
    weights: str | None
    """The fingerprint of the retriever."""
    versions: dict[str, str]


class BuildSteps(Strict):
    """What a build indexes and how it is cut into parts. Equal for every process of one build."""

    settings: PartSettings
    dataset: str
    licence: str
    origin: Origin
    blocks: list[tuple[int, int | None, int]]
    """Start, end and first line of each block of the corpus, one part each."""
    documents: int
    """Documents at most: lines of the corpus file, blank ones included."""

    @cached_property
    def hash(self) -> str:
        """sha256 of the steps."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    @property
    def content_hash(self) -> str:
        """sha256 of what the content of an index follows from; the size of blocks is not in it."""
        made_with = self.settings
        return data_sha256(
            [
                content_fields(made_with.recipe),
                made_with.weights,
                made_with.dtype,
                made_with.versions,
                self.origin.size,
                self.origin.fingerprint,
            ]
        )

    def block(self, number: int) -> Span:
        return Span(*self.blocks[number])


class IndexShards:
    """The parts of the index that is being built at `target`."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.parts")
        self._replaced = target.with_name(f".{target.name}.replaced")
        self._discarded = target.with_name(f".{target.name}.discarded")

    def read_steps(self) -> BuildSteps | None:
        """The steps of the started build; None if there is none. IndexFolderError if it cannot be read."""
        try:
            return BuildSteps.model_validate_json((self.folder / _STEPS).read_bytes())
        except FileNotFoundError:
            return None
        except (ValidationError, OSError) as error:
            raise self._unusable(f"{_STEPS} cannot be read ({error})") from error

    def begin(self, steps: BuildSteps) -> None:
        """Start a build, or resume one with the same steps. IndexFolderError if the started one has others."""
        self.restore()
        existing = self.read_steps()
        if existing is not None:
            self._refuse_other_steps(existing, steps)
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f"{_STEPS}.{secrets.token_hex(4)}"
        try:
            temporary.write_text(steps.model_dump_json(), encoding="utf-8")
            temporary.rename(self.folder / _STEPS)
        except OSError:
            temporary.unlink(missing_ok=True)
            with suppress(OSError):  # another process may have started
                self.folder.rmdir()
            raise

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def done(self, steps: BuildSteps, number: int) -> int | None:
        """The number of documents of a finished part; None if it is not finished.

        Raises IndexFolderError if it is damaged or of a build with other steps.
        """
        folder = self.path(number)
        try:
            record = parse_json((folder / _PART).read_text(encoding="utf-8"))
            sizes = {name: (folder / name).stat().st_size for name in record["files"]}
        except FileNotFoundError:
            if folder.exists():
                raise self._unusable(f"part {folder.name} is not complete") from None
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise self._unusable(f"part {folder.name} cannot be read ({error})") from error
        if record["plan"] != steps.hash:
            raise self._unusable(f"part {folder.name} belongs to another build")
        if sizes != record["files"]:
            raise self._unusable(f"part {folder.name} is damaged: its files have other sizes than were written")
        return int(record["documents"])

    def add(self, steps: BuildSteps, number: int, fill: Callable[[Path], int]) -> int:
        """Write a part: `fill` writes its files into a folder and returns the number of documents.

        Two processes may write the same part; one of the two equal results is kept.
        """
        temporary = self.folder / f"{self.path(number).name}.{secrets.token_hex(4)}"
        temporary.mkdir(parents=True)
        try:
            documents = fill(temporary)
            files = {path.name: path.stat().st_size for path in sorted(temporary.iterdir())}
            write_json(temporary / _PART, {"plan": steps.hash, "documents": documents, "files": files})
            folder_reaches_the_disk(temporary)
            try:
                temporary.rename(self.path(number))
            except OSError:
                if not self.path(number).exists():
                    raise
            return documents
        finally:
            shutil.rmtree(temporary, ignore_errors=True)

    @contextmanager
    def staged(self) -> Iterator[Path]:
        """A folder that replaces the index if the block ends without an error; then the parts are removed.

        Raises IndexFolderError if another process is merging the parts or has merged them, OSError if the files
        cannot be written.
        """
        building = self.folder / "index.building"
        with self._locked():
            shutil.rmtree(building, ignore_errors=True)
            try:
                building.mkdir()
                yield building
                folder_reaches_the_disk(building)
                self._install(building)
            finally:
                shutil.rmtree(building, ignore_errors=True)
            shutil.rmtree(self._replaced, ignore_errors=True)
            self.discard()

    @contextmanager
    def _locked(self) -> Iterator[None]:
        finished = IndexFolderError(
            f"another process finished this build at the same time and removed its parts. Use {self.target}."
        )
        try:
            lock = (self.folder / _LOCK).open("w")
        except FileNotFoundError:
            raise finished from None
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise IndexFolderError(
                    f"another process is merging the parts in {self.folder}. Wait for it, or end it."
                ) from None
            if not os.fstat(lock.fileno()).st_nlink:  # removed after it was opened
                raise finished
            yield

    def _install(self, building: Path) -> None:
        try:
            if self.target.exists():
                shutil.rmtree(self._replaced, ignore_errors=True)  # left by a crash after an earlier replacement
                self.target.rename(self._replaced)
            building.rename(self.target)
        except BaseException:
            self.restore()
            raise

    def tidy(self) -> None:
        """Remove the folder if no part is finished; otherwise keep the parts for the next build."""
        if not any(path.is_dir() and path.suffix == "" for path in self.folder.glob("*")):
            self.discard()

    def discard(self) -> None:
        """Remove all parts. The folder is renamed first: a crash in the middle leaves no part half removed."""
        shutil.rmtree(self._discarded, ignore_errors=True)
        with suppress(OSError):
            self.folder.rename(self._discarded)
        for folder in (self._discarded, self.folder):
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self) -> None:
        """Restore the old index after a crash between moving it away and moving the new one in."""
        if self._replaced.exists() and not self.target.exists():
            self._replaced.rename(self.target)

    def _refuse_other_steps(self, existing: BuildSteps, steps: BuildSteps) -> None:
        if existing.hash == steps.hash:
            return
        old, new = dict(existing.settings), dict(steps.settings)
        fields = [name for name in new if old[name] != new[name]]
        fields += [name for name in ("dataset", "origin", "blocks") if getattr(existing, name) != getattr(steps, name)]
        raise IndexFolderError(
            f"{self.folder} holds the parts of an interrupted build with another {' and '.join(fields) or 'steps'}. "
            "Go on with the settings of that build, or begin anew: querylect index build --restart."
        )

    def _unusable(self, problem: str) -> IndexFolderError:
        return IndexFolderError(
            f"{self.folder}: {problem}. Remove that part to have it built again, or begin anew: "
            "querylect index build --restart."
        )
