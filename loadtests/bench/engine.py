"""Compares throughput and start-up with stock vLLM, alternating in one run, on requests that never cross a limit.

Two engines run side by side, each in its own process, on a random Phi-3 checkpoint that this script creates. One engine
works while the other idles. Each round gives one ratio; the result is the median of the ratios.
"""

import argparse
import os
import statistics
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.sides import Side, with_ladder

WINDOW, MAXIMUM, VOCABULARY = 1024, 4096, 8192
WORKLOADS = {
    # name: (requests, prompt tokens, output tokens)
    "decode, 1 request": (1, 32, 96),
    "decode, 32 requests": (32, 64, 64),
    "prefill, 16 x 768": (16, 768, 2),
}


def make_checkpoint(
    folder: Path,
    *,
    layers: int = 8,
    heads: tuple[int, int] = (8, 4),
    intermediate: int = 1408,
    window: int = WINDOW,
    maximum: int = MAXIMUM,
) -> None:
    """Write a random Phi-3 of hidden size 512 with a two-set ladder: limit at ``window`` tokens, end at ``maximum``."""
    import torch
    from transformers import Phi3Config, Phi3ForCausalLM

    pairs = 512 // heads[0] // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 100 for i in range(pairs)],
        "long_factor": [1.0 + i / 4 for i in range(pairs)],
        "original_max_position_embeddings": window,
    }
    config = Phi3Config(
        vocab_size=VOCABULARY, hidden_size=512, intermediate_size=intermediate, num_hidden_layers=layers,
        num_attention_heads=heads[0], num_key_value_heads=heads[1], max_position_embeddings=maximum,
        original_max_position_embeddings=window, rope_parameters=rope, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    torch.manual_seed(0)
    Phi3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)


def serve(pipe: Connection, folder: str, ours: bool, eager: bool) -> None:
    """Start an engine, send its start-up time in seconds, then time each workload whose name arrives on ``pipe``."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    start = time.perf_counter()
    import torch
    from vllm import LLM, SamplingParams

    arguments: dict[str, Any] = {
        "model": folder, "max_model_len": MAXIMUM, "skip_tokenizer_init": True, "enforce_eager": eager,
        "kv_cache_memory_bytes": 1 << 30, "enable_prefix_caching": False, "max_num_batched_tokens": 2048,
    }  # fmt: skip
    llm = LLM(**(with_ladder(arguments) if ours else arguments))
    pipe.send(time.perf_counter() - start)
    while (name := pipe.recv()) is not None:
        requests, prompt, output = WORKLOADS[name]
        generator = torch.Generator().manual_seed(5)
        prompts: Any = [
            {"prompt_token_ids": torch.randint(3, VOCABULARY, (prompt,), generator=generator).tolist()}
            for _ in range(requests)
        ]
        params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        pipe.send(time.perf_counter() - start)


def compare(folder: str, eager: bool, rounds: int) -> None:
    """Print one line per workload: both engines' median seconds, and the median of the rounds' throughput ratios."""
    mode = "eager" if eager else "compiled"
    stock, ours = Side(serve, folder, False, eager), Side(serve, folder, True, eager)
    for workload in WORKLOADS:
        for side in (stock, ours):
            side.ask(workload)
        pairs = []
        for turn in range(rounds):
            order = (stock, ours) if turn % 2 == 0 else (ours, stock)
            seconds = {side: float(side.ask(workload)) for side in order}
            pairs.append((seconds[stock], seconds[ours]))
        ratio = statistics.median(a / b for a, b in pairs)
        medians = [statistics.median(values) for values in zip(*pairs, strict=True)]
        print(f"{mode:9} {workload:20} {medians[0]:8.3f} {medians[1]:8.3f} {ratio:18.3f}", flush=True)
    for side in (stock, ours):
        side.stop()


def compare_starts(folder: str, rounds: int) -> None:
    """Print both engines' median start-up times in seconds, eager, one engine at a time."""
    seconds: dict[bool, list[float]] = {False: [], True: []}
    for turn in range(rounds):
        for ours in (False, True) if turn % 2 == 0 else (True, False):
            side = Side(serve, folder, ours, True)
            seconds[ours].append(side.started)
            side.stop()
    ratio = statistics.median(b / a for a, b in zip(seconds[False], seconds[True], strict=True))
    medians = [statistics.median(seconds[ours]) for ours in (False, True)]
    print(
        f"eager     start-up             {medians[0]:8.3f} {medians[1]:8.3f} {ratio:18.3f} (time, ours/stock)",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="rounds per workload, at least 5 (default: %(default)s)")
    rounds = parser.parse_args().rounds
    if rounds < 5:
        parser.error(f"--rounds: {rounds} is too few; a ratio is the median of at least 5")
    print(f"{'mode':9} {'workload':20} {'stock s':>8} {'ours s':>8} {'throughput ratio':>18}")
    with tempfile.TemporaryDirectory() as folder:
        make_checkpoint(Path(folder))
        compare_starts(folder, min(rounds, 5))
        for eager in (True, False):
            compare(folder, eager, rounds)


if __name__ == "__main__":
    main()
