"""The port of a server whose engine is not up yet: alive, not ready, and handed over without losing a connection."""

import argparse
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    for answer in (server.get(top + "/metrics"), server.post(top + "/v1/completions", b"x" * 200_000)):
        refused(answer)


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


def test_over_tls(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    with answered(ssl_certfile=chain, ssl_keyfile=key) as (server, _):
        check(server)


@pytest.mark.parametrize(
    "sent", [b"", b"GET /health/li", b"no request\r\n\r\n", b"\x16\x03\x01\r\n\r\n", b"x" * 200_000]
)
def test_what_is_no_request_ends_its_connection_alone(sent: bytes) -> None:
    with answered() as (server, listener), socket.create_connection(listener.getsockname(), timeout=20) as odd:
        odd.sendall(sent)
        check(server)


def test_an_api_server_takes_over() -> None:
    """Requests that come from then on wait for it."""
    with answered() as (server, listener):
        starting.stop()
        answers: list[Answer] = []
        asking = threading.Thread(target=lambda: answers.append(server.get("/health/ready")))
        asking.start()
        listener.setblocking(True)
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}")
        asking.join(20)
        assert [each.status for each in answers] == [200]
        starting.stop()  # of several API servers each does


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
