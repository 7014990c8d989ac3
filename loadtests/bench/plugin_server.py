"""A benchmark's server in separate processes, each of which can load a plugin of ours."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

START_SECONDS = 300


class PluginServer:
    """A server started by ``ropeswitch serve`` or another command.

    Args:
        command: Command without ``--host`` and ``--port``.
        work: Empty folder for the log and the plugin's metadata.
        plugin: ``module:function`` that every server process calls when it loads vLLM's plugins; None for none.
        variables: Additional environment variables.
    """

    def __init__(
        self, command: Sequence[str], work: Path, plugin: str | None = None, variables: Mapping[str, str] | None = None
    ) -> None:
        self.port = _free_port()
        environment = os.environ | {
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # The engines of two servers share the cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        environment |= variables or {}
        if plugin is not None:
            name = plugin.partition(":")[0].rpartition(".")[2]
            installed = work / "plugin" / f"{name}-0.dist-info"
            installed.mkdir(parents=True)
            (installed / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
            (installed / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{name} = {plugin}\n")
            environment |= {"PYTHONPATH": str(installed.parent), "VLLM_PLUGINS": name}
        self.log = work / "log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers ``/health``.

        Raises:
            SystemExit: with the end of its log, if it does not start.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                self.get("/health")
                return
            except OSError:
                time.sleep(0.5)
        sys.exit(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def get(self, path: str) -> bytes:
        """Return the body of a GET request."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=60) as answer:
            return bytes(answer.read())

    def post(self, path: str, body: Any) -> bytes:
        """Post JSON and return the complete response body."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as answer:
            return bytes(answer.read())

    def stop(self) -> None:
        """Stop the server, then kill its remaining processes."""
        self.process.terminate()
        try:
            self.process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
