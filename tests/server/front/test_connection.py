"""Heads that do not come whole, or are too large, and answers that nobody takes, on a real uvicorn server."""

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
import uvicorn

from ropeswitch.server.front import refusal
from ropeswitch.server.front.connection import limit
from tests.faults.raw import drip

SECONDS = 0.5
HEAD = b"GET / HTTP/1.1\r\nhost: x\r\n"
MOST_BYTES, MOST_HEADERS = 20000, 20


async def app(scope: Any, receive: Any, send: Any) -> None:
    assert scope["type"] == "http"
    while (await receive()).get("more_body"):
        pass
    await send({"type": "http.response.start", "status": 200, "headers": []})
    if scope["path"] == "/endless":
        gone = asyncio.create_task(receive())
        while not gone.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        ended.set()
        return
    await send({"type": "http.response.body", "body": b"fine"})


ended = threading.Event()


@dataclass(frozen=True)
class Served:
    url: str
    server: uvicorn.Server


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        config = uvicorn.Config(app, lifespan="off", log_level="warning", timeout_keep_alive=5)
        config.load()
        config.h11_max_incomplete_event_size, config.h11_max_header_count = MOST_BYTES, MOST_HEADERS
        limit(config, SECONDS)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield Served(f"http://127.0.0.1:{listening.getsockname()[1]}", server)
        server.should_exit = True
        thread.join(20)
        assert not thread.is_alive()


def opened(served: Served, sent: bytes = b"", receive_buffer: int | None = None) -> socket.socket:
    connection = socket.socket()
    if receive_buffer is not None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    connection.settimeout(20)
    connection.connect(("127.0.0.1", int(served.url.rsplit(":", 1)[1])))
    connection.sendall(sent)
    return connection


def rest(connection: socket.socket) -> bytes:
    data = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65536):
            data += chunk
    connection.close()
    return data


def answer(connection: socket.socket) -> bytes:
    """One chunked answer; its head and its chunks may come apart."""
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        chunk = connection.recv(65536)
        assert chunk, data
        data += chunk
    return data


def refused(connection: socket.socket, status: int, code: str | None) -> str:
    """The message of the refusal after which the connection is closed."""
    start, _, content = rest(connection).partition(b"\r\n\r\n")
    assert start.startswith(b"HTTP/1.1 %d " % status) and b"connection: close" in start, start
    error = json.loads(content)["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    return str(error["message"])


@pytest.fixture
def reasons() -> Iterator[list[str]]:
    """What refusals are counted under."""
    reasons: list[str] = []

    def listener(reason: str, _: int | None) -> None:
        reasons.append(reason)

    refusal.listeners.append(listener)
    yield reasons
    refusal.listeners.remove(listener)


@pytest.mark.parametrize("sent", [b"G", HEAD, HEAD + b"x-", b"\r\n"])
def test_a_head_that_stops(served: Served, reasons: list[str], sent: bytes) -> None:
    assert "0.5 seconds" in refused(opened(served, sent), 408, "request_timeout")
    assert reasons == ["head_timeout"]


@pytest.mark.parametrize(
    "sent",
    [
        b"no request\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a client that begins TLS
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\nab",
    ],
)
def test_what_is_no_request(served: Served, reasons: list[str], sent: bytes) -> None:
    assert "HTTP/1.1" in refused(opened(served, sent), 400, None)
    assert reasons == ["framing"]


def test_a_head_that_drips(served: Served) -> None:
    connection = opened(served)
    drip(connection, HEAD + b"x: " + b"a" * 100, SECONDS / 10)
    refused(connection, 408, "request_timeout")


def test_a_connection_on_which_nothing_comes(served: Served) -> None:
    assert rest(opened(served)) == b""


def test_a_second_head_that_stops(served: Served) -> None:
    connection = opened(served, HEAD + b"\r\n")
    assert b"fine" in answer(connection)
    connection.sendall(b"GET ")
    refused(connection, 408, "request_timeout")


def test_a_connection_that_is_used_is_kept(served: Served) -> None:
    connection = opened(served)
    for _ in range(4):
        connection.sendall(HEAD + b"\r\n")
        assert b"fine" in answer(connection)
        time.sleep(SECONDS * 0.6)
    connection.close()


def test_bodies_take_the_time_that_their_app_gives_them(served: Served) -> None:
    connection = opened(served, b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n")
    time.sleep(SECONDS * 2)
    connection.sendall(b"ab")
    assert b"fine" in answer(connection)
    connection.close()


def test_heads_that_are_too_large(served: Served, reasons: list[str]) -> None:
    message = refused(opened(served, HEAD + b"x: " + b"a" * (MOST_BYTES + 70000)), 431, "request_too_large")
    assert str(MOST_BYTES) in message
    many = b"".join(b"x-%d: 1\r\n" % i for i in range(MOST_HEADERS + 1))
    assert str(MOST_HEADERS) in refused(opened(served, HEAD + many), 431, "request_too_large")
    assert reasons == ["head_bytes", "head_count"]


def test_what_stands_behind_a_body_is_limited(served: Served) -> None:
    chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n"
    for endless in (b"0\r\nx: " + b"a" * (MOST_BYTES + 70000), b"1;" + b"a" * (MOST_BYTES + 70000)):
        connection = opened(served)
        with suppress(ConnectionResetError, BrokenPipeError):
            connection.sendall(chunked)
            time.sleep(0.05)
            connection.sendall(endless)
        assert b"fine" not in rest(connection)


def test_an_answer_that_nobody_takes(served: Served) -> None:
    """The kernel ends the connection; the app hears of it, and nothing is left of it."""
    ended.clear()
    connection = opened(served, HEAD.replace(b"/ ", b"/endless ", 1) + b"\r\n", 4096)
    assert ended.wait(20), "the app still sends"
    deadline = time.monotonic() + 5
    while served.server.server_state.connections:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    connection.close()


def test_other_parsers_are_refused() -> None:
    config = uvicorn.Config(app, http="h11")
    config.load()
    with pytest.raises(TypeError, match="H11Protocol"):
        limit(config, SECONDS)
