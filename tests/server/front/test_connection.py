"""Heads that do not come whole, or are too large, and answers that nobody takes, on a real uvicorn server."""

import asyncio
import json
import select
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn
from websockets.sync.client import connect

from ropeswitch.server.front import refusal
from ropeswitch.server.front.connection import limit, serving
from tests.server.front.parts import parts

SECONDS = 0.5
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
MOST_BYTES = 20000
CONNECTIONS = 16


async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            await send({"type": "websocket.send", "text": message["text"]})
        return
    with serving(scope, receive) as receiving:
        while (await receiving()).get("more_body"):
            if scope["path"] == "/slow":
                await asyncio.sleep(0.02)
        await send({"type": "http.response.start", "status": 200, "headers": []})
        if scope["path"] == "/endless":
            gone = asyncio.ensure_future(receiving())
            while not gone.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)
            ended.set()
        else:
            await send({"type": "http.response.body", "body": b"fine"})


ended = threading.Event()


@dataclass(frozen=True)
class Served:
    url: str
    server: uvicorn.Server

    def wait_until_idle(self) -> None:
        deadline = time.monotonic() + 10
        while self.server.server_state.connections:
            assert time.monotonic() < deadline
            time.sleep(0.05)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, lifespan="off", log_level="warning", timeout_keep_alive=2)
        config.load()
        config.h11_max_incomplete_event_size = MOST_BYTES
        limit(config, parts(body_timeout=SECONDS, max_connections=CONNECTIONS))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", server)
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def opened(
    served: Served, sent: bytes = b"", receive_buffer: int | None = None, source: str = "127.0.0.1"
) -> socket.socket:
    connection = socket.socket()
    connection.bind((source, 0))
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
    connection.sendall(sent)
    return connection


def received(connection: socket.socket, end: bytes | None = None) -> bytes:
    """What the server sends until ``end``, or else until it closes the connection."""
    data = b""
    with suppress(ConnectionResetError):
        while (end is None or not data.endswith(end)) and (chunk := connection.recv(65536)):
            data += chunk
    return data


def is_answered(connection: socket.socket) -> bool:
    """Whether a chunked answer comes."""
    return b"fine" in received(connection, b"\r\n0\r\n\r\n")


def refused(connection: socket.socket, status: int, code: str | None) -> None:
    """Check the refusal after which the connection is closed."""
    start, _, content = received(connection).partition(b"\r\n\r\n")
    connection.close()
    assert start.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in start, start
    assert json.loads(content)["error"]["code"] == code


@pytest.fixture
def reasons() -> Iterator[list[str]]:
    """What refusals are counted under."""
    reasons: list[str] = []
    refusal.listeners.append(listener := lambda reason, _: reasons.append(reason))
    yield reasons
    refusal.listeners.remove(listener)


@pytest.mark.parametrize("sent", [b"G", HEAD, HEAD + b"x-", b"\r\n"])
def test_a_head_that_stops_or_drips_is_refused(served: Served, reasons: list[str], sent: bytes) -> None:
    refused(opened(served, sent), 408, "request_timeout")
    connection, started = opened(served), time.monotonic()
    for byte in HEAD + b"x: " + b"a" * 100:
        connection.send(bytes([byte]))
        if select.select([connection], [], [], SECONDS / 10)[0]:
            break
    refused(connection, 408, "request_timeout")
    assert time.monotonic() - started < 8 * SECONDS
    assert reasons == ["head_timeout"] * 2


def test_what_is_no_request(served: Served, reasons: list[str]) -> None:
    """The parser refuses it; it is no request that could be counted. Neither is a connection on which nothing comes."""
    for sent in (b"no request\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"):
        assert received(opened(served, sent)).startswith(b"HTTP/1.1 400 ")
    assert received(opened(served)) == b"" and reasons == []


def test_a_connection_that_is_used_is_kept(served: Served) -> None:
    connection = opened(served)
    for _ in range(4):
        connection.sendall(HEAD + b"\r\n")
        assert is_answered(connection)
        time.sleep(SECONDS * 0.6)
    # Requests that come at once.
    connection.sendall((HEAD + b"\r\n") * 3 + b"GET ")
    assert received(connection).count(b"fine") == 3


def test_bodies_of_any_size_and_speed(served: Served) -> None:
    """The body starts with its head, pauses, arrives faster than the app takes it, and then slower."""
    head = HEAD.replace(b"GET /", b"POST /slow", 1) + b"content-length: %d\r\n\r\n" % (16 << 20)
    connection = opened(served, head + b"a\n" * (1 << 19))
    time.sleep(SECONDS * 2)
    for _ in range(14):
        connection.sendall(b"a\n" * (1 << 19))
    for _ in range(16):
        connection.sendall(b"a\n" * (1 << 15))
        time.sleep(0.01)
    assert is_answered(connection)
    # The head of the next request has its own limits.
    connection.sendall(b"GET ")
    refused(connection, 408, "request_timeout")


@pytest.mark.parametrize(
    ("sent", "reason"),
    [
        (b"x: " + b"a" * (MOST_BYTES + 70000), "head_bytes"),
        # Unfinished and small in bytes, but a hundred times as large in the parser's memory.
        (b"a:\r\n" * 300, "head_count"),
    ],
)
def test_a_head_that_is_too_large(served: Served, reasons: list[str], sent: bytes, reason: str) -> None:
    refused(opened(served, HEAD + sent), 431, "request_too_large")
    assert reasons == [reason]


def test_one_address_leaves_connections_to_others(served: Served, reasons: list[str]) -> None:
    """Of 16 connections, one address has at most 14. An ended one makes room; a WebSocket has no other limits."""
    held = [opened(served, HEAD) for _ in range(14)]
    refused(opened(served), 503, "server_busy")
    assert reasons == ["unavailable"]
    other = opened(served, HEAD + b"\r\n", source="127.0.0.2")
    assert is_answered(other)
    for connection in (*held, other):
        connection.close()
    served.wait_until_idle()
    for _ in range(20):
        with connect(served.url.replace("http", "ws")) as client:
            client.send("a")
            assert client.recv() == "a"
    with connect(served.url.replace("http", "ws")) as client:
        time.sleep(SECONDS * 2)
        client.send("b" * MOST_BYTES * 2)
        assert client.recv() == "b" * MOST_BYTES * 2
    assert is_answered(opened(served, HEAD + b"\r\n"))


@pytest.mark.parametrize(
    ("request_", "endless"),
    [
        (CHUNKED, b"0\r\nx: "),
        (CHUNKED, b"1;"),
        (HEAD.replace(b"/ ", b"/endless ", 1) + b"\r\n", HEAD + b"x: "),
    ],
    ids=["trailer", "extension", "next head"],
)
def test_what_follows_a_request_is_limited(served: Served, reasons: list[str], request_: bytes, endless: bytes) -> None:
    connection = opened(served, request_)
    time.sleep(0.05)
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        connection.sendall(endless)
        for _ in range(400):
            connection.sendall(b"a" * 65536)
    connection.close()
    assert reasons == []


def test_an_answer_that_nobody_takes(served: Served) -> None:
    """The kernel ends the connection; the app hears of it, and nothing is left of it."""
    ended.clear()
    connection = opened(served, HEAD.replace(b"/ ", b"/endless ", 1) + b"\r\n", 4096)
    assert ended.wait(20), "the app still sends"
    served.wait_until_idle()
    connection.close()
