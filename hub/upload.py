"""An export on the Hugging Face Hub: one commit per revision, which is there whole or not at all.

The main branch holds the checkpoint that `querylect eval` takes, a branch `checkpoint-N` another one. Files whose
content is there already are not sent again, so an interrupted upload goes on with the same command. Repositories are
private until the user says otherwise. The token is huggingface_hub's own business: HF_TOKEN or its login.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ..errors import HubRefusedError, HubUnavailableError, ModelError, first_line
from .exported import FILE, Exported, read_exported

log = logging.getLogger(__name__)

MAIN = "main"

SAFE = "Nothing of the run is lost; give the same command again and it goes on with what is missing."

OURS = (
    "*.safetensors",
    "*.safetensors.index.json",
    "adapter_config.json",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "prompt*.yaml",
    "tokenizer*",
    FILE,
)
"""What an export may consist of: such a file of an earlier one goes where the new one has none."""


class Repository:
    """One model repository."""

    def __init__(self, repo_id: str, endpoint: str | None = None) -> None:
        """Raises HubRefusedError for what cannot be a repository, or where nobody is logged in."""
        from huggingface_hub import HfApi, get_token
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        self.repo_id = repo_id
        try:
            validate_repo_id(repo_id)
        except HFValidationError as error:
            raise HubRefusedError(f"hub:{repo_id} cannot be a repository ({error}). Write hub:OWNER/NAME.") from error
        if repo_id.count("/") != 1:
            raise HubRefusedError(f"hub:{repo_id} names no owner. Write hub:OWNER/NAME.")
        if get_token() is None:
            raise HubRefusedError(
                f"nobody is logged in to the Hub, so {repo_id} cannot be written. Set HF_TOKEN to a token that may "
                "write, or run `hf auth login`."
            )
        self.api: Any = HfApi(endpoint=endpoint)

    def address(self, revision: str) -> str:
        """Where people see a revision."""
        page = f"{self.api.endpoint}/{self.repo_id}"
        return page if revision == MAIN else f"{page}/tree/{revision}"

    def open(self, public: bool, run_id: str, overwrite: bool) -> None:
        """Make the repository where there is none.

        Raises HubRefusedError where one stands there that is public and should not be, or holds another model; and as
        everything here HubRefusedError and HubUnavailableError for what the Hub answers.
        """
        with self._asked("be opened"):
            exists = self.api.repo_exists(self.repo_id)
            if not exists:
                self.api.create_repo(self.repo_id, private=not public)
                return
            private = bool(self.api.model_info(self.repo_id).private)
        if not private and not public:
            raise HubRefusedError(
                f"{self.repo_id} is public, and everyone would see the export. Give --public if that is wanted, else "
                "another repository or make this one private."
            )
        if private and public:
            log.warning("%s is private and stays so; make it public in its settings on the Hub", self.repo_id)
        there = self.exported(MAIN)
        if there is not None and there.run.id != run_id and not overwrite:
            raise HubRefusedError(
                f"{self.repo_id} holds an export of another run ({there.run.name!r}). Choose another repository, or "
                "replace it with --overwrite."
            )
        if there is None and not overwrite and any(_is_ours(name) for name in self._files(MAIN)):
            raise HubRefusedError(
                f"{self.repo_id} holds a model that is no export of this run. Choose another repository, or replace it "
                "with --overwrite."
            )

    def exported(self, revision: str) -> Exported | None:
        """What the revision holds; None where it does not exist, holds no export, or one that cannot be read."""
        from huggingface_hub import errors

        with self._asked(f"be read at {revision}"), TemporaryDirectory() as place:
            try:
                self.api.hf_hub_download(self.repo_id, FILE, revision=revision, local_dir=place)
                return read_exported(Path(place))
            except (errors.RevisionNotFoundError, errors.EntryNotFoundError, ModelError) as error:
                if isinstance(error, errors.LocalEntryNotFoundError):
                    raise
                return None

    def put(self, folder: Path, revision: str, message: str) -> None:
        """Commit the files of `folder` to the branch, which is made where it is missing."""
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        with self._asked(f"take {revision}"):
            if revision != MAIN:
                first = self.api.list_repo_commits(self.repo_id)[-1].commit_id
                self.api.create_branch(self.repo_id, branch=revision, revision=first, exist_ok=True)
            names = sorted(path.name for path in folder.iterdir() if path.is_file())
            stale = [name for name in self._files(revision) if _is_ours(name) and name not in names]
            self.api.create_commit(
                self.repo_id,
                [
                    *(CommitOperationAdd(name, str(folder / name)) for name in names),
                    *(CommitOperationDelete(name) for name in stale),
                ],
                commit_message=message,
                revision=revision,
            )

    def _files(self, revision: str) -> list[str]:
        with self._asked(f"be listed at {revision}"):
            return [str(name) for name in self.api.list_repo_files(self.repo_id, revision=revision)]

    @contextmanager
    def _asked(self, what: str) -> Iterator[None]:
        """Turns what goes wrong with the Hub into errors that say what to do."""
        from huggingface_hub import errors

        try:
            yield
        except errors.OfflineModeIsEnabled as error:
            raise HubRefusedError(
                f"{self.repo_id} could not {what}: the environment says HF_HUB_OFFLINE. Unset it, or export to a "
                "folder."
            ) from error
        except (errors.HTTPError, errors.XetDownloadError, OSError, RuntimeError) as error:
            # An upload in a thread hides what the Hub said behind an error of its own, and the storage behind the Hub
            # answers in errors of Python's.
            found = _of_the_hub(error)
            if found is None:
                raise HubUnavailableError(f"{self.repo_id} could not {what}: {_first_line(error)}. {SAFE}") from error
            raise self._said(found, what) from error
        except ValueError as error:
            if "metadata" not in str(error):
                raise
            reason = " ".join(str(error).split())[:300]
            raise HubRefusedError(
                f"the Hub does not take the model card of {self.repo_id} ({reason}). Most often it is the licence: "
                "state one that the Hub knows with --license."
            ) from error

    def _said(self, error: BaseException, what: str) -> Exception:
        """The error for what the Hub answered, by its status."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        head = f"{self.repo_id} could not {what}"
        owner = self.repo_id.partition("/")[0]
        if status == 401:
            return HubRefusedError(
                f"{head}: the Hub does not accept the token (HTTP 401), which is wrong, expired or missing. Set "
                "HF_TOKEN, or run `hf auth login`, and give the same command again."
            )
        if status == 403:
            return HubRefusedError(
                f"{head}: the token may not do that (HTTP 403: {_first_line(error)}). Take one with write access to "
                f"{owner}, or a repository of your own."
            )
        if status == 404:
            return HubRefusedError(
                f"{head}: the Hub knows no such place (HTTP 404), or hides it from this token. Look whether the owner "
                f"{owner!r} is spelled rightly and the token may see it."
            )
        if status == 409:
            return HubRefusedError(
                f"{head}: something else is changing it, or has just done so (HTTP 409). Wait until that is over and "
                "give the same command again."
            )
        if status == 429:
            return HubUnavailableError(f"{head}: the Hub asks for patience (HTTP 429). Wait some minutes. {SAFE}")
        if status is not None and 400 <= status < 500:
            return HubRefusedError(f"{head}: the Hub refuses it (HTTP {status}: {_first_line(error)}).")
        if status is not None:
            return HubUnavailableError(f"{head}: the Hub has a fault of its own (HTTP {status}). {SAFE}")
        late = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
        reason = "it did not answer in time" if late else f"it cannot be reached ({_first_line(error)})"
        return HubUnavailableError(f"{head}: {self.api.endpoint}: {reason}. {SAFE}")


def _is_ours(name: str) -> bool:
    return any(fnmatch(name, pattern) for pattern in OURS)


def _of_the_hub(error: BaseException | None) -> BaseException | None:
    """The error of HTTP in a chain of causes: the one that has a status, where there is one."""
    from huggingface_hub import errors

    kinds = (errors.HTTPError, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    found = []
    while error is not None:
        if isinstance(error, kinds):
            found.append(error)
        error = error.__cause__
    return next((one for one in found if getattr(one, "response", None) is not None), found[0] if found else None)


def _first_line(error: BaseException) -> str:
    said = getattr(error, "server_message", None)
    return str(said).splitlines()[0][:200] if said else first_line(error, 200)
