"""Servers for the tests: the real command in a process of its own, on a free loopback port."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from random import SystemRandom
from typing import Any

import torch

from tests.gpu.settings import MEMORY_SHARE
from tests.server.forked import INHERITED, Forked

# Not the installed script, which a checkout that is only laid out lacks (requirements/lay_out.py).
FORKED = "ropeswitch.server.cli"
PROGRAM = [sys.executable, "-m", FORKED]
ENGINE = ["--dtype", "float32", "--enforce-eager", "--max-num-seqs", "8", "--kv-cache-memory-bytes", str(64 << 20)]
# On a GPU an engine starts only where this share of its memory is free; the rest of a small one is for others.
ENGINE += ["--gpu-memory-utilization", str(MEMORY_SHARE)]
START_SECONDS = 400
PATIENT = Path(__file__).with_name("patient")


def environment() -> dict[str, str]:
    # The tests' own engines set them; a server shows vLLM's log as a user sees it.
    inherited = {name: value for name, value in os.environ.items() if name not in INHERITED}
    return inherited | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "PYTHONUNBUFFERED": "1",
    }


def patient(env: Mapping[str, str]) -> dict[str, str]:
    """Return an environment whose Python processes sleep where vLLM spins, unless a module on their path does more."""
    return {**env, "PYTHONPATH": os.pathsep.join(filter(None, (env.get("PYTHONPATH"), str(PATIENT))))}


def free_port() -> int:
    """Return a port that the kernel gives to nobody before the server listens on it, which may be a minute later."""
    while True:
        port = SystemRandom().randint(20000, 32000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


@dataclass(frozen=True)
class Answer:
    """An HTTP answer, with what the tests look at."""

    status: int
    headers: Mapping[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def sets(self) -> str | None:
        return self.headers.get("x-rope-factor-set")


@dataclass(frozen=True)
class Server:
    """A server that answers.

    Attributes:
        url: Where, without ``/v1``.
        log: The file that holds its output.
        process: The command's own process, which has the engine's among its descendants.
        tls: What to trust, where it is served over TLS.
    """

    url: str
    log: Path
    process: "subprocess.Popen[bytes]"
    tls: ssl.SSLContext | None = None

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, **headers)

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        """Send a body: JSON values, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.send("POST", path, data, **{"content-type": "application/json"} | headers)

    def announce(self, path: str, body_bytes: int) -> int:
        """Send the head of a request that announces a body of so many bytes, and none of it; the answer's status."""
        host, port = self.url.partition("://")[2].split(":")
        with closing(HTTPConnection(host, int(port), timeout=60)) as opened:
            opened.putrequest("POST", path)
            opened.putheader("content-length", str(body_bytes))
            opened.endheaders()
            return opened.getresponse().status

    def send(self, method: str, path: str, data: bytes | None = None, **headers: str) -> Answer:
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=120, context=self.tls) as response:
                return Answer(response.status, response.headers, response.read().decode())
        except urllib.error.HTTPError as error:
            return Answer(error.code, error.headers, error.read().decode())


@contextmanager
def running(
    folder: Path, *arguments: str, tls: ssl.SSLContext | None = None, variables: Mapping[str, str] | None = None,
    command: str | Sequence[str] = FORKED, ready: str = "/health/ready",
) -> Iterator[Server]:  # fmt: skip
    """Start ``ropeswitch serve`` with ``arguments``, wait until it answers, and stop it at the end.

    Args:
        folder: Where its log goes.
        tls: See :class:`Server`.
        variables: What its environment has besides.
        command: The program whose ``serve`` is started, or its module, which is forked from a process that has imported it.
            Tests of start-up and its output, and of processes pass ``PROGRAM``.
        ready: The path that answers 200 once the server is ready.
    """
    port, log = free_port(), folder / "server.log"
    flags = ["serve", *arguments, "--host", "127.0.0.1", "--port", str(port)]
    with log.open("wb") as output, started(flags, output, command, variables) as process:
        server = Server(f"{'https' if tls else 'http'}://127.0.0.1:{port}", log, process, tls)
        _wait(process, server, ready)
        yield server


@contextmanager
def started(
    arguments: Sequence[str],
    output: Any,
    command: str | Sequence[str] = PROGRAM,
    variables: Mapping[str, str] | None = None,
) -> Iterator["subprocess.Popen[bytes]"]:
    """Start ``ropeswitch``; end it at the end, and then whatever is left of the session that was started for it."""
    env = environment() | dict(variables or {})
    # On a GPU, importing the CPU's worker would change torch.
    if isinstance(command, str) and not torch.cuda.is_available():
        process: subprocess.Popen[bytes] = Forked(command, arguments, env, output)
    else:
        program = [sys.executable, "-m", command] if isinstance(command, str) else command
        process = subprocess.Popen(
            [*program, *arguments], env=patient(env), stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], server: Server, path: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise AssertionError(f"the server left with {process.returncode}:\n{server.log.read_text()[-4000:]}")
        with suppress(OSError):
            if server.get(path).status == 200:
                return
        time.sleep(0.2)
    raise AssertionError(f"no answer after {START_SECONDS} s:\n{server.log.read_text()[-4000:]}")
