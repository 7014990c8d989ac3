"""Compares the engine with stock vLLM, alternating in one run: a model of Mistral-7B's shape on one GPU (about 75 GiB).

Weights are random and in bfloat16; the config is a Phi-3's, with two LongRoPE sets that meet at 8,192 tokens. Three engines
share the GPU, each in its own process, and one works at a time: ours, stock vLLM with its default of 8,192 batched tokens,
and stock with 2,048, as vLLM advises for short gaps between tokens. Compilation and CUDA graphs are vLLM's defaults.
``--cpu`` compares a small model on a CPU.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.sides import Side, with_ladder

SIDES = ("ours", "stock", "stock, 2,048 batched tokens")
DECODE, ONE, PREFILL, CROSSING, MIXED = "decode", "decode, 1 request", "prefill", "crossing", "mixed"


@dataclass(frozen=True)
class Size:
    """A model's shape and the requests that it is given.

    Attributes:
        window: Limit of the first set, in tokens.
        batch: Requests of the decode workload, of ``prompt`` tokens each, with ``steps`` more to generate.
        long: Prompt of the mixed workload, in tokens, during which ``shorts`` prompts of ``short`` tokens arrive, one every
            ``every`` seconds.
    """

    layers: int
    heads: int
    kv_heads: int
    hidden: int
    intermediate: int
    window: int
    maximum: int
    cache_bytes: int
    batch: int = 64
    prompt: int = 512
    steps: int = 128
    long: int = 40_000
    shorts: int = 16
    short: int = 100
    every: float = 0.06
    vocabulary: int = 32000


FULL = Size(32, 32, 8, 4096, 14336, 8192, 49152, 7 << 30)
# For a CPU of two cores: three engines of it fit.
CPU = Size(
    8, 8, 4, 512, 1408, 1024, 4096, 1 << 30,
    batch=16, prompt=512, steps=64, long=3000, shorts=8, every=0.2, vocabulary=8192,
)  # fmt: skip
# To try the program; its figures mean nothing.
SMALL = Size(
    2, 4, 2, 128, 160, 512, 1024, 64 << 20,
    batch=4, prompt=32, steps=8, long=700, shorts=4, short=32, every=0.005, vocabulary=384,
)  # fmt: skip


def write_config(folder: Path, size: Size) -> None:
    """Write the config of a Phi-3 with two LongRoPE sets; vLLM makes its weights (``load_format: dummy``)."""
    from transformers import Phi3Config

    pairs = size.hidden // size.heads // 2
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 100 for i in range(pairs)],
        "long_factor": [32 ** (i / (pairs - 1)) for i in range(pairs)],
        "original_max_position_embeddings": size.window,
    }
    Phi3Config(
        architectures=["Phi3ForCausalLM"], vocab_size=size.vocabulary, hidden_size=size.hidden, dtype="bfloat16",
        intermediate_size=size.intermediate, num_hidden_layers=size.layers, num_attention_heads=size.heads,
        num_key_value_heads=size.kv_heads, max_position_embeddings=max(size.maximum, 131072),
        original_max_position_embeddings=size.window, rope_parameters=rope, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    ).save_pretrained(folder)  # fmt: skip


def start(folder: str, ours: bool, size: Size, **changes: Any) -> Any:
    """Start an engine in this process; ``changes`` are vLLM's engine arguments."""
    os.environ |= {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    from vllm import LLM

    arguments: dict[str, Any] = {
        "model": folder, "load_format": "dummy", "dtype": "bfloat16", "skip_tokenizer_init": True, "seed": 0,
        "max_model_len": size.maximum, "kv_cache_memory_bytes": size.cache_bytes, "enable_prefix_caching": False,
        # Of the memory, which others share, this much must be free; the cache's size is given.
        "gpu_memory_utilization": 0.05,
    }  # fmt: skip
    return LLM(**(with_ladder(arguments | changes) if ours else arguments | changes))


def prompt(length: int, size: Size, seed: int) -> list[int]:
    """Return random token IDs."""
    import torch

    return torch.randint(3, size.vocabulary, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def first_tokens(llm: Any, requests: Mapping[str, tuple[list[int], float]], output: int) -> dict[str, float]:
    """Send prompts while others run, and return the seconds from each one's arrival to its first token."""
    from vllm import SamplingParams

    engine, waiting = llm.llm_engine, sorted(requests.items(), key=lambda item: item[1][1])
    begun = time.perf_counter()
    added: dict[str, float] = {}
    first: dict[str, float] = {}
    while waiting or engine.has_unfinished_requests():
        while waiting and time.perf_counter() - begun >= waiting[0][1][1]:
            name, (tokens, _) = waiting.pop(0)
            params = SamplingParams(temperature=0.0, max_tokens=output, ignore_eos=True, detokenize=False)
            engine.add_request(name, {"prompt_token_ids": tokens}, params)
            added[name] = time.perf_counter()
        for answer in engine.step() if engine.has_unfinished_requests() else ():
            if not answer.outputs[0].token_ids:
                continue
            # vLLM adds a suffix to the names.
            name = next(each for each in added if answer.request_id.split("-")[0] == each)
            first.setdefault(name, time.perf_counter() - added[name])
    return first


def serve(pipe: Connection, folder: str, side: str, size: Size) -> None:
    """One engine's process: answers (workload, seed) with seconds, by name."""
    began = time.perf_counter()
    batched = 2048 if side == SIDES[2] else 8192
    changes = {"max_num_batched_tokens": batched, "max_num_seqs": size.batch, "enforce_eager": size == SMALL}
    llm = start(folder, side == SIDES[0], size, **changes)
    pipe.send({"start-up": time.perf_counter() - began})
    from vllm import SamplingParams

    def generate(count: int, length: int, tokens: int, seed: int) -> float:
        prompts: Any = [{"prompt_token_ids": prompt(length, size, 1000 * seed + i)} for i in range(count)]
        params = SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        return time.perf_counter() - start

    while (question := pipe.recv()) is not None:
        workload, seed = question
        if workload == DECODE:
            first = generate(size.batch, size.prompt, 1, seed)
            pipe.send({PREFILL: first, DECODE: generate(size.batch, size.prompt, 1 + size.steps, seed) - first})
        elif workload == ONE:
            pipe.send({ONE: generate(1, 32, 65, seed)})
        elif workload == CROSSING:
            pipe.send({CROSSING: generate(1, size.window - 12, 25, seed)})
        else:
            shorts = {
                f"s{i}": (prompt(size.short, size, 9000 + 100 * seed + i), size.every * (i + 1))
                for i in range(size.shorts)
            }
            firsts = first_tokens(llm, {"long": (prompt(size.long, size, 5000 + seed), 0.0), **shorts}, 4)
            long = firsts.pop("long")
            pipe.send({"first token, long": long, "first token, short, median": statistics.median(firsts.values()),
                       "first token, short, worst": max(firsts.values())})  # fmt: skip


def measure(sides: Mapping[str, Side], rounds: int) -> list[dict[str, dict[str, float]]]:
    """Return each round's seconds by side and figure; the engines take turns, and one more round first warms them up."""
    found = []
    for turn in range(rounds + 1):
        order = list(sides) if turn % 2 else list(sides)[::-1]
        seconds: dict[str, dict[str, float]] = {name: {} for name in sides}
        for workload in (DECODE, ONE, CROSSING, MIXED):
            for name in order:
                if workload == MIXED or name != SIDES[2]:
                    seconds[name] |= sides[name].ask((workload, turn))
        print(f"bench-gpu-engine: round {turn} of {rounds}{'' if turn else ' (warm-up)'}", file=sys.stderr, flush=True)
        found.append(seconds)
    return found[1:]


def table(found: Sequence[Mapping[str, Mapping[str, float]]]) -> str:
    """Return a Markdown table of medians in seconds and of the rounds' ratios, each stock time over ours."""
    lines = ["| figure | ours s | stock s | stock / ours | rounds' ratios | stock with 2,048 s | stock with 2,048 / ours |",
             "| --- | --: | --: | --: | --- | --: | --: |"]  # fmt: skip
    ours, stock, other = SIDES
    for figure in found[0][ours]:
        medians = {
            side: statistics.median(each[side][figure] for each in found) for side in SIDES if figure in found[0][side]
        }
        ratios = [each[stock][figure] / each[ours][figure] for each in found]
        cells = [figure, f"{medians[ours]:.4f}", f"{medians[stock]:.4f}", f"{statistics.median(ratios):.3f}",
                 f"{min(ratios):.3f} to {max(ratios):.3f}"]  # fmt: skip
        if other in medians:
            against = statistics.median(each[other][figure] / each[ours][figure] for each in found)
            cells += [f"{medians[other]:.4f}", f"{against:.3f}"]
        lines.append("| " + " | ".join(cells + [""] * (7 - len(cells))) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-gpu-engine", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds, at least 5 (default: %(default)s)")
    parser.add_argument("--cpu", action="store_true", help="a small model on a CPU, with nothing else on its cores")
    parser.add_argument(
        "--small", action="store_true", help="a tiny model, to try the program; its figures mean nothing"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench-gpu-engine.json"), help="output file (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 5:
        parser.error(f"--rounds: {options.rounds} is too few; a ratio is the median of at least 5")
    size = SMALL if options.small else CPU if options.cpu else FULL
    import torch

    if size == FULL and not torch.cuda.is_available():
        print("bench-gpu-engine: needs a CUDA GPU, but torch finds none; --cpu compares a small model", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), size)
        # All start at once; none is measured before all are up.
        sides = {name: Side(serve, folder, name, size) for name in SIDES}
        for name, side in sides.items():
            print(f"bench-gpu-engine: {name}: ready in {side.started['start-up']:.0f} s", file=sys.stderr, flush=True)
        found = measure(sides, options.rounds)
        for side in sides.values():
            side.stop()
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"size": asdict(size), "rounds": found}, indent=1) + "\n", encoding="utf-8")
    print(table(found))
    print(f"figures: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
