"""Clients that say less, or take less, than they should: plain sockets."""

import json
import select
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.server.running import Answer, Server


def connect(server: Server, receive_buffer: int | None = None) -> socket.socket:
    """An open connection, whose kernel takes at most about twice ``receive_buffer`` bytes that nobody reads."""
    opened = socket.socket()
    if receive_buffer is not None:
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    opened.settimeout(60)
    opened.connect(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    return opened


def head(*lines: str, path: str = "/v1/completions") -> bytes:
    return "\r\n".join([f"POST {path} HTTP/1.1", "host: x", "content-type: application/json", *lines, "", ""]).encode()


def whole(body: dict[str, Any], path: str = "/v1/completions") -> bytes:
    """A request."""
    content = json.dumps(body).encode()
    return head(f"content-length: {len(content)}", path=path) + content


def answer_on(opened: socket.socket) -> Answer:
    """The answer after which the server closes the connection."""
    data = b""
    while chunk := opened.recv(65536):
        data += chunk
    start, _, body = data.partition(b"\r\n\r\n")
    first, *lines = start.decode().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Answer(int(first.split()[1]), headers, body.decode())


def drip(opened: socket.socket, data: bytes, seconds: float) -> None:
    """Send one byte after the other, so many seconds apart, until the server answers."""
    for byte in data:
        opened.send(bytes([byte]))
        if select.select([opened], [], [], seconds)[0]:
            return


@contextmanager
def gone_after(server: Server, sent: bytes) -> Iterator[socket.socket]:
    """A connection on which ``sent`` was sent, and whose client is gone at the end of the block."""
    opened = connect(server)
    try:
        opened.sendall(sent)
        yield opened
    finally:
        opened.close()


def read_all(opened: socket.socket) -> bytes:
    """A stream of events, to its end."""
    data = b""
    while b"data: [DONE]" not in data:
        chunk = opened.recv(65536)
        assert chunk, data[-500:]
        data += chunk
    return data


def read_events(opened: socket.socket, count: int) -> int:
    """Read a stream until ``count`` events have come, or its end.

    Returns:
        How many came.
    """
    came, data = 0, b""
    deadline = time.monotonic() + 60
    while came < count and time.monotonic() < deadline:
        chunk = opened.recv(4096)
        if not chunk:
            break
        data += chunk
        came = data.count(b"data: {")
    return came
