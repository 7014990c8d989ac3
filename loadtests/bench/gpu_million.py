"""Prefills a prompt of 1,048,576 tokens on one GPU and compares rows with float64 at the tokens' true positions.

The model has a 1B model's shape, random weights and fewer layers (``--layers``); no answer of it means anything, but the
rotation of every token can be checked, and time and memory per layer are those of a real model. A prompt of 131,072 tokens
comes first, with eight short prompts beside it.
"""

import argparse
import json
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.gpu_engine import Size, first_tokens, prompt, start, write_config

MILLION, BESIDE, CHUNK = 1 << 20, 1 << 17, 16384
SMALL_MILLION, SMALL_BESIDE, SMALL_CHUNK = 1 << 12, 1 << 10, 256
# Above float32's rounding of cosines and sines, times the ladder's scale.
TOLERANCE = 1e-5


@dataclass
class Rows:
    """What was compared: how many rows, the largest difference, and the furthest position."""

    checked: int = 0
    worst: float = 0.0
    furthest: int = 0


def watch(llm: Any, every: int) -> Rows:
    """Compare the first, the middle and the last row of every such step with float64, while the engine runs."""
    from ropeswitch.kernels.reference import fill_rows_reference
    from ropeswitch.model_patches.switch.config.settings import settings_of

    runner = llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner
    settings = settings_of(llm.llm_engine.vllm_config)
    assert settings is not None
    # Upstream's V2 runner keeps them in its model state, our V1 runner itself.
    holder = runner if hasattr(runner, "step_rows") else runner.model_state
    (rows,) = holder.step_rows.by_rotation.values()
    sets, found, calls = rows.rotation.sets(settings), Rows(), 0
    fill: Callable[..., None] = rows._filler

    def filling(buffer: Any, positions: Any, request_sets: Any, starts: Any) -> None:
        nonlocal calls
        fill(buffer, positions, request_sets, starts)
        calls += 1
        if calls % every:
            return
        ends = starts.tolist()
        chosen = sorted({0, ends[-1] // 2, ends[-1] - 1})
        owners = [max(i for i, begin in enumerate(ends[:-1]) if begin <= token) for token in chosen]
        places = positions[chosen].cpu().numpy()
        expected = fill_rows_reference(
            places, request_sets.cpu().numpy()[owners], rows.rotation.theta, buffer.shape[1], sets
        )
        found.checked += len(chosen)
        found.worst = max(found.worst, float((buffer[chosen].cpu().double() - expected).abs().max()))
        found.furthest = max(found.furthest, int(places.max()))

    rows._filler = filling
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-gpu-million", description=__doc__)
    parser.add_argument("--layers", type=int, default=8, help="layers of the model (default: %(default)s)")
    parser.add_argument(
        "--small", action="store_true", help="4,096 tokens, a tiny model, to try the program; its figures mean nothing"
    )
    parser.add_argument(
        "--json", type=Path, default=Path("build/bench-gpu-million.json"), help="output file (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    million, beside, chunk = (SMALL_MILLION, SMALL_BESIDE, SMALL_CHUNK) if options.small else (MILLION, BESIDE, CHUNK)
    shape = (4, 2, 128, 160, 512) if options.small else (16, 4, 2048, 8192, 8192)
    heads, kv_heads, hidden, intermediate, window = shape
    size = Size(options.layers, heads, kv_heads, hidden, intermediate, window, million + chunk, 0, shorts=8, every=0.15)
    token_bytes = size.layers * kv_heads * (hidden // heads) * 2 * 2
    size = replace(size, cache_bytes=int(1.1 * token_bytes * (size.maximum + chunk)))
    import torch

    on_gpu = torch.cuda.is_available()
    if not (on_gpu or options.small):
        print("bench-gpu-million: needs a CUDA GPU, but torch finds none", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), size)
        llm = start(folder, True, size, enforce_eager=True, max_num_batched_tokens=chunk, max_num_seqs=16)
    rows, found = watch(llm, every=2), []
    for length, shorts in ((beside // 4, 0), (beside, size.shorts), (million, 0)):
        others = {f"s{i}": (prompt(size.short, size, 10 + i), size.every * (i + 1)) for i in range(shorts)}
        first = first_tokens(llm, {"long": (prompt(length, size, length), 0.0), **others}, 4)
        long = first.pop("long")
        memory = torch.cuda.max_memory_allocated() if on_gpu else 0
        found.append(
            {"tokens": length, "first_token": long, "shorts": first, "peak_bytes": memory, "rows": asdict(rows)}
        )
        slowest = f", the slowest of {shorts} short ones after {max(first.values()):.3f} s" if shorts else ""
        print(
            f"{length:,} tokens: first token after {long:.2f} s{slowest}; peak {memory / 1e9:.1f} GB; "
            f"{rows.checked} rows compared, off by {rows.worst:.1e} at most, furthest position {rows.furthest:,}",
            flush=True,
        )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"size": asdict(size), "prompts": found}, indent=1) + "\n", encoding="utf-8")
    if rows.worst >= TOLERANCE or rows.furthest < million - chunk:
        print(f"bench-gpu-million: rows are wrong, or none near {million:,} tokens was compared", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
