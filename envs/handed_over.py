"""Addresses of services that something else has started for a run, such as a cluster's job: files in one folder.

`querylect serve --tell FOLDER/NAME.json` writes one, readable by its owner alone, once requests are taken. A run whose
config says `client.urls: local` and whose variable QUERYLECT_SERVICES names the folder asks the services of its index
there and starts none of its own. So no address that is gone tomorrow ends up in the settings of a run.
"""

import json
import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from ..configs.environment import EnvironmentConfig
from ..errors import ConfigError, StorageError

VARIABLE = "QUERYLECT_SERVICES"


class Service(BaseModel):
    """One running service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    index: str
    """The index folder that it serves, as an absolute path."""


def tell(path: Path, url: str, config: EnvironmentConfig) -> None:
    """Write where the service of `config` answers, whole or not at all, for its owner alone. Raises StorageError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(json.dumps({"url": url, "index": _absolute(config)}) + "\n")
        temporary.rename(path)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise StorageError(
            f"the address of the service could not be written to {path} ({error.strerror}); name a file in a folder "
            "that exists and is yours: --tell FILE."
        ) from error


def handed_over(config: EnvironmentConfig) -> list[str] | None:
    """The URLs of the services of this environment; None where nobody hands any over.

    Raises ConfigError where somebody does and this environment is not among them.
    """
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    folder = Path(named)
    found = [_read(path) for path in sorted(folder.glob("*.json"))]
    urls = [service.url for service in found if service.index == _absolute(config)]
    if not urls:
        indexes = ", ".join(sorted({service.index for service in found})) or "none"
        raise ConfigError(
            f"no service of the index {_absolute(config)} is handed over in {folder} (there: {indexes}). Start one "
            f"with `querylect serve CONFIG --tell {folder}/NAME.json`, or unset {VARIABLE}."
        )
    return urls


def _read(path: Path) -> Service:
    try:
        return Service.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no url and index"
        raise ConfigError(
            f"{path}, named by {VARIABLE}, cannot be read ({reason}). It is written by `querylect serve --tell`."
        ) from error


def _absolute(config: EnvironmentConfig) -> str:
    return str(Path(config.index).expanduser().resolve())
