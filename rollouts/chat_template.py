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
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from ..errors import EngineUnavailableError, ModelError, in_one_line

if TYPE_CHECKING:
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
            if self._process is None:
                self._begin()
            answer = self._exchange(line)
            if not answer.endswith(b"\n"):
                exit_code = self._end()
                if exit_code == -signal.SIGXCPU:
                    return "costly", f"it took more than {request['cpu_seconds']} s of processor time"
                return "costly", f"the process that rendered it ended with code {exit_code}"
        outcome, text = json.loads(answer)
        return outcome, text

    def _begin(self) -> None:
        """Start a child and wait until it has rendered a first text. Raises EngineUnavailableError."""
        try:
            self._process = _start()
        except OSError as error:
            raise _not_started(in_one_line(error)) from error
        if not self._exchange(b"").endswith(b"\n"):
            raise _not_started(f"it ended with code {self._end()}; what it wrote to standard error says more")

    def _exchange(self, line: bytes) -> bytes:
        """Send a line and return the next one of the child, without a line end where the child has ended."""
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
            return process.stdout.readline()
        except BrokenPipeError:
            return b""
        except BaseException:  # Ctrl-C: the next answer would be that to this request
            self._end()
            raise

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


def render(template: str, messages: "Sequence[Message]", variables: Mapping[str, object]) -> str:
    """The text of a chat up to the assistant's turn. `variables` are the special tokens that the template may name.

    Raises ModelError for a template that refuses the messages, and for one that exceeds a limit;
    EngineUnavailableError where the child process cannot be started.
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
            "this model (in its chat_template.jinja or tokenizer_config.json), or choose another policy."
        )
    return text


def refusal(reason: str) -> ModelError:
    """The error for a template that does not take the messages of a rewriter."""
    return ModelError(
        f"the chat template of the policy refuses the rewriter's messages ({reason}). "
        "Choose another rewriter (rewriter.name) or another policy."
    )


def _not_started(reason: str) -> EngineUnavailableError:
    return EngineUnavailableError(
        f"the process that renders chat templates could not be started ({reason}). Raise the limits of this "
        "session (`ulimit -u` for processes, `ulimit -v` for memory, those of the container or job) or end other "
        "processes, and run the command again."
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
    _import_as_bare_package("transformers")
    _import_as_bare_package("transformers.utils")
    from transformers.utils.chat_template_utils import render_jinja_template

    _limit(resource.RLIMIT_CORE, 0)
    memory = _limit_memory()
    render_jinja_template(conversations=[[]], chat_template="")  # imports what the first rendering needs
    answers.write(b"\n")  # ready
    answers.flush()
    for line in requests:
        request = json.loads(line)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + request["cpu_seconds"])
        outcome: _Outcome = "text"
        try:
            texts, _ = render_jinja_template(  # type: ignore[str-unpack]  # annotated as one text
                conversations=[request["messages"]],
                chat_template=request["template"],
                add_generation_prompt=True,
                **request["variables"],
            )
            text = texts[0]
            if len(text) > request["characters"]:
                outcome, text = "costly", f"it wrote {len(text)} characters, and {request['characters']} are allowed"
        except MemoryError:
            outcome, text = "costly", f"it took more than {memory >> 20} MiB of memory"
        except Exception as error:  # noqa: BLE001 (also what an expression of the template raises)
            outcome, text = "refused", in_one_line(error)
        answers.write(json.dumps([outcome, text]).encode() + b"\n")
        answers.flush()


def _import_as_bare_package(name: str) -> None:
    """Let modules of a package be imported without running its `__init__`: that of transformers reads all its models,
    three times the processor time of what renders templates."""
    spec = find_spec(name)
    if spec is None:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    sys.modules[name] = module_from_spec(spec)


def _limit_memory() -> int:
    """Limit the memory of this process; the bytes that rendering may take, less where the system's limit is lower."""
    try:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    except OSError:  # a system without /proc: memory is not limited
        return MEMORY_BYTES
    return max(0, _limit(resource.RLIMIT_AS, used + MEMORY_BYTES) - used)


def _limit(kind: int, value: int) -> int:
    """Set the soft limit, within what the system allows, and return it."""
    _, hard = resource.getrlimit(kind)
    value = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(kind, (value, hard))
    return value


if __name__ == "__main__":
    main(sys.stdin.buffer, sys.stdout.buffer)
