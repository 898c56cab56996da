"""Uploads of an export to the Hugging Face Hub, with one atomic commit per revision.

The main branch holds the checkpoint that `querylect eval` takes, each branch `checkpoint-N` a numbered one. Files whose
content is on the Hub already are not sent again, so repeating an interrupted upload continues it. Repositories are
private by default. huggingface_hub finds the token itself (HF_TOKEN or its login).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import HubRefusedError, HubUnavailableError, ModelError, first_line, in_one_line
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
"""File patterns of an export. A matching file on the Hub that the new export lacks is deleted."""


class HubRepository:
    """One model repository."""

    def __init__(self, repo_id: str, endpoint: str | None = None) -> None:
        """Raises HubRefusedError for an invalid repository id, or without a token."""
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
        self.api = HfApi(endpoint=endpoint)

    def address(self, revision: str) -> str:
        """URL of a revision's page."""
        page = f"{self.api.endpoint}/{self.repo_id}"
        return page if revision == MAIN else f"{page}/tree/{revision}"

    def open(self, public: bool, run_id: str, overwrite: bool) -> None:
        """Create the repository if it does not exist.

        Raises HubRefusedError if it exists and is public without `public`, or holds another model. As all methods
        here, it also raises HubRefusedError and HubUnavailableError for errors of the Hub.
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
        existing = self.exported(MAIN)
        if existing is not None and existing.run.id != run_id and not overwrite:
            raise HubRefusedError(
                f"{self.repo_id} holds an export of another run ({existing.run.name!r}). Choose another repository, or "
                "replace it with --overwrite."
            )
        if existing is None and not overwrite and self._holds_a_model():
            raise HubRefusedError(
                f"{self.repo_id} holds a model that is no export of this run. Choose another repository, or replace it "
                "with --overwrite."
            )

    def _holds_a_model(self) -> bool:
        from huggingface_hub.utils import filter_repo_objects

        with self._asked(f"be listed at {MAIN}"):
            return any(filter_repo_objects(self.api.list_repo_files(self.repo_id), allow_patterns=list(OURS)))

    def exported(self, revision: str) -> Exported | None:
        """The export at the revision; None if the revision does not exist or has no readable export."""
        from huggingface_hub import errors

        with self._asked(f"be read at {revision}"), TemporaryDirectory() as folder:
            try:
                self.api.hf_hub_download(self.repo_id, FILE, revision=revision, local_dir=folder)
                return read_exported(Path(folder))
            except (errors.RevisionNotFoundError, errors.EntryNotFoundError, ModelError) as error:
                if isinstance(error, errors.LocalEntryNotFoundError):
                    raise
                return None

    def put(self, folder: Path, revision: str, message: str) -> None:
        """Commit the files of `folder` to the branch, which is created if missing."""
        with self._asked(f"take {revision}"):
            if revision != MAIN:
                first = self.api.list_repo_commits(self.repo_id)[-1].commit_id
                self.api.create_branch(self.repo_id, branch=revision, revision=first, exist_ok=True)
            self.api.upload_folder(
                repo_id=self.repo_id,
                folder_path=folder,
                commit_message=message,
                revision=revision,
                delete_patterns=list(OURS),
            )

    @contextmanager
    def _asked(self, action: str) -> Iterator[None]:
        """Convert errors of the Hub into HubRefusedError and HubUnavailableError. `action` completes "could not …"."""
        from huggingface_hub import errors

        try:
            yield
        except errors.OfflineModeIsEnabled as error:
            raise HubRefusedError(
                f"{self.repo_id} could not {action}: the environment says HF_HUB_OFFLINE. Unset it, or export to a "
                "folder."
            ) from error
        except (errors.HTTPError, errors.XetDownloadError, OSError, RuntimeError) as error:
            # Threaded uploads wrap the Hub's error in one of their own, and the storage backend raises errors of the
            # standard library.
            cause = _http_cause(error)
            if cause is None:
                raise HubUnavailableError(f"{self.repo_id} could not {action}: {_first_line(error)}. {SAFE}") from error
            raise self._hub_error(cause, action) from error
        except ValueError as error:
            if "metadata" not in str(error):
                raise
            raise HubRefusedError(
                f"the Hub does not take the model card of {self.repo_id} ({in_one_line(error)}). Most often it is the "
                "licence: state one that the Hub knows with --license."
            ) from error

    def _hub_error(self, error: BaseException, action: str) -> Exception:
        """The exception for an error of the Hub, by its HTTP status."""
        status = getattr(getattr(error, "response", None), "status_code", None)
        head = f"{self.repo_id} could not {action}"
        owner = self.repo_id.partition("/")[0]
        refusals = {
            401: (
                "the Hub does not accept the token (HTTP 401), which is wrong, expired or missing. Set HF_TOKEN, or "
                "run `hf auth login`, and give the same command again.",
            ),
            403: (
                f"the token may not do that (HTTP 403: {_first_line(error)}). Take one with write access to {owner}, "
                "or a repository of your own.",
            ),
            404: (
                "the Hub knows no such place (HTTP 404), or hides it from this token. Look whether the owner "
                f"{owner!r} is spelled rightly and the token may see it.",
            ),
            409: (
                "something else is changing it, or has just done so (HTTP 409). Wait until that is over and give the "
                "same command again.",
            ),
        }
        if status in refusals:
            return HubRefusedError(f"{head}: {refusals[status]}")
        if status == 429:
            return HubUnavailableError(f"{head}: the Hub asks for patience (HTTP 429). Wait some minutes. {SAFE}")
        if status is not None and 400 <= status < 500:
            return HubRefusedError(f"{head}: the Hub refuses it (HTTP {status}: {_first_line(error)}).")
        if status is not None:
            return HubUnavailableError(f"{head}: the Hub has a fault of its own (HTTP {status}). {SAFE}")
        late = isinstance(error, TimeoutError) or "Timeout" in type(error).__name__
        reason = "it did not answer in time" if late else f"it cannot be reached ({_first_line(error)})"
        message = f"{head}: {self.api.endpoint}: {reason}. {SAFE}"
        return HubUnavailableError(message)


def _http_cause(error: BaseException | None) -> BaseException | None:
    """The HTTP or network error in a chain of causes, preferably one with a response."""
    from huggingface_hub import errors

    kinds = (errors.HTTPError, errors.LocalEntryNotFoundError, ConnectionError, TimeoutError)
    causes = []
    while error is not None:
        if isinstance(error, kinds):
            causes.append(error)
        error = error.__cause__
    return next(
        (cause for cause in causes if getattr(cause, "response", None) is not None), causes[0] if causes else None
    )


def _first_line(error: BaseException) -> str:
    message = getattr(error, "server_message", None)
    return str(message).splitlines()[0][:200] if message else first_line(error, 200)
