"""``vllm.entrypoints.launchers.launcher.setup_server``: wrapped so that the port answers while the engine starts.

vLLM binds its port at once but listens only when its engine is up, which takes minutes for a large model. Until then a probe
cannot tell a starting server from a dead one. Here a small process answers on the same socket: 200 to ``/health/live``, 503
to everything else. It exits when an API server is about to accept connections, or when the server has died; connections that
it has not accepted are left for the API server. It is not a thread, because imports would block that for seconds.
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

# Maximum seconds for a request's headers, and for a pause in its body.
TIMEOUT = 2.0
# Limits for discarding a request's body, so that its client reads the response.
LINGER_BYTES = 64 << 20
LINGER_SECONDS = 30.0
# Value of ``retry-after``, in seconds.
RETRY_AFTER = 5
# Maximum seconds that an API server waits for this process to close its socket.
STOP_SECONDS = 10.0
# Interval between checks whether an API server takes over, in seconds.
LOOK_SECONDS = 0.05
# uvicorn's own backlog.
BACKLOG = 2048
# Maximum bytes of a request's headers.
MOST_BYTES = 1 << 16
_ERROR = {
    "message": "the server is starting; try again later",
    "type": "server_error",
    "param": None,
    "code": "server_starting",
}
_LENGTH = re.compile(r"\r\ncontent-length: *(\d{1,18})\r", re.IGNORECASE)
_CHUNKED = re.compile(r"\r\ntransfer-encoding:", re.IGNORECASE)


def answering(upstream: Callable[..., tuple[str, socket.socket]]) -> Callable[..., tuple[str, socket.socket]]:
    """Wrap ``setup_server`` to start the answering process once the socket is set up."""

    @wraps(upstream)
    def setup_server(args: argparse.Namespace, *rest: Any, **named: Any) -> tuple[str, socket.socket]:
        address, listener = upstream(args, *rest, **named)
        if listener.family != socket.AF_UNIX:
            # With --port 0 the system has chosen the port.
            args.port = listener.getsockname()[1]
        _start(listener, args)
        return address, listener

    return setup_server


def stop() -> None:
    """End the answering process; every API server calls this before it accepts connections.

    So readiness never goes back to starting.

    Raises:
        TimeoutError: when the process does not release the port.
    """
    _mark().touch()
    deadline = time.monotonic() + STOP_SECONDS
    # The lock is free once the process has stopped listening, or has died.
    with _lock().open("ab") as file:
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise TimeoutError(
                        "the process that answers while the engine starts still holds the port"
                    ) from None
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
        # -P: import nothing from the working directory.
        [sys.executable, "-P", "-m", __name__, json.dumps(settings)],
        stdin=subprocess.DEVNULL,
        pass_fds=[listener.fileno()],
        # A terminal's Ctrl-C must reach only the server.
        process_group=0,
    )
    threading.Thread(target=process.wait, daemon=True).start()


async def serve(settings: Mapping[str, Any]) -> None:
    """Answer on a listening socket until an API server takes over, or the server that started this process has died.

    Args:
        settings: The socket's ``fd``; the server's ``pid``; ``root``, the ``--root-path`` that a path may begin with;
            ``tls``, arguments of ``uvicorn.config.create_ssl_context`` except the version, or None; ``mark``, the file that
            an API server creates to take over; and ``lock``, the file that is locked until then.
    """
    with Path(settings["lock"]).open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        await _serve(settings)
    # Let accepted connections finish, including those that only the event loop knows of so far.
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
    # Connections accepted just now are handed to the server one loop iteration later; do not close it before that.
    asyncio.get_running_loop().remove_reader(listener)
    await asyncio.sleep(LOOK_SECONDS)
    server.close()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, root: str) -> None:
    """Answer one request, and close its connection."""
    # A client that disconnects, is too slow, or does not speak HTTP gets no answer.
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
    """Receive and discard the body of a request, so that its client reads the response."""
    left = int(length[1]) if (length := _LENGTH.search(head)) else LINGER_BYTES if _CHUNKED.search(head) else 0
    left = min(left, LINGER_BYTES)
    async with asyncio.timeout(LINGER_SECONDS):
        while left > 0:
            async with asyncio.timeout(TIMEOUT):
                data = await reader.read(MOST_BYTES)
            left = left - len(data) if data else 0


def response(method: str, path: str) -> bytes:
    """Return the whole response, headers and body."""
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
    """Serve with the settings in the only argument, and return the exit code."""
    try:
        asyncio.run(serve(json.loads(sys.argv[1])))
    except OSError as error:
        reason = f"{type(error).__name__}: {error}"
        print(f"ropeswitch: health probes get no answer while the engine starts: {reason}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
