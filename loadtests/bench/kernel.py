"""Times the rotation of a whole step on a GPU: ours against stock vLLM's, other kernels and the memory-bandwidth bound.

Every implementation is checked against float64 before it is timed. The implementations alternate, launched eagerly and
replayed from a CUDA graph; results are medians of the rounds. The bound is the time to move the minimum bytes at the speed
of a large copy on the same GPU.
"""

import argparse
import json
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from ropeswitch.loadtests.bench.gpu_rotations import TOLERANCE, Model, Step, Work, rotations

LAYERS = 32
MODELS = (
    Model("LLaMA2-7B", 32, 32, 128, 128),
    Model("Mistral-7B", 32, 8, 128, 128),
    Model("Phi-4-mini", 24, 8, 128, 96),
)
TOKENS = (1, 8, 64, 256, 2048, 8192)
ROUNDS = 7
# Duration of one measurement, far above the resolution of a CUDA event.
MILLISECONDS = 20.0
COPY_BYTES = 1 << 30

Timer = Callable[[Callable[[], object], int], float]
Capture = Callable[[Step], Callable[[], object]]
Ways = Mapping[str, Callable[[Work], Step] | None]


@dataclass(frozen=True)
class Result:
    """One implementation's median time for a step in milliseconds, or None and the reason in ``note``."""

    model: str
    tokens: int
    rotation: str
    mode: str
    ms: float | None
    bound_ms: float
    note: str = ""


def cuda_timer(call: Callable[[], object], repetitions: int) -> float:
    """Return the milliseconds per call, on the GPU's clock."""
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(repetitions):
        call()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / repetitions


def cuda_graph(step: Step) -> Callable[[], object]:
    """Capture a step and return its replay; the step must have run before, so that capture compiles and tunes nothing."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def copy_bandwidth(timer: Timer, device: torch.device, size: int = COPY_BYTES) -> float:
    """Return the bytes per millisecond of a large copy, reads plus writes; the best of the rounds."""
    source, target = (torch.ones(size, dtype=torch.uint8, device=device) for _ in range(2))
    target.copy_(source)
    return max(2 * size / timer(lambda: target.copy_(source), 10) for _ in range(ROUNDS))


def measure_shape(
    work: Work, ways: Ways, bandwidth: float, timer: Timer, capture: Capture | None, rounds: int
) -> list[Result]:
    """Time every rotation of one shape, alternating.

    Args:
        work: The step.
        ways: Implementations to time, by name; None for one that is not installed.
        bandwidth: Copy bandwidth in bytes per millisecond.
        timer: Returns the milliseconds per call over a number of repetitions.
        capture: Captures a step as a CUDA graph and returns its replay; None without CUDA graphs.
        rounds: Measurements per implementation.
    """
    model, tokens = work.model, len(work.positions)
    bound = model.bytes_moved(tokens, len(work.projections), work.projections[0].element_size()) / bandwidth
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    missing = []
    for name, make in ways.items():
        if make is None:
            missing.append(Result(model.name, tokens, name, "", None, bound, "not installed"))
            continue
        # Third-party kernels may not support a shape; the table then shows their error.
        try:
            step = make(work)
            error = work.worst_error(step)
        except Exception as reason:
            if name.startswith(("ours", "stock")):
                raise
            missing.append(Result(model.name, tokens, name, "", None, bound, f"failed: {reason}".splitlines()[0]))
            continue
        if not error < TOLERANCE:
            raise SystemExit(f"bench-gpu: {name} is off by {error} with {model.name} and {tokens} tokens: not timed")
        calls[name, "eager"] = step
        if capture is not None:
            calls[name, "graph"] = capture(step)
    times: dict[tuple[str, str], list[float]] = {key: [] for key in calls}
    repetitions = {key: max(1, min(200, int(MILLISECONDS / timer(call, 3)))) for key, call in calls.items()}
    for _ in range(rounds):
        for key, call in calls.items():
            times[key].append(timer(call, repetitions[key]))
    return missing + [
        Result(model.name, tokens, *key, statistics.median(measured), bound) for key, measured in times.items()
    ]


def table(results: Sequence[Result]) -> str:
    """Return a Markdown table; speed-ups compare with stock in the same mode, ``time / bound`` with the bandwidth bound."""
    stock = {(r.model, r.tokens, r.mode): r.ms for r in results if r.rotation == "stock" and r.ms is not None}
    compiled = {
        (r.model, r.tokens, r.mode): r.ms for r in results if r.rotation == "stock, compiled" and r.ms is not None
    }
    lines = [
        "| model | tokens | rotation | mode | ms | speed-up over stock | speed-up over compiled stock | time / bound |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for r in results:
        if r.ms is None:
            lines.append(f"| {r.model} | {r.tokens} | {r.rotation} | {r.note} | | | | |")
            continue
        ratios = [times[key] / r.ms for times in (stock, compiled) if (key := (r.model, r.tokens, r.mode)) in times]
        cells = [f"{ratio:.2f}" for ratio in ratios] + [""] * (2 - len(ratios))
        lines.append(
            f"| {r.model} | {r.tokens} | {r.rotation} | {r.mode} | {r.ms:.4f} | {cells[0]} | {cells[1]} | "
            f"{r.ms / r.bound_ms:.2f} |"
        )
    return "\n".join(lines)


def machine() -> dict[str, str]:
    """Return the GPU, its driver and the versions of the measured software."""
    import triton
    import vllm

    driver = "unknown (nvidia-smi not found)"
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader", "--id=0"]
        driver = subprocess.run(query, check=True, capture_output=True, text=True).stdout.strip()
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": driver,
        "cuda": str(torch.version.cuda),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "vllm": vllm.__version__,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="bench-gpu", description=__doc__)
    parser.add_argument(
        "--json",
        type=Path,
        default=Path("build/bench-gpu.json"),
        help="output file for the figures (default: %(default)s)",
    )
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help="measurements per implementation (default: %(default)s)"
    )
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("bench-gpu: needs a CUDA GPU, but torch finds none", file=sys.stderr)
        return 2
    about = machine()
    device = torch.device("cuda")
    results: list[Result] = []
    with torch.inference_mode():
        bandwidth = copy_bandwidth(cuda_timer, device)
        print(*(f"{name} {value}" for name, value in about.items()), sep=", ")
        print(f"a copy of {COPY_BYTES >> 20} MiB moves {bandwidth / 1e6:.0f} GB/s, reads plus writes")
        for model in MODELS:
            for tokens in TOKENS:
                print(f"bench-gpu: {model.name}, {tokens} tokens", file=sys.stderr)
                torch._dynamo.reset()
                torch.cuda.empty_cache()
                work = Work.make(model, tokens, LAYERS, device, torch.bfloat16)
                results += measure_shape(work, rotations(), bandwidth, cuda_timer, cuda_graph, options.rounds)
    print(table(results))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    figures = {"machine": about, "bytes_per_ms": bandwidth, "results": [asdict(result) for result in results]}
    options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(f"figures: {options.json}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
