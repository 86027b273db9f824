"""Plain-socket helpers for the tests of the servers themselves: what is asserted must not pass through the engine."""

from __future__ import annotations

import asyncio
import socket
import struct


def post(path: str = "/", body: bytes = b"{}", *, webhook_id: str | None = None, headers: str = "") -> bytes:
    """A whole request as bytes; `headers` are further header lines, each with its line end."""
    identity = f"webhook-id: {webhook_id}\r\n" if webhook_id is not None else ""
    head = f"POST {path} HTTP/1.1\r\nHost: test\r\n{identity}{headers}Content-Length: {len(body)}\r\n\r\n"
    return head.encode("latin-1") + body


class Wire:
    """One plain connection to a server under test."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def open(cls, port: int, host: str = "127.0.0.1") -> Wire:
        """Connect."""
        return cls(*await asyncio.open_connection(host, port))

    async def send(self, data: bytes) -> None:
        """Write all of `data`."""
        self.writer.write(data)
        await self.writer.drain()

    async def response(self) -> tuple[int, bytes]:
        """The next response with a Content-Length: status and body."""
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.lower().split(b"\r\n"):
            if line.startswith(b"content-length:"):
                length = int(line.partition(b":")[2])
        return int(head.split(b" ", 2)[1]), await self.reader.readexactly(length)

    async def rest(self) -> bytes:
        """Everything up to the end of the connection; a reset ends it too."""
        seen = b""
        try:
            while data := await self.reader.read(65_536):
                seen += data
        except ConnectionResetError:
            pass
        return seen

    async def close(self) -> None:
        """Close our side."""
        self.writer.close()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass

    async def reset(self) -> None:
        """Close with a RST: a FIN would wait behind what the server does not read."""
        if self.writer.is_closing():
            return
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()
        await asyncio.sleep(0.01)  # uvloop closes its sockets a turn later
