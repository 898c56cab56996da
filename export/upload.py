"""Uploads of an export to the Hugging Face Hub, in one atomic commit.

Files whose content is on the Hub already are not sent again, so repeating an interrupted upload continues it.
Repositories are private by default. huggingface_hub finds the token itself (HF_TOKEN or its login).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..errors import ConfigError, HubError, ModelError, in_one_line
from .exported import FILE, Exported, read_exported

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
    """One model repository. All methods raise HubError for what huggingface_hub raises."""

    def __init__(self, repo_id: str, endpoint: str | None = None) -> None:
        """Raises ConfigError for a name that is not OWNER/NAME."""
        from huggingface_hub import HfApi

        if repo_id.count("/") != 1:
            raise ConfigError(f"hub:{repo_id} is no repository. Write hub:OWNER/NAME.")
        self.repo_id, self.api = repo_id, HfApi(endpoint=endpoint)

    @property
    def address(self) -> str:
        """URL of its page."""
        return f"{self.api.endpoint}/{self.repo_id}"

    def open(self, public: bool, run_id: str, overwrite: bool) -> None:
        """Create the repository if it does not exist.

        Raises ConfigError if it exists and is public without `public`, or holds another model without `overwrite`.
        """
        from huggingface_hub.utils import filter_repo_objects

        with _hub_errors(self.repo_id):
            self.api.create_repo(self.repo_id, private=not public, exist_ok=True)
            private = bool(self.api.model_info(self.repo_id).private)
            files = self.api.list_repo_files(self.repo_id)
        if not private and not public:
            raise ConfigError(
                f"{self.repo_id} is public, and everyone would see the export. Give --public if that is wanted, else "
                "another repository or make this one private."
            )
        existing = self.exported()
        is_same_run = existing is not None and existing.run.id == run_id
        if not (overwrite or is_same_run) and any(filter_repo_objects(files, allow_patterns=list(OURS))):
            raise ConfigError(
                f"{self.repo_id} holds a model that is no export of this run. Choose another repository, or replace it "
                "with --overwrite."
            )

    def exported(self) -> Exported | None:
        """The export in it; None if it has no readable one."""
        from huggingface_hub import errors

        with _hub_errors(self.repo_id), TemporaryDirectory() as folder:
            try:
                self.api.hf_hub_download(self.repo_id, FILE, local_dir=folder)
                return read_exported(Path(folder))
            except (errors.RemoteEntryNotFoundError, ModelError):
                return None

    def put(self, folder: Path, message: str) -> None:
        """Commit the files of `folder`."""
        with _hub_errors(self.repo_id):
            self.api.upload_folder(
                repo_id=self.repo_id, folder_path=folder, commit_message=message, delete_patterns=list(OURS)
            )


@contextmanager
def _hub_errors(repo_id: str) -> Iterator[None]:
    """Raise errors of huggingface_hub as HubError, with their message."""
    from huggingface_hub import errors

    try:
        yield
    # an invalid model card is a ValueError, and a failed upload in a thread a RuntimeError
    except (errors.HTTPError, errors.XetDownloadError, OSError, RuntimeError, ValueError) as error:
        raise HubError(
            f"{repo_id}: {in_one_line(error, 500)} Given again, the command goes on with what is missing."
        ) from error
