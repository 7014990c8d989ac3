"""Starts servers by forking a process that has imported what they import.

A server has three processes, and each takes 6 s of a core to import vLLM. Here one process imports it once, for every server
that a test process starts. The engine, its workers and further API servers are forked too
(``tests/exactness/preloaded.py``): they descend from the command, but are children of its fork server, which waits for them.
"""

import importlib
import json
import os
import runpy
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import IO, Any

import setproctitle
import torch

from tests.exactness import preloaded

ROOT = Path(__file__).parents[2]
# A start imports vllm_adapter late; its functions import the others.
MODULES = ["ropeswitch.server.cli", "ropeswitch.server.start.serve", "ropeswitch.server.app.vllm_adapter"]
MODULES += ["ropeswitch.server.start.model_config", "vllm.entrypoints.openai.api_server"]
# Variables that the engines of a test process set, and that a server must not inherit.
INHERITED = ("VLLM_LOGGING_LEVEL", "VLLM_DIST_IDENT")
NUMBER = struct.Struct("i")
# For the parent to import everything, on a machine with other work.
START_SECONDS = 400
MOST_BYTES = 1 << 20


class Forked(subprocess.Popen[bytes]):
    """A forked command in a session of its own, whose module has a ``main``, with the methods of a started one."""

    def __init__(self, module: str, arguments: Sequence[str], env: Mapping[str, str], output: IO[bytes]) -> None:
        self.args = list(arguments)
        self.returncode: Any = None
        self._exit, given = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with given:
            asked = {"module": module, "arguments": self.args, "environment": dict(env), "folder": os.getcwd()}
            request = json.dumps(asked)
            socket.send_fds(_parent()[0], [request.encode()], [output.fileno(), given.fileno()])
        self._exit.settimeout(START_SECONDS)
        self.pid = self._received()

    def poll(self) -> Any:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._exit.settimeout(timeout)
            try:
                self.returncode = self._received()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            self._exit.close()
        return int(self.returncode)

    def _received(self) -> int:
        data = self._exit.recv(NUMBER.size)
        assert data, "the parent of the server died; its output is above"
        return int(NUMBER.unpack(data)[0])


@cache
def _parent() -> tuple[socket.socket, "subprocess.Popen[bytes]"]:
    """Return this test process's socket to the parent of its servers, and the parent; closing the socket ends it."""
    ours, given = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with given:
        env = {name: value for name, value in os.environ.items() if name not in INHERITED} | {"PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-m", __name__, str(given.fileno())]
        process = subprocess.Popen(command, env=env, cwd=ROOT, pass_fds=[given.fileno()], stdin=subprocess.DEVNULL)
    return ours, process


def _fork_servers(requests: socket.socket) -> int:
    """Fork a server for each request, until the socket is closed.

    Returns:
        The exit code of the process that returns: of this one, or of a server.
    """
    for name in (*MODULES, preloaded.PRELOAD):
        importlib.import_module(name)
    # It finds the title's memory by the first environment, which servers replace.
    setproctitle.getproctitle()
    # The kernel reaps the processes that wait for a server each.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C reaches this process too, but the tests end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MOST_BYTES, 2)
        if not data:
            return 0
        if os.fork() != 0:
            for fd in fds:
                os.close(fd)
            continue
        requests.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        server = os.fork()
        if server == 0:
            return _serve(*fds, **json.loads(data))
        with socket.socket(fileno=fds[1]) as reply:
            reply.send(NUMBER.pack(server))
            code = os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])
            # The tests may have ended.
            with suppress(OSError):
                reply.send(NUMBER.pack(code))
        os._exit(0)


def _serve(output: int, reply: int, module: str, arguments: list[str], environment: dict[str, str], folder: str) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for standard in (1, 2):
        os.dup2(output, standard)
    os.close(output)
    os.close(reply)
    known = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    torch._dynamo.config.disable = environment.get("TORCH_COMPILE_DISABLE") == "1"
    # What Python does with them as it starts, though everything is imported.
    for added in environment.get("PYTHONPATH", "").split(os.pathsep):
        if added not in known:
            runpy.run_path(str(Path(added) / "sitecustomize.py"), run_name="sitecustomize")
    cli = importlib.import_module(module)
    # What a start by ``-m`` has there: processes that multiprocessing starts read its name.
    sys.modules["__main__"] = cli
    sys.argv = [str(cli.__file__), *arguments]
    preloaded.fork_where_vllm_spawns()
    return int(cli.main() or 0)


if __name__ == "__main__":
    sys.exit(_fork_servers(socket.socket(fileno=int(sys.argv[1]))))
