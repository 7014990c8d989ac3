"""The port of a server whose engine is not up yet: alive, not ready, and handed over without losing a connection."""

import argparse
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import openai
import psutil
import pytest

from ropeswitch.server import refusals, starting
from tests.server.front.certificates import certificate
from tests.server.running import Answer, Server

FLAGS = {
    "ssl_certfile": None,
    "ssl_keyfile": None,
    "ssl_ca_certs": None,
    "ssl_ciphers": None,
    "ssl_cert_reqs": int(ssl.CERT_NONE),
    "root_path": None,
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(refusals.VARIABLE, str(tmp_path / "refusal"))


@contextmanager
def answered(**flags: Any) -> Iterator[tuple[Server, socket.socket]]:
    """A port that is answered as while an engine starts, and its socket."""

    def bind(args: argparse.Namespace) -> tuple[str, socket.socket]:
        return "", listener

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        starting._mark().unlink(missing_ok=True)  # of the server before
        before = set(psutil.Process().children())
        starting.answering(bind)(argparse.Namespace(**FLAGS | flags))
        [process] = set(psutil.Process().children()) - before
        scheme, tls = "http", None
        if flags.get("ssl_certfile"):
            scheme, tls = "https", ssl.create_default_context(cafile=flags["ssl_certfile"])
        server = Server(f"{scheme}://127.0.0.1:{listener.getsockname()[1]}", Path(), cast(Any, process), tls)
        try:
            listening(server)
            yield server, listener
        finally:
            starting.stop()
            # Of its parent, too, nothing is left: no process that has ended and that nobody has asked after.
            psutil.wait_procs([process], 20)
            assert not process.is_running()


def listening(server: Server) -> None:
    """Wait until the port takes connections."""
    for _ in range(400):
        try:
            server.get("/health/live")
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError("nothing listens")


def check(server: Server, top: str = "") -> None:
    live, ready = server.get(top + "/health/live"), server.get(top + "/health/ready")
    assert (live.status, ready.status) == (200, 503) and live.json == ready.json == {"status": "starting"}
    refused(server.get(top + "/metrics"))
    refused(server.post(top + "/health/live", b""))
    # More than sockets hold.
    refused(server.post(top + "/v1/completions", b"x" * (16 << 20)))


def refused(answer: Answer) -> None:
    assert answer.status == 503 and answer.json["error"]["code"] == "server_starting"
    assert int(answer.headers["retry-after"]) > 0


def test_probes_and_requests() -> None:
    with answered() as (server, _):
        check(server)
        client = openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0)
        with pytest.raises(openai.InternalServerError, match="starting") as error:
            client.models.list()
        assert error.value.status_code == 503 and error.value.code == "server_starting"


def test_under_a_root_path() -> None:
    with answered(root_path="/prefix") as (server, _):
        check(server)
        check(server, "/prefix")
        refused(server.get("/prefixhealth/live"))


def test_over_tls(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    with answered(ssl_certfile=chain, ssl_keyfile=key) as (server, _):
        check(server)


def rest(connection: socket.socket) -> bytes:
    """What comes until the server closes."""
    data = b""
    with suppress(ConnectionResetError):  # as some of what was sent is not read
        while chunk := connection.recv(65536):
            data += chunk
    return data


def test_bodies_in_chunks_and_clients_that_wait_before_they_send_one() -> None:
    with answered() as (_, listener):
        for more in (
            b"transfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n",
            b"expect: 100-continue\r\ncontent-length: 1\r\n\r\n",
        ):
            with socket.create_connection(listener.getsockname(), timeout=20) as connection:
                connection.sendall(b"POST / HTTP/1.1\r\nhost: x\r\n" + more)
                assert rest(connection).startswith(b"HTTP/1.1 503 ")


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health/li", b"no request\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"x" * 200_000]
)
def test_what_is_no_request_ends_its_connection_alone(sent: bytes) -> None:
    with answered() as (server, listener), socket.create_connection(listener.getsockname(), timeout=20) as odd:
        odd.sendall(sent)
        check(server)
        assert rest(odd) == b""


@contextmanager
def api_server(listener: socket.socket) -> Iterator[None]:
    """What takes the connections instead, and answers all of them 200."""
    done = threading.Event()
    listener.settimeout(0.1)

    def take() -> None:
        while not done.is_set():
            with suppress(TimeoutError):
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(20)
                    connection.recv(65536)
                    connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")

    thread = threading.Thread(target=take)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join(20)


def test_an_api_server_takes_over_and_no_request_is_lost() -> None:
    for _ in range(4):
        with answered() as (server, listener):
            over = threading.Event()

            def ask(server: Server = server, over: threading.Event = over) -> list[int]:
                statuses = []
                while not over.is_set() or statuses[-1] != 200:
                    statuses.append(server.get("/health/ready").status)
                return statuses

            with ThreadPoolExecutor(8) as threads:
                asking = [threads.submit(ask) for _ in range(8)]
                time.sleep(0.3)
                starting.stop()
                with api_server(listener):
                    over.set()
                    answers = [each.result() for each in asking]
            # Readiness never goes back to starting.
            assert all(statuses == sorted(statuses, reverse=True) and statuses[0] == 503 for statuses in answers)
            starting.stop()  # of several API servers each does


def test_a_handshake_that_is_late(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    with answered(ssl_certfile=chain, ssl_keyfile=key) as (_, listener):
        connection = socket.create_connection(listener.getsockname(), timeout=20)
        time.sleep(0.2)
        starting.stop()
        context = ssl.create_default_context(cafile=chain)
        with context.wrap_socket(connection, server_hostname="127.0.0.1") as secure:
            secure.sendall(b"GET /health/live HTTP/1.1\r\n\r\n")
            assert secure.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_a_process_that_keeps_the_port_stops_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starting, "STOP_SECONDS", 0.2)
    with answered() as (server, _):
        server.process.suspend()  # type: ignore[attr-defined]
        try:
            with pytest.raises(TimeoutError, match="still holds the port"):
                starting.stop()
        finally:
            server.process.resume()  # type: ignore[attr-defined]


def test_a_process_that_has_died_is_not_waited_for() -> None:
    with answered() as (server, _):
        server.process.kill()
        starting.stop()


def test_a_request_in_hand_is_answered_before_it_ends() -> None:
    with answered() as (_, listener), socket.create_connection(listener.getsockname(), timeout=20) as late:
        late.sendall(b"GET /health/live HTTP/1.1\r\n")
        time.sleep(0.2)
        starting.stop()
        late.sendall(b"\r\n")
        assert late.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")


def test_it_goes_with_the_server(tmp_path: Path) -> None:
    """However that ends, so that another may have the port at once."""
    script = tmp_path / "server.py"
    script.write_text(
        "import argparse, socket, sys\n"
        "from ropeswitch.server import starting\n"
        "listener = socket.create_server(('127.0.0.1', 0))\n"
        f"flags = argparse.Namespace(**{FLAGS!r})\n"
        "starting.answering(lambda args: ('', listener))(flags)\n"
        "print(listener.getsockname()[1], flush=True)\n"
        "sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, str(script)], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        listening(Server(f"http://127.0.0.1:{port}", tmp_path, process))
        process.kill()
    deadline = time.monotonic() + 20
    while True:
        try:
            socket.create_server(("127.0.0.1", port)).close()
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.05)
