"""`querylect` and `python` as programs of a folder, for shells: each call is forked, as in forked.py.

A program hands its arguments, variables, folder and open files to a process that has imported everything, passes
signals on to what that forks, and ends as it does. Where the program is killed, what was forked is killed, too.
"""

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .forked import Piped

CLIENT = """
import json, os, signal, socket, sys

asked = {"arguments": sys.argv[2:], "environment": dict(os.environ), "folder": os.getcwd()}
connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
connection.connect(sys.argv[1])
socket.send_fds(connection, [json.dumps(asked).encode()], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: connection.send(b"%d" % number))
code = int(connection.recv(100) or b"1")
sys.exit(code if code >= 0 else 128 - code)
"""

SERVER = """
import json, os, runpy, select, signal, socket, sys, threading
import torch
from querylect.cli import main

def command(program, *arguments):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1))
    if program == "querylect":
        sys.argv = ["querylect", *arguments]
        main(list(arguments))
    elif arguments[0] == "-c":
        sys.argv = ["-c", *arguments[2:]]
        exec(arguments[1], {"__name__": "__main__"})
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, os.path.dirname(os.path.abspath(arguments[0])))
        runpy.run_path(arguments[0], run_name="__main__")

def call(asked, files):
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin = os.fdopen(0, closefd=False)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    code = 1
    try:
        command(*asked["arguments"])
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        threading._shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

def attend(connection):
    message, files, _, _ = socket.recv_fds(connection, 2**20, 3)
    forked = os.fork()
    if not forked:
        connection.close()
        call(json.loads(message), files)
    for file in files:
        os.close(file)
    ended = os.pidfd_open(forked)
    while ended not in select.select([ended, connection], [], [])[0]:
        number = connection.recv(100)
        os.kill(forked, int(number or signal.SIGKILL))
        if not number:
            break
    code = os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1])
    try:
        connection.send(b"%d" % code)
    except OSError:
        pass

listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
listener.bind(sys.argv[1])
listener.listen()
print("listening", flush=True)
attending = 0
while True:
    connection, _ = listener.accept()
    while attending and os.waitpid(-1, os.WNOHANG)[0]:
        attending -= 1
    attending += 1
    if not os.fork():
        listener.close()
        attend(connection)
        os._exit(0)
    connection.close()
"""


@contextmanager
def forked_commands(folder: Path) -> Iterator[Path]:
    """The folder to be put into PATH, while the block runs."""
    folder.mkdir()
    (folder / "client.py").write_text(CLIENT)
    address = folder / "socket"
    with Piped([str(address)], folder, code=SERVER) as server:
        assert server.stdout.readline() == "listening\n"
        for name in ("querylect", "python"):
            call = shlex.join([sys.executable, "-I", "-S", str(folder / "client.py"), str(address), name])
            (folder / name).write_text(f'#!/bin/sh\nexec {call} "$@"\n')
            (folder / name).chmod(0o755)
        yield folder
