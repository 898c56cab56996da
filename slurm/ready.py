"""Waits until the services of a job answer: `python -m querylect.slurm.ready FOLDER COUNT SECONDS`.

A service is known once it has written its address into the folder (envs/client/services.py), and ready once /readyz
answers 200 from here, so that a firewall between two nodes is found before a trainer is loaded. Standard library only.
"""

import json
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import ProxyHandler, build_opener

PAUSE = 0.2
_open = build_opener(ProxyHandler({})).open


def problem_of(url: str) -> str | None:
    """Why the service is not ready; None where it is."""
    try:
        with _open(f"{url}/readyz", timeout=5):
            return None
    except (URLError, TimeoutError, ConnectionError) as error:
        return str(getattr(error, "reason", None) or error)


def registered_urls(folder: Path) -> list[str]:
    """The addresses in the folder; a file that vanishes meanwhile is skipped."""
    urls = []
    for path in folder.glob("*.json"):
        with suppress(FileNotFoundError):
            urls.append(json.loads(path.read_text())["url"])
    return urls


def wait(folder: Path, count: int, seconds: float) -> str | None:
    """Wait until `count` services are ready; gives what is wrong where they are not in time."""
    deadline = time.monotonic() + seconds
    while True:
        urls = registered_urls(folder)
        problems = {url: problem for url in urls if (problem := problem_of(url)) is not None}
        if len(urls) == count and not problems:
            sys.stdout.write(f"ready: {', '.join(sorted(urls))}\n")
            return None
        if time.monotonic() >= deadline:
            unreachable = "".join(f"; {url} does not answer here ({problem})" for url, problem in problems.items())
            return (
                f"after {seconds:g} s {len(urls)} of {count} retrievers have told their address{unreachable}. Look at "
                "their logs beside this one; READY_SECONDS=… waits longer."
            )
        time.sleep(PAUSE)


def main(arguments: Sequence[str]) -> int:
    folder, count, limit = arguments
    problem = wait(Path(folder), int(count), float(limit))
    if problem is not None:
        sys.stderr.write(problem + "\n")
    return 0 if problem is None else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
