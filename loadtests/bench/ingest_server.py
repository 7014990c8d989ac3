"""Servers for ``ingest.py``: stock or ours, probed, on one tiny random model, with engines that run no steps."""

import json
import os
import random
import string
import sys
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench import ingest_probe
from ropeswitch.loadtests.bench.plugin_server import PluginServer

MAXIMUM = 1 << 21
WINDOW = 8192
# A word and the space before it are one token of eight characters.
LETTERS, WORDS = 7, 4000


def make_model(folder: Path) -> list[str]:
    """Write a random one-layer Phi-3 for 2M tokens and a tokenizer of whole words.

    Returns:
        The words; each is one token together with the space before it.
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


class IngestServer(PluginServer):
    """A server with probed loops.

    Args:
        ours: Whether to run ropeswitch or stock vLLM.
        model: Model folder.
        work: Empty folder for the log, the plugin and the probes' records.
    """

    def __init__(self, ours: bool, model: Path, work: Path) -> None:
        self._records = work / "records"
        self._records.mkdir(parents=True)
        ropeswitch = [str(Path(sys.executable).with_name("ropeswitch")), "serve", str(model)]
        stock = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
        command = ropeswitch if ours else stock
        command += ["--served-model-name", "model", "--enforce-eager"]
        command += ["--max-model-len", str(MAXIMUM), "--kv-cache-memory-bytes", str(1 << 30)]
        # Room for ten queued texts of 2M tokens each.
        command += ["--max-queued-tokens", str(1 << 25)] if ours else []
        variables = {ingest_probe.VARIABLE: str(self._records), "VLLM_SERVER_DEV_MODE": "1"}
        super().__init__(command, work, f"{ingest_probe.__name__}:install", variables)

    def wait(self) -> None:
        """Wait until the server answers, then pause its engine, which still accepts requests."""
        super().wait()
        self.post("/pause?mode=keep", {})

    def records(self) -> list[dict[str, Any]]:
        """Return the probes' records so far."""
        lines = [line for path in self._records.iterdir() for line in path.read_text().splitlines()]
        return [json.loads(line) for line in lines if line.endswith("}")]

    def peak_memory(self) -> int:
        """Return the peak memory of the server's largest process so far, in bytes."""
        peaks = []
        for each in Path("/proc").glob("[0-9]*"):
            try:
                if os.getsid(int(each.name)) == self.process.pid:
                    status = (each / "status").read_text()
                    peaks.append(int(status.partition("VmHWM:")[2].split()[0]) * 1024)
            except (OSError, IndexError):
                continue  # the process ended
        return max(peaks)
