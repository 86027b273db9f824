"""A reader who pastes what a page says, block by block, into a shell of his own, in an empty directory.

Ports of the page become free ones and come back in what is printed; an id with `…` (`ep_…`) is the last one printed; hosts of
`example.com` are the receiver on this machine; four processes are two. Nothing else of a page is changed.
"""

from __future__ import annotations

import configparser
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import yaml

from gatepost.clock import SYSTEM_CLOCK
from gatepost.service.config import load_settings
from tests.docs.blocks import Block

PATIENCE: Final = 60.0
"""Seconds for one block on a busy machine."""
SHELLS: Final = ("console", "bash", "sh")
PORTS: Final = ("8080", "9000", "8000")
DATABASES: Final = re.compile(r"postgresql://[\w.-]+@[\w.-]+/\w+")
PREFIXES: Final = ("ep", "dlv", "evt", "whsec", "gp", "key")
SIGNED: Final = """\
import time
from gatepost import sign
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
body = b'{"number": 1001}'
headers = sign("evt_1", int(time.time()), body, [SECRET])
"""


class Reader:
    """Runs blocks while the `with` block runs; what he left running ends with it. `commands` has a quick `gatepost`."""

    def __init__(self, directory: Path, commands: Path) -> None:
        self.directory = directory
        self.home = directory / "reader"
        self.home.mkdir()
        self.database: str | None = None
        """What a PostgreSQL URL of a page becomes."""
        self.environment = _environment(commands)
        self._programs: list[subprocess.Popen[bytes]] = []
        self._printed = ""
        self._seen: dict[str, str] = {}
        self._again: Block | None = None
        """The block to run again until it prints what the page says."""
        self._node = ""
        """The name of the process that was started last."""
        self._ports = dict(zip(PORTS, _free_ports(len(PORTS)), strict=True))
        self._state = directory / "state.sh"
        self._state.write_text("")
        self._logs = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end_all()

    def port(self, port: str) -> str:
        """The free port that stands for one of the page."""
        return self._ports[port]

    # ------------------------------------------------------------------------------------------------- blocks

    def run(self, block: Block) -> None:
        """Do what a block says. Raises AssertionError with what was printed when that is not what the page says."""
        name, _, argument = block.mark.partition(" ")
        if block.language != "text":
            self._again = block if block.mark == "soon" else None
        if block.mark.startswith("given ") and block.mark != "given a signed request":
            (self.home / argument).write_text(self._mine(block.text))
        elif block.language == "text":
            self._compare(block)
        elif name == "leaves":
            assert block.language in SHELLS, block.name
            if argument == "running instead":
                self.end_all()
            for line in _joined(block.text):
                if line.startswith("export "):
                    self._paste(self._mine(line), block.name, 0)
                else:
                    self._leave(self._mine(line), block.name)
        elif block.mark == "until Ctrl-C":
            self._until_interrupted(block)
        elif block.language in SHELLS:
            code = int(argument) if name == "exits" else 0
            typed = argument if name == "types" else None
            self._paste(self._mine(block.text), block.name, code, typed)
        elif block.language == "python":
            given = SIGNED if block.mark == "given a signed request" else ""
            self._python(given + self._mine(block.text, signed=bool(given)), block.name)
        else:
            self._read(block)

    def _read(self, block: Block) -> None:
        """What is not run must at least be what it says it is."""
        match block.language:
            case "ini":
                configparser.ConfigParser(strict=False).read_string(block.text)
            case "toml":
                tomllib.loads(block.text)
                file = self.directory / "page.toml"
                file.write_text(block.text)
                load_settings(file, {}, open_files=65_536)
            case "json":
                json.loads(block.text)
            case "yaml":
                yaml.safe_load(block.text)
            case other:
                raise AssertionError(f"{block.name}: no test knows what to do with a block of {other or 'no language'}")

    def paste(self, script: str) -> str:
        """Run commands that no page has, before it is read; what they printed."""
        self._paste(script, "before the page", 0)
        return self._printed

    def leave(self, line: str) -> None:
        """Start a program that no page has, before it is read."""
        self._leave(line, "before the page")

    def _paste(self, script: str, name: str, code: int, typed: str | None = None) -> None:
        whole = f'. "{self._state}"\nset -e\n{script}\n{{ export -p; echo cd "$PWD"; }} >"{self._state}"\n'
        done = subprocess.run(
            ["/bin/sh", "-c", whole],
            cwd=self.home,
            env=self.environment,
            input=b"" if typed is None else f"{typed}\n".encode(),
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        self._heard(done.stdout.decode() + done.stderr.decode())
        assert done.returncode == code, f"{name}: exit code {done.returncode}\n{script}\n{self._printed}"

    def _python(self, program: str, name: str) -> None:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=self.home,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=PATIENCE,
            check=False,
        )
        self._heard(done.stdout.decode() + done.stderr.decode())
        assert done.returncode == 0, f"{name}: {self._printed}"

    def _until_interrupted(self, block: Block) -> None:
        command = ["/bin/sh", "-c", f"exec {block.text}"]
        if block.language == "python":
            command = [sys.executable, "-u", "-W", "error", "-c", self._mine(block.text)]
        program, log = self._start(command)
        _until(lambda: b"\n" in log.read_bytes(), f"{block.name} says something", program)
        program.send_signal(signal.SIGINT)
        program.wait(PATIENCE)
        self._programs.remove(program)
        self._heard(log.read_text())

    # ----------------------------------------------------------------------------------------------- programs

    def _leave(self, line: str, name: str) -> None:
        """Start a line in the background; wait until it listens, or has ended well."""
        program, log = self._start(["/bin/sh", "-c", f'. "{self._state}"\n{_with_exec(line)}'])
        _until(
            lambda: program.poll() == 0 or re.search(rb"http://127\.0\.0\.1:\d+", log.read_bytes()) is not None,
            f"{name}: {line} listens",
            program,
            log,
        )
        self._heard(log.read_text())

    def _start(self, command: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
        self._logs += 1
        log = self.directory / f"program-{self._logs}.log"
        with log.open("wb") as output:
            program = subprocess.Popen(
                command,
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._programs.append(program)
        return program, log

    def end_all(self) -> None:
        """End what was left running, the last first."""
        while self._programs:
            self._end(self._programs.pop())

    @staticmethod
    def _end(program: subprocess.Popen[bytes]) -> None:
        if program.poll() is None:
            program.terminate()
            try:
                program.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                program.kill()
        program.wait()

    # --------------------------------------------------------------------------------------------------- texts

    def _mine(self, text: str, *, signed: bool = False) -> str:
        """A block with this reader's ports, ids, database and receiver."""
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        text = re.sub(r"https://(\w+\.)?example\.com", f"http://127.0.0.1:{self._ports['9000']}", text)
        if self.database is not None:
            text = DATABASES.sub(self.database, text)
        text = text.replace(".venv/bin/", "").replace("--processes 4", "--processes 2")
        if signed:
            text = text.replace('"whsec_…"', "SECRET")
        for prefix, value in self._seen.items():
            text = text.replace(f"{prefix}_…", value)
        return text.replace("--process NAME", f"--process {self._node}")

    def _heard(self, output: str) -> None:
        self._printed = output
        if (node := re.search(r'"node": "([^"]+)"', output)) is not None:
            self._node = node.group(1)
        for prefix in PREFIXES:
            found = re.findall(rf"\b{prefix}_[A-Za-z0-9+/=_-]{{8,}}", output)
            if found:
                self._seen[prefix] = found[-1]

    def _compare(self, block: Block) -> None:
        """The page's text is what the block before it printed, `…` for anything, blanks as they fall."""
        if not self._printed:
            return  # nothing printed it: a drawing, or what something looks like
        pattern = _pattern(block)
        limit = SYSTEM_CLOCK.monotonic() + PATIENCE
        while re.fullmatch(pattern, self._shown()) is None:
            again = self._again
            assert again is not None, f"{block.name}: printed was\n{self._printed}"
            assert SYSTEM_CLOCK.monotonic() < limit, f"{block.name}: not soon, at the end it was\n{self._printed}"
            threading.Event().wait(0.1)
            self._paste(self._mine(again.text), again.name, 0)

    def _shown(self) -> str:
        """What was printed last, with the page's ports."""
        printed = self._printed
        for port, free in self._ports.items():
            printed = printed.replace(free, port)
        return printed + "\n"


def _pattern(block: Block) -> str:
    """What the text of a page stands for."""
    pattern = r"\s*"
    for line in block.text.splitlines():
        if line.strip() == "…":
            pattern += r"(?:.*\n)*?"
        else:
            words = [".*?".join(map(re.escape, word.split("…"))) for word in line.split()]
            if block.mark == "numbers vary":
                words = [re.sub(r"\d+", r"\\d+", word) for word in words]
            pattern += r"[ \t]*" + r"[ \t]+".join(words) + r"[ \t]*\n+"
    return pattern + r"\s*"


def _joined(text: str) -> list[str]:
    """Commands, one a line; a backslash goes on."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def _with_exec(line: str) -> str:
    """The line with its program in place of the shell, so that a signal is for it."""
    settings = re.match(r"(?:[A-Z_]+=\S*\s+)*", line)
    assert settings is not None
    return f"{settings.group()}exec {line[settings.end() :]}"


def _environment(commands: Path) -> dict[str, str]:
    """What a reader's shell has: no setting of Gatepost's, its programs in the path."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("GATEPOST_", "DEMO_"))}
    programs = Path(sys.executable).parent
    return {
        **ours,
        "PATH": os.pathsep.join([str(commands), str(programs), os.environ["PATH"]]),
        "PYTHONUNBUFFERED": "1",
        "COLUMNS": "80",
        "TERM": "dumb",
        # Not the page's business: the machine that tests it is shared, and late.
        "GATEPOST_INGEST_MAX_LOOP_LAG": "60",
    }


def _free_ports(count: int) -> list[str]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [str(one.getsockname()[1]) for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _until(condition: Callable[[], bool], what: str, program: subprocess.Popen[bytes], log: Path | None = None) -> None:
    limit = SYSTEM_CLOCK.monotonic() + PATIENCE
    while not condition():
        said = "" if log is None else log.read_text()
        assert program.poll() in (None, 0), f"it ended before {what}: {said}"
        assert SYSTEM_CLOCK.monotonic() < limit, f"not within {PATIENCE:g} s: {what}: {said}"
        threading.Event().wait(0.03)
