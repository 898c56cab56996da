"""Addresses and tokens of services that were started for a run from outside, such as by a cluster job: files in one
folder.

`querylect serve --tell FOLDER/NAME.json` writes one, readable by its owner alone, once requests are taken. A run whose
config says `client.urls: local` and whose variable QUERYLECT_SERVICES names the folder asks the services of its
environment there and starts none of its own. So no short-lived address ends up in the settings of a run.
"""

import os
import shlex
from pathlib import Path

from pydantic import ValidationError

from ...configs.environment import EnvironmentConfig
from ...configs.section import Strict
from ...errors import ConfigError
from ...storage import data_sha256, storage
from .base import ServiceAddress

VARIABLE = "QUERYLECT_SERVICES"
PRIVATE = {"host": "127.0.0.1", "port": 0, "playground": False}
"""Settings of a run's own service, whatever the config says: it exposes no qrels."""


class Service(Strict):
    """One running service, as its file describes it."""

    url: str
    index: str
    """The index folder that it serves, as an absolute path."""
    settings: str
    """A hash of its settings, save those of PRIVATE: environments over one index may differ in their second stage."""
    token: str = ""
    """Its token; "" for that of `client.token_env`."""


def register_service(path: Path, url: str, config: EnvironmentConfig, token: str = "") -> None:
    """Write where the service of `config` answers, and its token, whole or not at all, for its owner alone.

    Raises StorageError.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    service = Service(url=url, index=_absolute(config), settings=_settings(config), token=token)
    with storage(
        lambda error: (
            f"the address of the service could not be written to {path} ({error.strerror}); name a file in a "
            "folder that exists and is yours: --tell FILE."
        )
    ):
        try:
            with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write(service.model_dump_json() + "\n")
            temporary.rename(path)
        finally:
            temporary.unlink(missing_ok=True)


def discover_services(config: EnvironmentConfig) -> list[ServiceAddress] | None:
    """This environment's services in the folder $QUERYLECT_SERVICES; None where it is not set.

    Raises ConfigError where it is set and the folder has no service of this environment.
    """
    location = os.environ.get(VARIABLE)
    if not location:
        return None
    folder = Path(location)
    services = [_read(path) for path in sorted(folder.glob("*.json"))]
    target = (_absolute(config), _settings(config))
    matching = [service for service in services if (service.index, service.settings) == target]
    if not matching:
        indexes = ", ".join(sorted({service.index for service in services})) or "none"
        raise ConfigError(
            f"no service of the index {_absolute(config)} with the settings of this environment is handed over in "
            f"{folder} (there: {indexes}). Start one with "
            f"`querylect serve CONFIG --tell {shlex.quote(str(folder))}/NAME.json`, or unset {VARIABLE}."
        )
    return [ServiceAddress(service.url, service.token or None) for service in matching]


def _read(path: Path) -> Service:
    try:
        return Service.model_validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds no url, index and settings"
        raise ConfigError(
            f"{path}, named by {VARIABLE}, cannot be read ({reason}). It is written by `querylect serve --tell`."
        ) from error


def _absolute(config: EnvironmentConfig) -> str:
    return str(config.index_folder.resolve())


def _settings(config: EnvironmentConfig) -> str:
    return data_sha256(config.model_dump(mode="json", exclude={*PRIVATE, "index", "verify"}))
