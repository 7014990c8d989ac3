"""``vllm.entrypoints.launchers.launcher.setup_server``: wrapped so that the port answers while the engine starts.

vLLM binds its port at once and listens only when its engine is up, which for a large model takes minutes. Until then a probe
could not tell a server that starts from one that is gone. Here a small process answers on the same socket: 200 to
``/health/live``, 503 to everything else. It ends when an API server is about to take connections, or the server has gone;
connections that it has not taken wait for the API server. It is no thread, as an engine may be forked from this process, and
as imports would keep a thread from answering.
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
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any

from ropeswitch.server import refusals

# Seconds that a client has for its request, and after which trying again makes sense.
TIMEOUT = 2.0
RETRY_AFTER = 5
# How often it looks whether an API server takes over, in seconds.
LOOK_SECONDS = 0.05
# As many connections wait as uvicorn has.
BACKLOG = 2048
# The largest head. Of a body as much is taken, so that its client is still there to read the answer.
MOST_BYTES = 1 << 16
_ERROR = {
    "message": "the server is starting and its engine is not up yet; try again later",
    "type": "server_error",
    "param": None,
    "code": "server_starting",
}
_LENGTH = re.compile(r"\r\ncontent-length: *(\d{1,9})\r", re.IGNORECASE)


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

    Of an API server that is asked right after another one said that it is ready, nobody is told that the server is starting.
    """
    if refusals.VARIABLE not in os.environ:
        return
    _mark().touch()
    # Free as soon as the process listens no more, or has died.
    with _lock().open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_SH)


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
        "root": args.root_path or "",
        "tls": tls if args.ssl_certfile else None,
        "mark": str(_mark()),
        "lock": str(_lock()),
    }
    process = subprocess.Popen(
        [sys.executable, "-m", __name__, json.dumps(settings)],
        # It reads the end of this when this process is gone, however it went.
        stdin=subprocess.PIPE,
        pass_fds=[listener.fileno()],
        # A terminal's Ctrl-C is for the server.
        process_group=0,
    )
    threading.Thread(target=process.wait, daemon=True).start()


async def serve(settings: Mapping[str, Any]) -> None:
    """Answer on a listening socket until an API server takes over, or the server that started this has gone.

    Args:
        settings: The socket's ``fd``; ``root``, the ``--root-path`` with which a path may begin; ``tls``, what
            ``uvicorn.config.create_ssl_context`` takes besides the version, or None; ``mark``, the file that an API server
            makes to take over; and ``lock``, the one that is locked until then.
    """
    with Path(settings["lock"]).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        connections = await _serve(settings)
    # Those who have half sent a request have their time.
    if connections:
        await asyncio.wait(connections)


async def _serve(settings: Mapping[str, Any]) -> set[asyncio.Task[None]]:
    """See above; returns what still answers a request."""
    context = None
    if settings["tls"] is not None:
        from uvicorn.config import SSL_PROTOCOL_VERSION, create_ssl_context

        context = create_ssl_context(ssl_version=SSL_PROTOCOL_VERSION, **settings["tls"])
    # Nothing is ever written to it: it can be read when the server that holds its other end has gone.
    asyncio.get_running_loop().add_reader(sys.stdin, os._exit, 0)
    connections: set[asyncio.Task[None]] = set()

    def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(_answer(reader, writer, settings["root"]))
        connections.add(task)
        task.add_done_callback(connections.discard)

    listener = socket.socket(fileno=settings["fd"])
    handshake = TIMEOUT if context is not None else None
    server = await asyncio.start_server(
        take, sock=listener, backlog=BACKLOG, limit=MOST_BYTES, ssl=context, ssl_handshake_timeout=handshake
    )
    while not os.path.exists(settings["mark"]):
        await asyncio.sleep(LOOK_SECONDS)
    server.close()
    return connections


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
    """Answer one request, and close its connection."""
    # A client that leaves, dawdles or speaks something else is told nothing.
    with suppress(TimeoutError, OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
        try:
            async with asyncio.timeout(TIMEOUT):
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
                method, target, _ = head.partition("\r\n")[0].split(" ")
                if (length := _LENGTH.search(head)) is not None:
                    await reader.readexactly(min(int(length[1]), MOST_BYTES))
                writer.write(response(method, target.partition("?")[0].removeprefix(root)))
                await writer.drain()
        finally:
            writer.close()


def response(method: str, path: str) -> bytes:
    """What is answered, whole."""
    status = b"503 Service Unavailable"
    value: dict[str, Any] = {"error": _ERROR}
    if path == "/health/live":
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


if __name__ == "__main__":
    asyncio.run(serve(json.loads(sys.argv[1])))
