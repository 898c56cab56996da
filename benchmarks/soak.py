"""Everything that goes wrong around an environment service, done to a real one, in a bounded time.

    python benchmarks/soak.py [--minutes 5] [--requests 10000] [--drawn 0.25] [--beir FOLDER]

`querylect serve` runs over a real BM25 index (the 9,000 terms of `hpo` where --beir names nothing else) with a token, a
queue of 256 plans and five seconds for a request to arrive. Clients are the project's own, and the training run is
`querylect train` of a tiny policy that keeps the format. One after the other: wrong tokens, index files that are cut,
malformed requests, slow senders, storms of 503, and a training run whose service is killed with SIGKILL while a request
is on its way and comes back on the same port, now and then only after the client's deadline; then all of it at once
for the rest of the time.

What must hold: no 500 and no answer that the service's OpenAPI document does not declare; every sample asked for is
scored or unscorable; every reward is the one that this process computes from the same index, none stands for a sample
without an answer; no training step is missing or twice; the service's memory over the malformed requests is flat
within 5 %. Exit code 1 where anything does not. It needs a checkout with the extra dev: policy and requests come from
tests/.
"""

import argparse
import logging
import multiprocessing
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

import httpx
from machine import describe
from querylect.configs.load import dump_config
from querylect.configs.schema import ClientConfig, DatasetConfig, EnvironmentConfig, RunConfig
from querylect.envs.client.client import SyncEnvironmentClient
from querylect.envs.environment import Environment
from querylect.envs.index.build import (
    build_index,
)
from querylect.errors import QuerylectError, StoppedError, TokenError
from querylect.logs import set_up_logging
from querylect.tests.lessons import PROMPT, save_speaking
from querylect.tests.malformed import Sent, damaged, send_damaged, send_drawn, send_raw
from soak_judge import Asker, Row, judge_run
from soak_processes import Run, Service, with_token
from soak_slow import hold_up

TOKEN = "soak-5f1c"
TOKEN_ENV = "QUERYLECT_SOAK_TOKEN"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}
READ_SECONDS = 5.0
CLIENT = ClientConfig(urls=["http://unused"], token_env=TOKEN_ENV, timeout=10.0, deadline=30.0)
FLAT = 1.05
PATIENCE = 240.0
"""Seconds for a start, a stop or a step on a busy machine."""


class Soak:
    """One service, and what is done to it."""

    def __init__(self, folder: Path, beir: str | None, drawn: float) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.folder, self.drawn, self.rows = folder, drawn, list[Row]()
        self.config = run_config(folder, f"http://127.0.0.1:{port}", beir)
        build_index(self.config.env)
        self.here = Environment.open(self.config.env)
        self.yaml = folder / "run.yaml"
        self.yaml.write_text(dump_config(self.config))
        self.service = Service(self.yaml, port, TOKEN, folder / "service.log")
        self.asker = Asker(self.here, CLIENT.model_copy(update={"deadline": 15.0}), self.service.url)

    @contextmanager
    def row(self, what: str, flat: bool = False) -> Iterator[Row]:
        """A part of the soak: its statuses by the service's log, its memory, and whether the service still serves."""
        row, started, mark = Row(what), time.perf_counter(), self.service.mark()
        before, starts = self.service.resident(), self.service.starts
        try:
            yield row
        except (RuntimeError, QuerylectError, httpx.TransportError) as error:
            row.wrong.append(f"{type(error).__name__}: {error}")
        row.seconds, row.statuses = time.perf_counter() - started, self.service.statuses(mark)
        if self.service.starts == starts and self.service.alive():
            row.memory = before, self.service.resident()
        row.check(self.service.alive(), "the service is gone")
        row.check(row.statuses[500] == 0, f"{row.statuses[500]} answers 500; {self.service.log} says why")
        row.check(not flat or (row.memory or (0, 1))[1] <= FLAT * before, f"memory {row.memory} grew by more than 5 %")
        row.add_up()
        self.rows.append(row)
        print("\n  BROKEN: ".join([f"  {what}: {row.seconds:.0f} s", *row.wrong[:3]]), flush=True)

    def wrong_tokens(self) -> None:
        """Whatever stands in the place of the token, every call but the health checks is refused."""
        with self.row("wrong tokens") as row:
            wrong = ["Bearer wrong", f"Bearer {TOKEN}x", f"Basic {TOKEN}", "Bearer", TOKEN, "", f"Bearer {TOKEN[:-1]}"]
            draw, answered = random.Random(3), Counter()
            with httpx.Client(base_url=self.service.url, trust_env=False, timeout=30) as http:
                for number in range(350):
                    method, path, headers, body = damaged(draw)
                    if path.partition("?")[0] not in ("/", "/healthz", "/readyz"):
                        headers = {**headers, "Authorization": wrong[number % len(wrong)]}
                        answered[http.request(method, path, content=body, headers=headers).status_code] += 1
            row.check(set(answered) == {401}, f"answered {dict(answered)}, not 401 alone")
            nobody = CLIENT.model_copy(update={"token_env": "QUERYLECT_NO_TOKEN"})
            with SyncEnvironmentClient(nobody, [self.service.url]) as client:
                try:
                    row.wrong.append(f"without a token: {client.step(self.asker.samples(2))}")
                except TokenError:
                    row.check(client.stats.attempts == 1, f"refused, the client tried {client.stats.attempts} times")
            code = Run(self.yaml, self.folder / "none", self.folder / "refused.log", "wrong").end()
            row.check(code == 2, f"a training run with a wrong token ended with {code}, not 2")
            row.notes.append("client: TokenError at once; training run: exit code 2")

    def cut_index(self) -> None:
        """A file of the index that is cut is named before anything is served."""
        with self.row("cut index files") as row:
            files = sorted(Path(self.config.env.index).iterdir(), key=lambda path: path.stat().st_size)
            for file in (files[0], files[-2], files[-1]):  # the manifest, postings and documents
                copy = self.folder / "cut"
                shutil.rmtree(copy, ignore_errors=True)
                shutil.copytree(self.config.env.index, copy)
                os.truncate(copy / file.name, file.stat().st_size // 2)
                command = [sys.executable, "-m", "querylect", "serve", str(self.yaml), f"env.index={copy}"]
                ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, env=with_token(TOKEN))
                row.check(
                    ended.returncode == 2 and file.name in ended.stderr and "Traceback" not in ended.stderr,
                    f"{file.name} cut: exit code {ended.returncode}, {ended.stderr.strip().splitlines()[-1:]}",
                )
            row.notes.append("three files, each cut to half: exit code 2 and the name of the file")

    def warm_up(self, requests: int) -> None:
        """A little of everything, so that memory is compared with that of a service in use."""
        with self.row("warm-up") as row:
            row.wrong += self._malformed(requests // 10, seed=1).wrong
            self.asker.ask(row, clients=8, samples=64, times=2)

    def malformed(self, requests: int) -> None:
        """As many malformed requests as were asked for, and memory that stays as it was."""
        with self.row("malformed requests", flat=True) as row:
            sent = self._malformed(requests, seed=100)
            row.wrong += sent.wrong
            row.check(sent.requests >= requests, f"only {sent.requests} requests were sent")
            row.notes.append(f"{sent.requests} sent, raw bytes that the service's log has no line for among them")

    def _malformed(self, number: int, seed: int) -> Sent:
        """A share drawn by schemathesis beside raw bytes and damaged bodies, in two processes."""
        url, drawn = self.service.url, int(self.drawn * number)
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            from_schema = pool.submit(send_drawn, url, drawn, seed, HEADERS)
            sent = send_raw(url, max(16, number // 100), seed)
            sent += send_damaged(url, max(16, number - drawn - sent.requests), seed, HEADERS)
            sent += from_schema.result()
        return sent + send_damaged(url, max(0, number - sent.requests), seed + 1, HEADERS)

    def slow(self) -> None:
        """Requests that never end hold up nobody else and are let go of."""
        with self.row("slow senders", flat=True) as row:
            hold_up(row, self.service, self.asker, TOKEN, READ_SECONDS)

    def storms(self) -> None:
        """Far more than may wait: 200 or 503, and every sample is scored right or unscorable."""
        mark = self.service.mark()
        with self.row("storms of 503") as row:
            self.asker.ask(row, clients=16, samples=192, times=2)
            row.check(self.service.statuses(mark)[503] > 0, "there was no storm: no request was refused")

    def training(self, seconds: float) -> Run:
        """kill -9 while a request is on its way, and back at once, or only after the client's deadline."""
        run = Run(self.yaml, self.folder / "runs/soak", self.folder / "train.log", TOKEN)
        with self.row("training, kill -9") as row:
            run.wait_for_step(2, PATIENCE)
            until, kills, outages = time.monotonic() + seconds, 0, 0
            while kills < 3 or time.monotonic() < until:
                before = run.steps()
                row.check(self.service.kill_in_flight(PATIENCE), "no request was on its way when the service died")
                kills += 1
                if kills % 4 == 2:
                    outages += 1
                    run.wait_for_unscorable(outages, PATIENCE)
                self.service.start()
                run.wait_for_step(before + 2, PATIENCE)
            row.notes.append(
                f"{kills} kills, each with a request on its way; {outages} outlasted the client's deadline; "
                f"the run went on to step {run.steps()}"
            )
        return run

    def mixed(self, run: Run, seconds: float) -> None:
        """All of it at once."""
        with self.row("all at once") as row:
            began, until, kills, over = run.steps(), time.monotonic() + seconds, 0, threading.Event()
            with ThreadPoolExecutor(3) as pool:
                others = [pool.submit(work, row, over) for work in (self._pester, self._storm, self._drip)]
                try:
                    while time.monotonic() < until or not kills:
                        before = run.steps()
                        met = self.service.kill_in_flight(PATIENCE)
                        row.check(met, "no request was on its way when the service died")
                        kills += 1
                        self.service.start()
                        run.wait_for_step(before + 3, PATIENCE)
                finally:
                    over.set()
                for other in others:
                    other.result()
            row.notes.append(f"{kills} kills, {run.steps() - began} training steps meanwhile")

    def _pester(self, row: Row, over: threading.Event) -> None:
        seed = 10_000
        while not over.is_set():
            seed += 1
            with suppress(httpx.TransportError, OSError):  # the service dies meanwhile, and says nothing
                row.wrong += send_damaged(self.service.url, 40, seed, HEADERS, overload=True).wrong
                row.wrong += send_raw(self.service.url, 4, seed).wrong

    def _storm(self, row: Row, over: threading.Event) -> None:
        while not over.is_set():
            self.asker.ask(row, clients=3, samples=64)

    def _drip(self, row: Row, over: threading.Event) -> None:
        host, port = self.service.url.removeprefix("http://").split(":")
        head = f"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n"
        held: list[socket.socket] = []
        while not over.wait(0.2):
            with suppress(OSError):
                held.append(socket.create_connection((host, int(port)), timeout=5))
                held[-1].sendall(head.encode() + b"Content-Length: 9\r\n\r\n{")
            if len(held) > 50:
                held.pop(0).close()
        for connection in held:
            connection.close()

    def judge(self, run: Run) -> None:
        """End the run and compare every reward that it recorded."""
        with self.row("rewards of the run") as row:
            code = run.stop()
            row.check(code == StoppedError.exit_code, f"the run ended with {code} after SIGTERM; {run.log} says why")
            judge_run(row, run.folder, self.config, self.here)
            row.check(row.unscorable > 0, "no outage outlasted the deadline, so that was not tried")


def run_config(folder: Path, url: str, beir: str | None) -> RunConfig:
    """The service's settings and those of the training run: one file for both commands."""
    (folder / "prompt.yaml").write_text(PROMPT)
    env = EnvironmentConfig(
        dataset=DatasetConfig(kind="beir", path=beir) if beir else DatasetConfig(),
        index=str(folder / "index"),
        max_plans=64,
        max_pending=256,
        read_seconds=READ_SECONDS,
        cache_bytes=2**20,
    )
    policy = {"model": str(save_speaking(folder / "policy")), "dtype": "float32", "lora": {"r": 4, "alpha": 8}}
    return RunConfig.model_validate(
        {
            "name": "soak",
            "output": str(folder / "runs"),
            "env": env.model_dump(),
            "client": {**CLIENT.model_dump(), "urls": [url], "token_env": "QUERYLECT_TOKEN"},
            "policy": policy,
            "rewriter": {"name": "small", "prompt": str(folder / "prompt.yaml"), "keep_question_weight": 1.0},
            "rollout": {"branching": [2, 2], "max_new_tokens": 6, "documents": 2, "document_tokens": 8},
            "train": {"steps": 100_000, "questions_per_step": 4, "save_steps": 50, "log_rollouts": 4},
            "tracking": {"wandb": "disabled"},
        }
    )


def main() -> int:
    """Do it all and print the table; 1 where a promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="of it all; the parts need about three at least")
    parser.add_argument("--requests", type=int, default=10_000, help="malformed ones")
    parser.add_argument("--drawn", type=float, default=0.25, help="share of them that schemathesis draws, slowly")
    parser.add_argument("--beir", help="a folder in BEIR form instead of the set `hpo`")
    parser.add_argument("--keep", type=Path, help="a new folder for the run and the logs, which are kept there")
    given = parser.parse_args()
    set_up_logging()
    logging.getLogger("querylect.envs.client.client").setLevel(logging.ERROR)  # what is unscorable stands in the table
    os.environ[TOKEN_ENV] = TOKEN
    print(describe("fastapi", "uvicorn", "httpx", "schemathesis", "torch"))
    until = time.monotonic() + 60 * given.minutes
    with tempfile.TemporaryDirectory() as scratch:
        folder = given.keep or Path(scratch)
        folder.mkdir(exist_ok=True)
        soak, run = Soak(folder, given.beir, given.drawn), None
        soak.service.log.touch()
        soak.service.start()
        try:
            soak.wrong_tokens()
            soak.cut_index()
            soak.warm_up(given.requests)
            soak.malformed(given.requests)
            soak.slow()
            soak.storms()
            run = soak.training(max(0.0, until - time.monotonic()) / 2)
            soak.mixed(run, max(20.0, until - time.monotonic()))
            soak.judge(run)
        finally:
            if run is not None:
                run.kill()
            soak.service.kill()
        return report(soak.rows)


def report(rows: list[Row]) -> int:
    """The table, what was broken, and the exit code."""
    heads = f"{'':20}{'s':>5}{'requests':>10}{'asked':>9}{'scored':>9}{'unscor.':>9}{'MiB before':>12}{'after':>8}"
    print(heads + "  answers by status")
    for row in rows:
        before, after = (f"{value / 2**20:.1f}" for value in row.memory) if row.memory else ("", "")
        statuses = ", ".join(f"{status}: {count}" for status, count in sorted(row.statuses.items()))
        print(
            f"{row.what:20}{row.seconds:5.0f}{sum(row.statuses.values()):10}{row.asked:9}{row.scored:9}"
            f"{row.unscorable:9}{before:>12}{after:>8}  {statuses}"
        )
    for row in rows:
        for note in row.notes:
            print(f"{row.what}: {note}")
    broken = [f"{row.what}: {wrong}" for row in rows for wrong in row.wrong]
    print("\n".join([f"BROKEN: {len(broken)}", *broken]) if broken else "every promise was kept")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
