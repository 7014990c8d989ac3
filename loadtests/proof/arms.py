"""The servers to compare: stock vLLM unscaled and with static YaRN, and ropeswitch."""

import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.factors.evaluate.endpoint_target import EndpointTarget
from ropeswitch.loadtests.proof.server import Server
from ropeswitch.loadtests.proof.store import CHAT, PERPLEXITY

WINDOW, LONGEST, FACTOR = 8192, 32768, 4.0
"""The model's window and the longest sequence, in tokens, and their ratio."""
THETA = 100_000.0
NAME = "smollm2"
_STATIC_YARN = {
    "rope_type": "yarn",
    "rope_theta": THETA,
    "factor": FACTOR,
    "original_max_position_embeddings": WINDOW,
}
# Longer position tables and the length check both follow this field; unscaled angles do not depend on it.
_LONG = {"max_position_embeddings": LONGEST}
NATIVE, STATIC, OURS = "native", "static", "ropeswitch"


@dataclass(frozen=True)
class Arm:
    """One server."""

    rotation: str
    dtype: str

    @property
    def name(self) -> str:
        return f"{self.rotation}-{self.dtype}"

    def command(self, model: Path) -> list[str]:
        """The command that serves ``model``, without host and port."""
        if self.rotation == OURS:
            command = [str(Path(sys.executable).with_name("ropeswitch")), "serve", str(model)]
        else:
            overrides = _LONG | ({"rope_parameters": _STATIC_YARN} if self.rotation == STATIC else {})
            command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
            command += ["--hf-overrides", json.dumps(overrides)]
        command += ["--served-model-name", NAME, "--dtype", self.dtype, "--enforce-eager", "--max-num-seqs", "1"]
        command += ["--max-model-len", str(LONGEST), "--max-num-batched-tokens", "1024"]
        # The KV cache takes 46 KB per token in float32.
        return [*command, "--kv-cache-memory-bytes", str(1600 << 20), "--no-enable-prefix-caching"]


FLOAT32, BFLOAT16 = "float32", "bfloat16"
ARMS = tuple(Arm(rotation, dtype) for dtype in (FLOAT32, BFLOAT16) for rotation in (NATIVE, STATIC, OURS))


def dtypes(task: str, length: int) -> tuple[str, ...]:
    """Return the number formats in which a task is measured at a length.

    float32 where ropeswitch must equal native, which bfloat16 rounding would hide. Elsewhere bfloat16, the model's own
    format and three times as fast. Chats are measured in both.
    """
    if task == CHAT:
        return FLOAT32, BFLOAT16
    return (FLOAT32,) if task == PERPLEXITY and length <= WINDOW else (BFLOAT16,)


@contextmanager
def serving(arm: Arm, model: Path, *, chat: bool) -> Iterator[EndpointTarget]:
    """Start the arm's server and connect to it, one request at a time; stop it at the end."""
    with tempfile.TemporaryDirectory() as work:
        server = Server(arm.command(model), Path(work), variables={"VLLM_CPU_OMP_THREADS_BIND": "auto"})
        try:
            server.wait()
            yield EndpointTarget.connect(f"http://127.0.0.1:{server.port}", NAME, str(model), chat, concurrency=1)
        finally:
            server.stop()
