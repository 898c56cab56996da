"""The state of a build: its steps and its finished parts, in a hidden folder beside the index.

A part is written under another name, flushed and renamed, so an interrupted build resumes with the parts that exist.
Parts with other steps are refused.
"""

import json
import secrets
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ...configs.environment import SearchEngine
from ...configs.section import Strict
from ...data.corpus import Origin
from ...errors import IndexFolderError
from ...storage import atomic_folder, only_command
from ..index.manifest import write_json
from ..recipes import RetrieverRecipe

_STEPS, _PART = "plan.json", "part.json"


class PartSettings(Strict):
    """Everything that a part depends on besides the corpus."""

    engine: SearchEngine | None
    dtype: str | None
    """Of stored vectors; None for other retrievers than dense ones."""
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


class IndexShards:
    """The parts of the index that is being built at `target`."""

    def __init__(self, target: Path) -> None:
        self.target = target
        self.folder = target.with_name(f".{target.name}.parts")

    def read_steps(self) -> BuildSteps | None:
        """The steps of the started build; None if there is none."""
        try:
            return BuildSteps.model_validate_json((self.folder / _STEPS).read_bytes())
        except FileNotFoundError:
            return None

    def begin(self, steps: BuildSteps) -> None:
        """Start a build, or resume one with the same steps. IndexFolderError if the started one has others."""
        existing = self.read_steps()
        if existing is None:
            self.folder.mkdir(parents=True, exist_ok=True)
            temporary = self.folder / f"{_STEPS}.{secrets.token_hex(4)}"  # another process may start the same build
            try:
                temporary.write_text(steps.model_dump_json(), encoding="utf-8")
                temporary.rename(self.folder / _STEPS)
            except OSError:
                self.tidy()
                raise
        elif existing != steps:
            fields = [name for name, value in existing.settings if value != getattr(steps.settings, name)]
            raise IndexFolderError(
                f"{self.folder} holds parts of an interrupted build with another {' and '.join(fields) or 'corpus'}. "
                "Go on with the settings of that build, or begin anew: querylect index build --restart."
            )

    def path(self, number: int) -> Path:
        return self.folder / f"{number:06}"

    def done(self, number: int) -> int | None:
        """The number of documents of a finished part; None if it is not finished."""
        try:
            return int(json.loads((self.path(number) / _PART).read_bytes())["documents"])
        except FileNotFoundError:
            return None

    def add(self, number: int, fill: Callable[[Path], int]) -> int:
        """Write a part: `fill` writes its files into a folder and returns the number of documents.

        Two processes may write the same part; one of the two equal results is kept.
        """
        temporary = self.folder / f"{self.path(number).name}.{secrets.token_hex(4)}"
        temporary.mkdir(parents=True)
        try:
            documents = fill(temporary)
            write_json(temporary / _PART, {"documents": documents})
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

        Raises StorageError if another process is merging the parts, OSError if the files cannot be written.
        """
        with only_command(self.folder):
            with atomic_folder(self.target) as folder:
                yield folder
            self.discard()

    def tidy(self) -> None:
        """Remove the folder if no part is finished; otherwise keep the parts for the next build."""
        if not any(path.is_dir() and path.suffix == "" for path in self.folder.glob("*")):
            self.discard()

    def discard(self) -> None:
        """Remove all parts. The folder is renamed first: a crash in the middle leaves no part half removed."""
        discarded = self.folder.with_suffix(".discarded")
        shutil.rmtree(discarded, ignore_errors=True)
        with suppress(FileNotFoundError):
            self.folder.rename(discarded)
        shutil.rmtree(discarded, ignore_errors=True)
