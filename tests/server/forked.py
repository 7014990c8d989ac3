"""Starts servers by forking a process that has imported what they import.

A server has three processes, and each takes 6 s of a core to import vLLM. Here one process imports it once, for every server
that a test process starts. The other processes of such a server are forked too (``tests/exactness/preloaded.py``); they
descend from it, as in a real start.
"""

import importlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any

import setproctitle

from tests.exactness import preloaded

# vllm_adapter is what a start imports late; the others are imported by what it calls.
MODULES = ["ropeswitch.server.cli", "ropeswitch.server.serve", "ropeswitch.server.vllm_adapter"]
MODULES += ["ropeswitch.server.model_config", "ropeswitch.server.tool_parsers", "vllm.entrypoints.openai.api_server"]
NUMBER = struct.Struct("i")
MOST_BYTES = 1 << 20


class Forked(subprocess.Popen[bytes]):
    """A forked ``ropeswitch`` in a session of its own, with the methods of a started one."""

    def __init__(
        self, arguments: Sequence[str], *, env: Mapping[str, str], stdout: IO[bytes], stderr: IO[bytes]
    ) -> None:
        self.args = list(arguments)
        self.returncode: Any = None
        self._exit, given = socket.socketpair(type=socket.SOCK_SEQPACKET)
        with given:
            request = json.dumps({"arguments": self.args, "environment": dict(env), "folder": os.getcwd()})
            socket.send_fds(_parent(), [request.encode()], [stdout.fileno(), stderr.fileno(), given.fileno()])
        (self.pid,) = NUMBER.unpack(self._exit.recv(NUMBER.size))

    def poll(self) -> Any:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self._exit.settimeout(timeout)
            try:
                data = self._exit.recv(NUMBER.size)
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired(self.args, timeout or 0) from None
            (self.returncode,) = NUMBER.unpack(data)
            self._exit.close()
        return int(self.returncode)


@cache
def _parent() -> socket.socket:
    """The socket of this test process's parent of servers, which ends when it is closed."""
    ours, given = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with given:
        command = [sys.executable, "-m", __name__, str(given.fileno())]
        subprocess.Popen(command, pass_fds=[given.fileno()], stdin=subprocess.DEVNULL)
    return ours


def _fork_servers(requests: socket.socket) -> int:
    """Fork a server for each request, until no one is left to make one.

    Returns:
        The exit code of the process that returns: of this one, or of a server.
    """
    for name in (*MODULES, *preloaded.MODULES):
        importlib.import_module(name)
    # It finds the place of the title by the environment that this process was started with.
    setproctitle.getproctitle()
    # The processes that wait for a server each are not waited for.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Ctrl-C reaches this process too, but the tests end it.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, fds, _, _ = socket.recv_fds(requests, MOST_BYTES, 3)
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
        with socket.socket(fileno=fds[2]) as reply:
            reply.send(NUMBER.pack(server))
            reply.send(NUMBER.pack(os.waitstatus_to_exitcode(os.waitpid(server, 0)[1])))
        os._exit(0)


def _serve(stdout: int, stderr: int, reply: int, arguments: list[str], environment: dict[str, str], folder: str) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for fd, standard in ((stdout, 1), (stderr, 2)):
        os.dup2(fd, standard)
        os.close(fd)
    os.close(reply)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    cli = sys.modules["ropeswitch.server.cli"]
    # The module that the interpreters which it spawns import again.
    sys.modules["__main__"] = cli
    sys.argv = [str(cli.__file__), *arguments]
    preloaded.fork_where_vllm_spawns()
    return int(cli.main())


if __name__ == "__main__":
    sys.exit(_fork_servers(socket.socket(fileno=int(sys.argv[1]))))
