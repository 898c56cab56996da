"""A real PostgreSQL of the tests' own: a throw-away cluster in a temporary folder, listening on a socket there alone.

Skipped where Debian's package postgresql is missing. The server refuses to run as root, so root starts it as the user
that the package has made.
"""

import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp

import pytest

USER = {"user": "postgres", "group": "postgres", "extra_groups": []} if os.geteuid() == 0 else {}


@dataclass(frozen=True)
class PostgresServer:
    """A cluster, running or not."""

    folder: Path
    programs: Path

    @property
    def url(self) -> str:
        """Of its only database."""
        return f"postgresql://tester@/postgres?host={self.folder}"

    def run(self, program: str, *arguments: str) -> None:
        """One of its programs to its end."""
        command = [self.programs / program, "-D", self.folder / "data", *arguments]
        subprocess.run(command, cwd=self.folder, check=True, stdout=subprocess.DEVNULL, **USER)

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = f"-c listen_addresses='' -c fsync=off -k {self.folder}"
        self.run("pg_ctl", "start", "-w", "-t", "300", "-l", str(self.folder / "log"), "-o", options)

    def stop(self) -> None:
        """Stop it at once, whoever is connected."""
        self.run("pg_ctl", "stop", "-w", "-t", "300", "-m", "immediate")


@pytest.fixture(scope="module")
def postgres() -> Iterator[PostgresServer]:
    """A running server for the tests of one module."""
    pytest.importorskip("psycopg", reason="no psycopg: pip install -e '.[postgres]'")
    programs = max(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: int(path.parent.name), default=None)
    if programs is None:
        pytest.skip("no PostgreSQL in /usr/lib/postgresql: apt-get install postgresql")
    folder = Path(mkdtemp(prefix="querylect-postgres-"))  # not below the folders of pytest, which only root may enter
    if USER:
        shutil.chown(folder, USER["user"], USER["group"])
    server = PostgresServer(folder, programs)
    try:
        server.run("initdb", "--username=tester", "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
        server.start()
        yield server
        server.stop()
    finally:
        shutil.rmtree(folder)
