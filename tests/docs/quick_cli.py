"""Runs `gatepost` commands in forks of one process that has imported it: half a second less for each of a hundred commands.

`quick_commands` starts that process, and makes a `gatepost` for the path of a shell. The command sees the caller's arguments,
environment, directory and descriptors; the caller passes signals on and ends with its exit code. Both sides run this file as a
program, without the rest of the tests.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def quick_commands() -> Iterator[Path]:
    """A directory with a `gatepost` that starts at once, while the block runs."""
    # Not a test's own directory: the name of a socket has about a hundred bytes.
    with tempfile.TemporaryDirectory(prefix="gp") as name:
        directory, path = Path(name), f"{name}/line"
        (directory / "bin").mkdir()
        command = directory / "bin" / "gatepost"
        command.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {__file__} {path} "$@"\n')
        command.chmod(0o755)
        server = subprocess.Popen([sys.executable, "-u", __file__, path], start_new_session=True)
        try:
            while not Path(path).exists():
                assert server.poll() is None
                time.sleep(0.02)
            yield directory / "bin"
        finally:
            os.killpg(server.pid, signal.SIGKILL)  # and what it forked, when a command hangs
            server.wait()


def serve(path: str) -> None:
    """Fork for each command, until killed."""
    import gc

    import typer.main

    import gatepost.service.app  # noqa: F401 - what `serve` imports when it is called
    from gatepost.service.cli.commands import PLACES, build, run

    for name in PLACES:
        typer.main.get_command(build(name))  # imports what the first command would import
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(path)
        listener.listen(16)
        while True:
            line, _ = listener.accept()
            if os.fork() == 0:
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                line.sendall(b"%d\n" % os.getpid())
                code = 1
                try:
                    arguments = _become(line)
                    run(arguments)
                except SystemExit as end:
                    code = end.code if isinstance(end.code, int) else 1
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    line.sendall(bytes([code]))
                    os._exit(0)
            line.close()


def _become(line: socket.socket) -> list[str]:
    data, descriptors, _, _ = socket.recv_fds(line, 1 << 20, 3)
    while not data.endswith(b"\n"):
        data += line.recv(1 << 20)
    arguments, environ, directory = json.loads(data)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.argv = ["gatepost", *arguments]
    return [str(argument) for argument in arguments]


def call(path: str, arguments: list[str]) -> int:
    """Have a command run; its exit code."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.connect(path)
        message = json.dumps([arguments, dict(os.environ), os.getcwd()]).encode() + b"\n"
        sent = socket.send_fds(line, [message], [0, 1, 2])
        line.sendall(message[sent:])
        answer = line.makefile("rb")
        pid = int(answer.readline())
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, lambda number, _: os.kill(pid, number))
        code = answer.read(1)
        return code[0] if code else 1


if __name__ == "__main__":
    if len(sys.argv) == 2:
        serve(sys.argv[1])
    else:
        sys.exit(call(sys.argv[1], sys.argv[2:]))
