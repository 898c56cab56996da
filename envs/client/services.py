"""Services that were started for a run from outside, such as by a cluster job: a file with the URL of each, in the
folder that the variable QUERYLECT_SERVICES names. So no short-lived address ends up in the settings of a run.

`querylect serve --tell FOLDER/NAME.json` writes such a file once requests are taken.
"""

import json
import os
from pathlib import Path

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError
from ...storage import data_sha256, json_object

VARIABLE = "QUERYLECT_SERVICES"
PRIVATE = {"host": "127.0.0.1", "port": 0}
"""Settings of a run's own service, whatever the config says."""


def write_url(path: Path, url: str, config: EnvironmentConfig) -> None:
    """Write where the service of `config` answers, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps({"url": url, "environment": _identity(config)}))
    temporary.rename(path)


def service_urls(config: EnvironmentConfig) -> list[str] | None:
    """This environment's services in the folder $QUERYLECT_SERVICES; None where it is not set.

    Raises ConfigError where it is set and the folder has no service of this environment.
    """
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    services = [json_object(path) or {} for path in sorted(Path(folder).glob("*.json"))]
    urls = [service["url"] for service in services if service.get("environment") == _identity(config)]
    if not urls:
        raise ConfigError(
            f"{VARIABLE} is {folder!r}, and none of its {len(services)} services has the settings of this environment. "
            f"Start one with `querylect serve CONFIG --tell {folder}/NAME.json`, or unset {VARIABLE}."
        )
    return urls


def _identity(config: EnvironmentConfig) -> str:
    """A digest of the settings of an environment, without those of its service."""
    settings = config.model_dump(mode="json", exclude={*PRIVATE, "verify"})
    return data_sha256({**settings, "index": str(config.index_folder.resolve())})
