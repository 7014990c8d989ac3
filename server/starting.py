"""``vllm.entrypoints.launchers.launcher.setup_server``: wrapped so that the port answers while the engine starts.

vLLM binds its port at once and listens only when its engine is up, which for a large model takes minutes. Until then a probe
could not tell a server that starts from one that is gone. Here a small process answers on the same socket: 200 to
``/health/live``, 503 to everything else. It ends when an API server is about to take connections, or the server has gone;
connections that it has not taken wait for the API server. It is no thread, as imports would keep one from answering for
seconds.
"""

import argparse
import asyncio
import fcntl
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from ropeswitch.server import refusals
from ropeswitch.server.front.routes import route_path

# Seconds that a client has for its head, and that it may send nothing of its body.
TIMEOUT = 2.0
# A client is still there to read its answer when its body is thrown away: so many bytes, for so many seconds.
LINGER_BYTES = 64 << 20
LINGER_SECONDS = 30.0
# Seconds after which trying again makes sense.
RETRY_AFTER = 5
# Seconds that an API server waits until the process has closed its socket.
STOP_SECONDS = 10.0
# How often it looks whether an API server takes over, in seconds.
LOOK_SECONDS = 0.05
# As many connections wait as uvicorn has.
BACKLOG = 2048
# The largest head.
MOST_BYTES = 1 << 16
_ERROR = {
    "message": "the server is starting and its engine is not up yet; try again later",
    "type": "server_error",
    "param": None,
    "code": "server_starting",
}
_LENGTH = re.compile(r"\r\ncontent-length: *(\d{1,18})\r", re.IGNORECASE)
_CHUNKED = re.compile(r"\r\ntransfer-encoding:", re.IGNORECASE)


def answering(upstream: Callable[..., tuple[str, socket.socket]]) -> Callable[..., tuple[str, socket.socket]]:
    """A function that sets the server's socket up as ``upstream`` does, and has it answered from then on."""

    @wraps(upstream)
    def setup_server(args: argparse.Namespace, *rest: Any, **named: Any) -> tuple[str, socket.socket]:
        address, listener = upstream(args, *rest, **named)
        _start(listener, args)
        return address, listener

    return setup_server


def stop() -> None:
    """Take the connections from now on; every API server calls it before it takes any.

    Nobody who is told that it is ready is told afterwards that it is starting.

    Raises:
        TimeoutError: when the process keeps the port.
    """
    _mark().touch()
    deadline = time.monotonic() + STOP_SECONDS
    # Free as soon as the process listens no more, or has died.
    with _lock().open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError("the process that answers while the engine starts still has the port") from None
                time.sleep(LOOK_SECONDS / 10)


def _mark() -> Path:
    return Path(os.environ[refusals.VARIABLE]).with_name("serving")


def _lock() -> Path:
    return Path(os.environ[refusals.VARIABLE]).with_name("starting")


def _start(listener: socket.socket, args: argparse.Namespace) -> None:
    tls = {
        "certfile": args.ssl_certfile,
        "keyfile": args.ssl_keyfile,
        "password": None,
        "cert_reqs": args.ssl_cert_reqs,
        "ca_certs": args.ssl_ca_certs,
        "ciphers": args.ssl_ciphers,
    }
    settings = {
        "fd": listener.fileno(),
        "pid": os.getpid(),
        "root": args.root_path or "",
        "tls": tls if args.ssl_certfile else None,
        "mark": str(_mark()),
        "lock": str(_lock()),
    }
    process = subprocess.Popen(
        # Nothing of the folder that the server is started in.
        [sys.executable, "-P", "-m", __name__, json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        # A terminal's Ctrl-C is for the server.
        process_group=0,
    )
    threading.Thread(target=process.wait, daemon=True).start()


async def serve(settings: Mapping[str, Any]) -> None:
    """Answer on a listening socket until an API server takes over, or the server that started this has gone.

    Args:
        settings: The socket's ``fd``; the server's ``pid``; ``root``, the ``--root-path`` that a path may begin with;
            ``tls``, what ``uvicorn.config.create_ssl_context`` takes besides the version, or None; ``mark``, the file that
            an API server makes to take over; and ``lock``, the one that is locked until then.
    """
    with Path(settings["lock"]).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await _serve(settings)
    # Those who are connected have their time, also those of whom only the event loop knows yet.
    while others := asyncio.all_tasks() - {asyncio.current_task()}:
        await asyncio.wait(others)


async def _serve(settings: Mapping[str, Any]) -> None:
    context = None
    if settings["tls"] is not None:
        from uvicorn.config import SSL_PROTOCOL_VERSION, create_ssl_context

        context = create_ssl_context(ssl_version=SSL_PROTOCOL_VERSION, **settings["tls"])
    server_process = os.pidfd_open(settings["pid"])
    if os.getppid() != settings["pid"]:
        return
    asyncio.get_running_loop().add_reader(server_process, os._exit, 0)

    async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _answer(reader, writer, settings["root"])

    listener = socket.socket(fileno=settings["fd"])
    handshake = TIMEOUT if context is not None else None
    server = await asyncio.start_server(
        take, sock=listener, backlog=BACKLOG, limit=MOST_BYTES, ssl=context, ssl_handshake_timeout=handshake
    )
    while not os.path.exists(settings["mark"]):
        await asyncio.sleep(LOOK_SECONDS)
    # Connections that were taken this moment become the server's own a turn later, which must not be closed yet.
    asyncio.get_running_loop().remove_reader(listener)
    await asyncio.sleep(LOOK_SECONDS)
    server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
    """Answer one request, and close its connection."""
    # A client that leaves, dawdles or speaks something else is told nothing.
    with suppress(TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        try:
            async with asyncio.timeout(TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            method, target, _ = head.partition("\r\n")[0].split(" ")
            writer.write(response(method, route_path({"path": target.partition("?")[0], "root_path": root})))
            await _throw_away(reader, head)
        finally:
            writer.close()


async def _throw_away(reader: asyncio.StreamReader, head: str) -> None:
    """Take the body of a request, so that it is not in the way of the answer."""
    left = int(length[1]) if (length := _LENGTH.search(head)) else LINGER_BYTES if _CHUNKED.search(head) else 0
    left = min(left, LINGER_BYTES)
    async with asyncio.timeout(LINGER_SECONDS):
        while left > 0:
            async with asyncio.timeout(TIMEOUT):
                data = await reader.read(MOST_BYTES)
            left = left - len(data) if data else 0


def response(method: str, path: str) -> bytes:
    """What is answered, whole."""
    status = b"503 Service Unavailable"
    value: dict[str, Any] = {"error": _ERROR}
    if path == "/health/live" and method in ("GET", "HEAD"):
        status, value = b"200 OK", {"status": "starting"}
    elif path == "/health/ready":
        value = {"status": "starting"}
    content = json.dumps(value).encode()
    headers = [
        b"HTTP/1.1 " + status,
        b"content-type: application/json",
        b"content-length: %d" % len(content),
        b"connection: close",
    ]
    if not status.startswith(b"200"):
        headers.append(b"retry-after: %d" % RETRY_AFTER)
    return b"\r\n".join([*headers, b"", b"" if method == "HEAD" else content])


def main() -> int:
    """Serve by the settings that are the only argument; the exit code."""
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except OSError as error:
        reason = f"{type(error).__name__}: {error}"
        print(f"ropeswitch: the port is not answered while the engine starts: {reason}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
