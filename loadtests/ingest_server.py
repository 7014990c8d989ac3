"""Servers for ``bench_ingest.py``: stock or ours, on one tiny random model, probed, with an engine that takes no step."""

import json
import os
import random
import signal
import socket
import string
import subprocess
import sys
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

MAXIMUM = 1 << 21
WINDOW = 8192
# A word and the space before it are one token: eight characters.
LETTERS, WORDS = 7, 4000
START_SECONDS = 300
_PLUGIN = "ingest_probe"


def make_model(folder: Path) -> list[str]:
    """Write a random Phi-3 of one layer for 2M tokens and a tokenizer of whole words.

    Returns:
        The words, each of which is a token with the space before it.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import Phi3Config, Phi3ForCausalLM, PreTrainedTokenizerFast

    generator = random.Random(0)
    words = sorted({"".join(generator.choices(string.ascii_lowercase, k=LETTERS)) for _ in range(WORDS)})
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1 << 16,
        special_tokens=["<pad>", "<bos>", "<eos>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" " + " ".join(words)] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", bos_token="<bos>", eos_token="<eos>",
        chat_template="{% for message in messages %}{{ message.content }}{% endfor %}",
    )  # fmt: skip
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 100 for i in range(16)],
        "long_factor": [1.0 + i / 4 for i in range(16)],
        "original_max_position_embeddings": WINDOW,
    }
    config = Phi3Config(
        vocab_size=len(fast), hidden_size=128, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=1, max_position_embeddings=MAXIMUM, original_max_position_embeddings=WINDOW,
        rope_parameters=rope, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    Phi3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    fast.save_pretrained(folder)
    return words


class IngestServer:
    """A server in processes of its own.

    Args:
        ours: Whether it is ropeswitch's, or stock vLLM's.
        model: The model's folder.
        work: An empty folder for what it writes.
    """

    def __init__(self, ours: bool, model: Path, work: Path) -> None:
        self.port, self._records = _free_port(), work / "records"
        self._records.mkdir(parents=True)
        plugin = work / "plugin" / f"{_PLUGIN}-0.dist-info"
        plugin.mkdir(parents=True)
        (plugin / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {_PLUGIN}\nVersion: 0\n")
        entry = f"{_PLUGIN} = ropeswitch.loadtests.ingest_probe:install"
        (plugin / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{entry}\n")
        ropeswitch = [str(Path(sys.executable).with_name("ropeswitch")), "serve", str(model)]
        stock = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
        command = ropeswitch if ours else stock
        command += ["--host", "127.0.0.1", "--port", str(self.port), "--served-model-name", "model", "--enforce-eager"]
        command += ["--max-model-len", str(MAXIMUM), "--kv-cache-memory-bytes", str(1 << 30)]
        # Ten texts of 2M tokens each may wait.
        command += ["--max-queued-tokens", str(1 << 25)] if ours else []
        environment = os.environ | {
            "PYTHONPATH": str(plugin.parent),
            "VLLM_PLUGINS": _PLUGIN,
            "INGEST_PROBE": str(self._records),
            "VLLM_SERVER_DEV_MODE": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            # Two engines share the cores.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        }
        self.log = work / "log"
        with self.log.open("wb") as output:
            self._process = subprocess.Popen(
                command, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
            )

    def wait(self) -> None:
        """Wait until it answers, then have its engine take requests but no step.

        Raises:
            SystemExit: with the end of its log, when it does not start.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self.post("/pause?mode=keep", {})
                return
            except OSError:
                time.sleep(0.5)
        sys.exit(f"bench_ingest: the server did not start:\n{self.log.read_text(errors='replace')[-4000:]}")

    def post(self, path: str, body: Any) -> bytes:
        """Post JSON and read the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=60) as answer:
            return bytes(answer.read())

    def records(self) -> list[dict[str, Any]]:
        """What its probes wrote so far."""
        lines = [line for path in self._records.iterdir() for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def peak_memory(self) -> int:
        """The most memory in bytes that one of its processes had so far."""
        peaks = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(each.name)) == self._process.pid:
                    status = (each / "status").read_text()
                    peaks.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
            except (OSError, IndexError):
                continue  # it ended
        return max(peaks)

    def stop(self) -> None:
        """End it, and whatever is left of it."""
        self._process.terminate()
        try:
            self._process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
