"""The address of this machine that another one of the cluster reaches.

`python -m querylect.envs.client.source_address HOST` prints that address, so that a job's servers listen there and not
on all interfaces.
"""

import socket
import sys

from ...errors import ConfigError


def source_address_for(host: str) -> str:
    """The local address from which the network reaches `host`; nothing is sent. Raises ConfigError for a host that is
    not known here."""
    try:
        info = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(info[0], socket.SOCK_DGRAM) as probe:
            probe.connect(info[4])
            return str(probe.getsockname()[0])
    except OSError as error:
        raise ConfigError(
            f"no way from {socket.gethostname()} to {host!r} ({error.strerror or error}); give the name or address of "
            "a machine that shall reach this one."
        ) from error


if __name__ == "__main__":
    sys.stdout.write(source_address_for(sys.argv[1]) + "\n")
