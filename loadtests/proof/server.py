"""A server in its own processes, for a comparison."""

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

START_SECONDS = 300


class Server:
    """A server started by ``ropeswitch serve`` or another command, which gets ``--host`` and ``--port``.

    ``work`` is an empty folder for its log; ``variables`` are added to the environment.
    """

    def __init__(self, command: Sequence[str], work: Path, variables: Mapping[str, str] | None = None) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        # The engines of two servers share the cores.
        shared = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}
        self.log = work / "log"
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*command, "--host", "127.0.0.1", "--port", str(self.port)],
                env=os.environ | shared | dict(variables or {}),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Wait until the server answers ``/health``; exit with the end of its log if it does not start."""
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self.process.poll() is None:
            with suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60):
                return
            time.sleep(0.5)
        sys.exit(f"the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

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
