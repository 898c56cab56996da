"""Renders chat templates in a child process, with limits on processor time, memory and the text that comes out.

A model's template is a program of whoever published the model. transformers renders it in a sandbox that opens no
files, but neither ends its loops nor counts its memory; in this process, one could hold up a service for ever or fill
the machine. The child, `python -m querylect.rollouts.chat_template`, is started by the first rendering and serves the
whole process: a JSON object a line for each template with its messages, one back for the text or why there is none.
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from ..errors import ModelError, in_one_line
from ..llms.base import Message

CPU_SECONDS = 10
"""Processor time for one text; an ordinary template takes less than a millisecond."""
MEMORY_BYTES = 2**29
"""What rendering may take beyond the interpreter."""
ADDED_CHARACTERS = 2**20
"""What a template may add to its messages."""

_Outcome = Literal["text", "refused", "costly"]


class _Renderer:
    """The child process of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def ask(self, request: Mapping[str, object]) -> tuple[_Outcome, str]:
        """What comes of a request; a child that a template killed is replaced with the next one."""
        line = json.dumps(request, default=str).encode() + b"\n"
        with self._lock:
            if self._process and self._process.poll() is not None:  # ended while it had nothing to do
                self._end()
            process = self._process = self._process or _start()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(line)
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = b""
            except BaseException:  # Ctrl-C: the next answer would be that to this request
                self._end()
                raise
            if not answer.endswith(b"\n"):
                exit_code = self._end()
                if exit_code == -signal.SIGXCPU:
                    return "costly", f"it took more than {request['cpu_seconds']} s of processor time"
                return "costly", f"the process that rendered it ended with code {exit_code}"
        outcome, text = json.loads(answer)
        return outcome, text

    def _end(self) -> int:
        process, self._process = self._process, None
        assert process is not None
        process.kill()
        with suppress(BrokenPipeError), process:  # what was not sent is sent again at closing
            pass
        return process.wait()

    def close(self) -> None:
        """End the child, if there is one."""
        with self._lock:
            if self._process:
                self._end()


_renderer = _Renderer()


def _forget() -> None:
    """A forked child starts a renderer of its own, for two processes would read each other's answers."""
    global _renderer
    _renderer = _Renderer()


os.register_at_fork(after_in_child=_forget)
atexit.register(lambda: _renderer.close())


def render(template: str, messages: Sequence[Message], variables: Mapping[str, object]) -> str:
    """The text of a chat up to the assistant's turn. `variables` are the special tokens that the template may name.

    Raises ModelError for a template that refuses the messages, and for one that exceeds a limit.
    """
    request = {
        "template": template,
        "messages": messages,
        "variables": variables,
        "cpu_seconds": CPU_SECONDS,
        "characters": ADDED_CHARACTERS + sum(len(message["content"]) for message in messages),
    }
    outcome, text = _renderer.ask(request)
    if outcome == "refused":
        raise refusal(text)
    if outcome == "costly":
        raise ModelError(
            f"the chat template of the policy was stopped: {text}. Templates need a fraction of that: read the one of "
            "this model (in its chat_template.jinja or tokenizer_config.json), or choose another policy.",
            code="template-too-costly",
        )
    return text


def refusal(reason: str) -> ModelError:
    """The error for a template that does not take the messages of a rewriter."""
    return ModelError(
        f"the chat template of the policy refuses the rewriter's messages ({reason}). "
        "Choose another rewriter (rewriter.name) or another policy.",
        code="template-refuses-messages",
    )


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-P", "-m", __name__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},  # their memory counts too
        start_new_session=True,  # Ctrl-C is for the parent; this process ends with its standard input
    )


def main(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are none."""
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(resource.RLIMIT_CORE, 0)
    _limit_memory()
    for line in requests:
        request = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + request["cpu_seconds"])
        outcome: _Outcome = "text"
        try:
            texts, _ = render_jinja_template(
                conversations=[request["messages"]],
                chat_template=request["template"],
                add_generation_prompt=True,
                **request["variables"],
            )
            text = texts[0]
            if len(text) > request["characters"]:
                outcome, text = "costly", f"it wrote {len(text)} characters, and {request['characters']} are allowed"
        except MemoryError:
            outcome, text = "costly", f"it took more than {MEMORY_BYTES >> 20} MiB of memory"
        except Exception as error:  # noqa: BLE001 (also what an expression of the template raises)
            outcome, text = "refused", in_one_line(error)
        answers.write(json.dumps([outcome, text]).encode() + b"\n")
        answers.flush()


def _limit_memory() -> None:
    with suppress(OSError):  # a system without /proc: memory is not limited
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        _limit(resource.RLIMIT_AS, pages * resource.getpagesize() + MEMORY_BYTES)


def _limit(kind: int, value: int) -> None:
    """Set the soft limit, within what the system allows."""
    _, hard = resource.getrlimit(kind)
    resource.setrlimit(kind, (value if hard == resource.RLIM_INFINITY else min(value, hard), hard))


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
