"""Runs commands of the pages in bash, and the one server at a time that they need."""

import os
import shlex
import signal
import subprocess
from contextlib import chdir, suppress
from pathlib import Path
from typing import IO

import psutil

from tests.server.forked import Forked
from tests.server.running import FORKED, Server, environment, free_port, patient
from tests.server.running import _wait as wait

# No compiler, little memory.
FLAGS = "--enforce-eager --kv-cache-memory-bytes 1G"
STOP_SECONDS = 60


def variables_in(folder: Path) -> dict[str, str]:
    """An environment for the commands of a page, with its folder's programs first on the path."""
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    # Without its cache, vLLM imports every model that it inspects in a process of its own, 40 s of a core for each server.
    cache = str(Path.home() / ".cache" / "vllm")
    home = {"HOME": str(folder), "CURL_HOME": str(folder), "PATH": path, "VLLM_CACHE_ROOT": cache}
    # Of a `make test-full ARGS=...` around this; the commands have their own.
    inherited = {
        key: value for key, value in environment().items() if key not in ("ARGS", "MAKEFLAGS", "MAKEOVERRIDES")
    }
    return patient(inherited) | home


def bash(text: str, folder: Path, variables: dict[str, str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
    """Start the commands in the folder."""
    return subprocess.Popen(
        ["bash", "-c", f"set -euo pipefail\n{text}"],
        cwd=folder, env=variables_in(folder) | variables,
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip


class Served:
    """The only server of the moment, which stays until a page needs another one."""

    def __init__(self, **variables: str) -> None:
        self.variables = variables
        self.command, self.port, self.output = "", 0, Path()
        self.shell: subprocess.Popen[bytes] | None = None

    def need(self, command: str, folder: Path) -> Server:
        """Start it, unless it is running, and wait until it answers."""
        command = command.partition("#")[0].strip()
        if command == self.command:
            return self.server
        self.stop()
        self.port, self.output = free_port(), folder / "server.out"
        text = command if command.startswith("make ") else f"{command} --host 127.0.0.1 --port {self.port} {FLAGS}"
        words = shlex.split(text.replace("\\\n", " "))
        variables = {"PORT": str(self.port), **self.variables}
        with self.output.open("wb") as output, chdir(folder):
            if Path(words[0]).name == "ropeswitch":
                shell: subprocess.Popen[bytes] = Forked(FORKED, words[1:], variables_in(folder) | variables, output)
            else:
                shell = bash(text, folder, variables, output)
        self.server = Server(f"http://127.0.0.1:{self.port}", self.output, shell)
        try:
            wait(shell, self.server, "/health")
        except BaseException:
            kill(shell)
            raise
        self.command, self.shell = command, shell
        return self.server

    def stop(self) -> None:
        """End it by SIGTERM to its own process: the command must exit with 0."""
        if self.shell is None:
            return
        shell, self.shell, self.command = self.shell, None, ""
        try:
            if shell.poll() is None:
                process = psutil.Process(shell.pid)
                while process.name() in ("bash", "make", "sh"):
                    [process] = process.children()
                process.terminate()
            assert shell.wait(STOP_SECONDS) == 0, self.output.read_text()[-4000:]
        finally:
            kill(shell)


def kill(shell: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(shell.pid, signal.SIGKILL)
