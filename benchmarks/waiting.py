"""What a client that asks for too much makes others wait for, and what memory the service takes.

    python benchmarks/waiting.py bodies http://host:8765                          # as long as the limits allow
    python benchmarks/waiting.py plans http://host:8765 --plans 128 --terms 64    # short texts, none asked before

Beside each request another client asks: /healthz during bodies, a search of one short text during plans. Memory is the
largest resident memory of the process that listens on that port, where it runs on this machine. QUERYLECT_TOKEN holds
the token, if there is one.
"""

import argparse
import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random

import httpx
import psutil
from machine import describe
from querylect.envs.plan import Probe, SearchPlan, Term

PAUSE = 0.02
"""Seconds between two requests of the client beside."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["bodies", "plans"])
    parser.add_argument("url")
    parser.add_argument("--plans", type=int, default=128)
    parser.add_argument("--terms", type=int, default=64)
    parser.add_argument("--word", default="blood", help="a word of the corpus, which every text holds")
    parser.add_argument("--limit", type=float, default=600.0, help="seconds after which the costly request is given up")
    args = parser.parse_args()
    print(describe())
    token = os.environ.get("QUERYLECT_TOKEN")
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    with httpx.Client(base_url=args.url, headers=headers, trust_env=False, timeout=args.limit) as http:
        if args.what == "plans":
            _measure(http, f"{args.plans} plans of {args.terms} texts", _plans(args), 1, _search(args.word))
            return
        limits = http.get("/v1/environment").json()["limits"]
        for name, (body, clients) in _bodies(limits["max_body_bytes"]).items():
            _measure(http, name, body, clients, lambda beside: beside.get("/healthz"))


def _bodies(max_bytes: int) -> Mapping[str, tuple[bytes, int]]:
    """What is sent, and by how many clients at once."""

    def filled(head: str, item: str, between: str, tail: str) -> bytes:
        count = (max_bytes - len(head) - len(tail)) // len((item + between).encode())
        return (head + between.join([item] * count) + tail).encode()

    probe = '{"plans":[{"probes":[{"terms":['
    text = probe + '{"text":"'
    fields = ",".join(f'"k{n}":0' for n in range(80_000))
    return {
        "items that are empty": (filled('{"plans":[', "{}", ",", "]}"), 1),
        "plans of an empty text": (filled('{"plans":[', '{"probes":[{"terms":[{"text":""}]}]}', ",", "]}"), 1),
        "empty texts of one plan": (filled(probe, '{"text":""}', ",", "]}]}]}"), 1),
        "one text": (filled(text, "a", "", '"}]}]}]}'), 1),
        "one text of escapes": (filled(text, "\\n", "", '"}]}]}]}'), 1),
        "80,000 unknown fields": (f'{{"plans":[{{{fields}}}]}}'.encode(), 1),
        "80,000 unknown fields, 8 clients": (f'{{"plans":[{{{fields}}}]}}'.encode(), 8),
        "one text, 16 clients": (filled(text, "\\u4e00", "", '"}]}]}]}'), 16),
    }


def _plans(args: argparse.Namespace) -> bytes:
    draw = Random(time.time_ns())
    plans = [
        SearchPlan(probes=(Probe(terms=tuple(Term(text=_text(args.word, draw)) for _ in range(args.terms))),))
        for _ in range(args.plans)
    ]
    return json.dumps({"plans": [plan.model_dump() for plan in plans], "with_text": False}).encode()


def _text(word: str, draw: Random) -> str:
    return f"{word} {draw.randrange(10**9)}"


def _search(word: str) -> Callable[[httpx.Client], httpx.Response]:
    draw = Random(time.time_ns() + 1)
    return lambda beside: beside.post("/v1/search", json={"plans": [SearchPlan.of(_text(word, draw)).model_dump()]})


def _measure(
    http: httpx.Client, name: str, body: bytes, clients: int, ask: Callable[[httpx.Client], httpx.Response]
) -> None:
    """Send the body from so many clients, ask beside them until all are answered, and print a line."""
    outcomes: Counter[str] = Counter()

    def send() -> None:
        try:
            outcomes[str(http.post("/v1/search", content=body).status_code)] += 1
        except httpx.TimeoutException:
            outcomes["given up"] += 1
        except httpx.TransportError:
            outcomes["closed"] += 1

    process = _service(http.base_url.port)
    idle = _largest(process, forget=True)
    threads = [threading.Thread(target=send, daemon=True) for _ in range(clients)]
    waited: list[float] = []
    started = time.perf_counter()
    for thread in threads:
        thread.start()
    with httpx.Client(base_url=http.base_url, headers=http.headers, trust_env=False, timeout=None) as beside:
        while not waited or any(thread.is_alive() for thread in threads):
            time.sleep(PAUSE)
            sent = time.perf_counter()
            ask(beside).raise_for_status()
            waited.append(time.perf_counter() - sent)
    seconds = time.perf_counter() - started
    memory = f"{idle} → {_largest(process)} MiB" if process else "unknown"
    size = f"{len(body) / 2**20:.1f} MiB"
    beside_it = f"{len(waited)} requests beside it waited at most {max(waited):.2f} s"
    print(f"{name}: {size}, {dict(outcomes)} in {seconds:.1f} s; {beside_it}; resident memory {memory}", flush=True)


def _service(port: int | None) -> psutil.Process | None:
    """The process of this machine that listens on the port."""
    for connection in psutil.net_connections("tcp"):
        if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
            return psutil.Process(connection.pid)
    return None


def _largest(process: psutil.Process | None, forget: bool = False) -> int:
    """MiB of the largest resident memory since it was last forgotten."""
    if process is None:
        return 0
    folder = Path(f"/proc/{process.pid}")
    if forget:
        (folder / "clear_refs").write_text("5")
    status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) // 1024


if __name__ == "__main__":
    main()
