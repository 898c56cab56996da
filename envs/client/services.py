"""Services that were started for a run from outside, such as by a cluster job: a file with the URL of each, in the
folder that the variable QUERYLECT_SERVICES names. So no short-lived address ends up in the settings of a run.

`querylect serve --tell FOLDER/NAME.json` writes such a file once requests are taken. `python -m
querylect.envs.client.services HOST` prints the address of this machine that HOST reaches, so that a job's servers
listen there and not on all interfaces.
"""

import json
import os
import socket
import sys
from pathlib import Path

from ...configs.environment import EnvironmentConfig
from ...errors import ConfigError
from ...storage import data_sha256

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
    services = [json.loads(path.read_text()) for path in sorted(Path(folder).glob("*.json"))]
    urls = [service["url"] for service in services if service["environment"] == _identity(config)]
    if not urls:
        raise ConfigError(
            f"{VARIABLE} is {folder!r}, and none of its {len(services)} services has the settings of this environment. "
            f"Start one with `querylect serve CONFIG --tell {folder}/NAME.json`, or unset {VARIABLE}."
        )
    return urls


def source_address_for(host: str) -> str:
    """The local address from which the network reaches `host`; nothing is sent. Raises OSError for an unknown host."""
    family, _, _, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _identity(config: EnvironmentConfig) -> str:
    """A digest of the settings of an environment, without those of its service."""
    settings = config.model_dump(mode="json", exclude={*PRIVATE, "verify"})
    return data_sha256({**settings, "index": str(config.index_folder.resolve())})


if __name__ == "__main__":
    sys.stdout.write(source_address_for(sys.argv[1]) + "\n")
