"""`querylect data get`: copies the published files of a benchmark unchanged, from the Hub or from a local copy.

Files are collected in `.NAME.partial` beside the target; each is either complete and verified, or absent. The folder is
renamed to the target once all files are there. A second call resumes an interrupted one, at the same revision.
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from ..errors import DataError, DownloadError, StorageError, first_line
from ..logs import Progress
from ..storage import file_sha256, parse_json, write_text, writing
from .fetched import SOURCE, card_licence, git_blob_of
from .known import KnownBenchmark

_PLAN = "plan.json"
_KEPT = "What has arrived is kept beside it: free some space, or name another folder, and give the same command again."


@dataclass(frozen=True, slots=True)
class _File:
    path: str
    """Relative to the folder of the benchmark."""
    size: int
    sha256: str
    """Empty if only the git id is known."""
    git: str
    repo: str
    revision: str
    there: str
    """Source path: in the repository, or in the local copy."""


def fetch(
    benchmark: KnownBenchmark,
    target: Path,
    copy: Path | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> Path:
    """Fetch a benchmark into the new folder `target`, from the Hub or from the local copy `copy`; return the folder.

    `revision` is a commit or branch of its repository (None: the newest); `endpoint` is another Hub. Raises DataError
    if the target exists, or the source is missing or damaged; DownloadError if the Hub does not answer (the same call
    resumes); StorageError if the files cannot be written.
    """
    target = target.expanduser()
    if target.exists():
        raise DataError(
            f"{target} exists already. Check it (querylect data check {target}), remove it or name another."
        )
    if copy is None and not benchmark.repositories:
        raise DataError(f"{benchmark.name} cannot be fetched by a program: {benchmark.by_hand}.")
    staging = target.with_name(f".{target.name}.partial")
    repositories = ", ".join(repository.repo for repository in benchmark.repositories)
    source = str(copy.expanduser().resolve()) if copy else repositories
    with writing(target, _KEPT):
        staging.mkdir(parents=True, exist_ok=True)
        files = _plan(benchmark, staging, source, copy, revision, endpoint)
        _refuse_full(staging, files)
        total, done = sum(file.size for file in files), 0
        for file in files:
            if not _complete(staging / file.path, file):
                _bring(file, staging, endpoint)
            done += file.size
            if progress:
                progress(done, total)
        _finish(benchmark, staging, files, source)
        staging.rename(target)
    return target


def _plan(
    benchmark: KnownBenchmark, staging: Path, source: str, copy: Path | None, revision: str | None, endpoint: str | None
) -> list[_File]:
    """The files to fetch. The list of an interrupted call is reused, so that revisions are not mixed."""
    path = staging / _PLAN
    request = {"source": source, "revision": revision}
    if path.is_file():
        try:
            plan = parse_json(path.read_text(encoding="utf-8"))
            files = [_File(**entry) for entry in plan["files"]]
        except (ValueError, TypeError, KeyError) as error:
            raise DataError(f"{path} is damaged ({error!r}). Remove {staging} and fetch again.") from error
        if plan["asked"] != request:
            raise DataError(
                f"{staging} holds part of another source ({plan['asked']}, now {request}). Remove it, or ask for that."
            )
        return files
    files = _local_files(benchmark, copy) if copy is not None else _hub_files(benchmark, revision, endpoint)
    plan = {"asked": request, "files": [asdict(file) for file in files]}
    write_text(path, json.dumps(plan, indent=1) + "\n", _KEPT)
    return files


def _local_files(benchmark: KnownBenchmark, copy: Path) -> list[_File]:
    folder = copy.expanduser()
    if not folder.is_dir():
        raise DataError(f"{folder} is no folder; expected a copy of the published files of {benchmark.name}.")
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())
    names = [name for name in names if not name.startswith(".")]
    paths = {name: folder.resolve() / name for name in names}
    return [
        _File(name, paths[name].stat().st_size, file_sha256(paths[name]), "", "", "", str(paths[name]))
        for name in _matching(names, benchmark.files, str(folder))
    ]


def _hub_files(benchmark: KnownBenchmark, revision: str | None, endpoint: str | None) -> list[_File]:
    from huggingface_hub import HfApi

    files: list[_File] = []
    for repository in benchmark.repositories:
        with _hub(repository.repo, "be looked up"):
            info = HfApi(endpoint=endpoint).dataset_info(
                repository.repo, revision=revision or repository.revision, files_metadata=True
            )
        siblings = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        for name in _matching(sorted(siblings), repository.files, repository.repo):
            sibling = siblings[name]
            files.append(
                _File(
                    path=f"{repository.folder}/{name}" if repository.folder else name,
                    size=sibling.size or 0,
                    sha256=sibling.lfs.sha256 if sibling.lfs else "",
                    git=sibling.blob_id or "",
                    repo=repository.repo,
                    revision=info.sha or "",
                    there=name,
                )
            )
    return files


def _matching(names: Sequence[str], patterns: Sequence[str], source: str) -> list[str]:
    """The names that match a pattern. DataError if `source` has no such file besides a README."""
    chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns)]
    if all(name.endswith(".md") for name in chosen):
        raise DataError(
            f"{source} holds none of the files {', '.join(patterns)}; it has {', '.join(names[:8]) or 'none'}. "
            "It is another dataset, or it is published in another form now."
        )
    return chosen


def _complete(path: Path, file: _File) -> bool:
    if not path.is_file() or path.stat().st_size != file.size:
        return False
    return file_sha256(path) == file.sha256 if file.sha256 else not file.git or git_blob_of(path) == file.git


def _bring(file: _File, staging: Path, endpoint: str | None) -> None:
    """Copy or download a file, whole and verified, or not at all."""
    target = staging / file.path
    if file.repo:
        _download(file, target, endpoint)
        error: DataError | DownloadError = DownloadError(
            f"{file.there} of {file.repo} arrived with another size or checksum than the Hub states, and was removed. "
            "Fetch again; if that repeats, something on the way changes files."
        )
    else:
        _copy(file, target)
        error = DataError(f"{file.there} changed while it was copied. Remove {staging} and fetch again.")
    if not _complete(target, file):
        target.unlink(missing_ok=True)
        raise error


def _copy(file: _File, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        shutil.copyfile(file.there, temporary)
    except FileNotFoundError:
        raise DataError(f"{file.there} is gone; it was there when the copying began. Look at the source.") from None
    temporary.replace(target)


def _download(file: _File, target: Path, endpoint: str | None) -> None:
    from huggingface_hub import hf_hub_download

    folder = Path(str(target).removesuffix(file.there))
    with _hub(file.repo, f"give {file.there}"):
        hf_hub_download(
            file.repo, file.there, repo_type="dataset", revision=file.revision, local_dir=folder, endpoint=endpoint
        )


@contextmanager
def _hub(repo: str, action: str) -> Iterator[None]:
    """Turn errors of the Hub into DataError or DownloadError with advice."""
    from huggingface_hub import errors

    unreachable = (errors.HTTPError, errors.XetDownloadError, ConnectionError, TimeoutError)
    try:
        yield
    except errors.GatedRepoError as error:
        raise DataError(
            f"{repo} asks for its terms to be accepted on the Hub, and for the token of an account that did "
            f"(hf auth login): {first_line(error)}"
        ) from error
    except (*unreachable, errors.EntryNotFoundError) as error:
        missing = (errors.RepositoryNotFoundError, errors.RevisionNotFoundError, errors.EntryNotFoundError)
        if isinstance(error, missing) and not isinstance(error, errors.LocalEntryNotFoundError):
            raise DataError(
                f"{repo} is not on the Hub, or not in that revision: {first_line(error)} Check the name; a local copy "
                "is read with --from FOLDER."
            ) from error
        raise DownloadError(
            f"the Hub could not {action} of {repo} ({first_line(error)}). Run the same command again where the network "
            "reaches it: it goes on with what has arrived. A copy from another machine is read with --from FOLDER."
        ) from error


def _refuse_full(staging: Path, files: Sequence[_File]) -> None:
    missing = sum(file.size for file in files if not (staging / file.path).is_file())
    free = shutil.disk_usage(staging).free
    if missing > free:
        raise StorageError(f"{missing:,} bytes are to come and {free:,} are free in {staging.parent}. Free some space.")


def _finish(benchmark: KnownBenchmark, staging: Path, files: Sequence[_File], source: str) -> None:
    revisions = {file.repo: file.revision for file in files if file.repo}
    metadata = {
        "name": benchmark.name.removeprefix("beir/").removeprefix("mteb/").removeprefix("hub:"),
        "kind": benchmark.kind,
        "licence": benchmark.licence or card_licence(staging),
        "ignore_identical_ids": benchmark.ignore_identical_ids,
        "source": {"from": source, "revisions": revisions, "fetched": datetime.now(UTC).isoformat(timespec="seconds")},
        "files": {
            file.path: {"size": file.size, "sha256": file.sha256 or file_sha256(staging / file.path)} for file in files
        },
    }
    for folder in {staging, *((staging / file.path).parent for file in files)}:
        shutil.rmtree(folder / ".cache", ignore_errors=True)
    (staging / _PLAN).unlink()
    write_text(staging / SOURCE, json.dumps(metadata, indent=1) + "\n", _KEPT)
