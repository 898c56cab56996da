"""`querylect data get`: copies the published files of a benchmark unchanged, from the Hub or from a local copy.

Files are collected in `.NAME.partial` beside the target, which is renamed to it once all are there; a second call goes
on with what an interrupted download left there (`snapshot_download`).
"""

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from fnmatch import fnmatch
from pathlib import Path

from ..errors import DataError, HubError, in_one_line
from ..storage import file_sha256, write_text, writing
from .fetched import SOURCE, card_licence
from .known import HubFiles, KnownBenchmark


def fetch(
    benchmark: KnownBenchmark,
    target: Path,
    copy: Path | None = None,
    revision: str | None = None,
    endpoint: str | None = None,
) -> Path:
    """Fetch a benchmark into the new folder `target`, from the Hub or from the local copy `copy`; return the folder.

    `revision` is a commit or branch of its repository (None: the newest); `endpoint` is another Hub. Raises DataError
    if the target exists, or the source is missing; HubError if the Hub does not answer (the same call resumes);
    StorageError if the files cannot be written.
    """
    target = target.expanduser()
    if target.exists():
        raise DataError(
            f"{target} exists already. Check it (querylect data check {target}), remove it or name another."
        )
    if copy is None and not benchmark.repositories:
        raise DataError(f"{benchmark.name} cannot be fetched by a program: {benchmark.by_hand}.")
    staging = target.with_name(f".{target.name}.partial")
    with writing(target):
        staging.mkdir(parents=True, exist_ok=True)
        revisions: dict[str, str] = {}
        if copy is not None:
            source = str(copy.expanduser().resolve())
            _copy(benchmark, copy.expanduser(), staging)
        else:
            source = ", ".join(repository.repo for repository in benchmark.repositories)
            for repository in benchmark.repositories:
                revisions[repository.repo] = _download(repository, staging, revision, endpoint)
        _describe(benchmark, staging, source, revisions)
        staging.rename(target)
    return target


def _copy(benchmark: KnownBenchmark, copy: Path, staging: Path) -> None:
    if not copy.is_dir():
        raise DataError(f"{copy} is no folder; expected a copy of the published files of {benchmark.name}.")
    names = sorted(str(path.relative_to(copy)) for path in copy.rglob("*") if path.is_file())
    for name in _matching(names, benchmark.files, str(copy)):
        (staging / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(copy / name, staging / name)


def _download(repository: HubFiles, staging: Path, revision: str | None, endpoint: str | None) -> str:
    """Download the files of a repository; return the commit."""
    from huggingface_hub import HfApi, snapshot_download

    with _hub(repository.repo):
        info = HfApi(endpoint=endpoint).dataset_info(repository.repo, revision=revision or repository.revision)
        _matching([sibling.rfilename for sibling in info.siblings or ()], repository.files, repository.repo)
        snapshot_download(
            repository.repo,
            repo_type="dataset",
            revision=info.sha,
            allow_patterns=list(repository.files),
            local_dir=staging / repository.folder,
            endpoint=endpoint,
        )
    return info.sha or ""


def _matching(names: Sequence[str], patterns: Sequence[str], source: str) -> list[str]:
    """The names that match a pattern. DataError if `source` has no such file besides a README."""
    chosen = [name for name in names if any(fnmatch(name, pattern) for pattern in patterns) and name[0] != "."]
    if all(name.endswith(".md") for name in chosen):
        raise DataError(
            f"{source} holds none of the files {', '.join(patterns)}; it has {', '.join(names[:8]) or 'none'}. "
            "It is another dataset, or it is published in another form now."
        )
    return chosen


@contextmanager
def _hub(repo: str) -> Iterator[None]:
    """Turn errors of the Hub into DataError or HubError with advice."""
    from huggingface_hub import errors

    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError) as error:  # GatedRepoError among them
        raise DataError(
            f"{repo}: {in_one_line(error)} Check the name, and the terms of the repository on the Hub; a local copy is "
            "read with --from FOLDER."
        ) from error
    except (errors.HTTPError, errors.XetDownloadError, errors.EntryNotFoundError, OSError) as error:
        raise HubError(
            f"the Hub could not give {repo} ({in_one_line(error)}). Run the same command again where the network "
            "reaches it: it goes on with what has arrived. A copy from another machine is read with --from FOLDER."
        ) from error


def _describe(benchmark: KnownBenchmark, staging: Path, source: str, revisions: dict[str, str]) -> None:
    """Write `source.json`, without what the Hub's library left for itself."""
    for cache in staging.rglob(".cache"):
        shutil.rmtree(cache)
    files = {path.relative_to(staging).as_posix(): path for path in sorted(staging.rglob("*")) if path.is_file()}
    metadata = {
        "name": benchmark.name.removeprefix("beir/").removeprefix("hub:"),
        "kind": benchmark.kind,
        "licence": benchmark.licence or card_licence(staging),
        "ignore_identical_ids": benchmark.ignore_identical_ids,
        "source": {"from": source, "revisions": revisions, "fetched": datetime.now(UTC).isoformat(timespec="seconds")},
        "files": {name: {"size": path.stat().st_size, "sha256": file_sha256(path)} for name, path in files.items()},
    }
    write_text(staging / SOURCE, json.dumps(metadata, indent=1) + "\n")
