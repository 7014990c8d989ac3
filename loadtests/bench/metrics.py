"""Measures the cost of the metrics by length on one server that alternates between having them and not.

The server answers concurrent requests on the bundled model while its metrics are switched on and off, for a fraction of a
second each (``switched_metrics.py``). On shared cores, two processes that run the same code differ by 10 %, and so does one
process from one second to the next, so comparing two servers would not work. The figures are the API server's CPU time per
generated token and the tokens generated per second. The hooks are also measured alone, including their work once per
request (``metrics_hooks.py``).
"""

import argparse
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from ropeswitch.loadtests.bench import metrics_hooks, switched_metrics
from ropeswitch.loadtests.bench.plugin_server import PluginServer
from ropeswitch.models import BUNDLED_MODEL

# Prompt lengths in tokens, used in turn: they cover two factor sets of the model, and 450 grows from one into the other.
PROMPTS = (40, 120, 450, 800)
SCRAPES = 5
PLUGIN = "ropeswitch.loadtests.bench.switched_metrics:install"
HOOK_ROUNDS = 40
RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """One line of the table.

    Attributes:
        name: Name of the figure.
        without: Value without the metrics.
        with_them: Value with the metrics.
        ratio: Value with the metrics over the value without.
        interval: 95 % interval of the ratio.
    """

    name: str
    without: float
    with_them: float
    ratio: float
    interval: tuple[float, float]

    def row(self) -> str:
        low, high = self.interval
        return (
            f"| {self.name} | {self.without:.2f} | {self.with_them:.2f} | {self.ratio:.3f} | {low:.3f} to {high:.3f} |"
        )


def compare(name: str, without: np.ndarray, with_them: np.ndarray) -> Figure:
    """Compare two rates.

    Args:
        name: Name of the figure.
        without: Shape [pairs, 2]: numerator and denominator of the rate in each slice without the metrics.
        with_them: The same for the adjacent slices with the metrics.

    Returns:
        The rates as ratios of sums; the interval is the percentile bootstrap over pairs.
    """

    def rate(turns: np.ndarray) -> np.ndarray:
        return np.asarray(turns[..., 0].sum(-1) / turns[..., 1].sum(-1))

    drawn = np.random.default_rng(0).integers(len(without), size=(RESAMPLES, len(without)))
    low, high = np.percentile(rate(with_them[drawn]) / rate(without[drawn]), [2.5, 97.5])
    before, after = float(rate(without)), float(rate(with_them))
    return Figure(name, before, after, after / before, (float(low), float(high)))


def compare_rounds(name: str, without: np.ndarray, with_them: np.ndarray) -> Figure:
    """Compare two figures by their medians over the rounds; both have shape [rounds]."""
    drawn = np.random.default_rng(0).integers(len(without), size=(RESAMPLES, len(without)))
    ratios = np.median(with_them[drawn], axis=-1) / np.median(without[drawn], axis=-1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    before, after = float(np.median(without)), float(np.median(with_them))
    return Figure(name, before, after, after / before, (float(low), float(high)))


def start(work: Path, args: argparse.Namespace) -> PluginServer:
    """Start a server whose metrics can be switched, without an access log."""
    command = [str(Path(sys.executable).with_name("ropeswitch")), "serve", "--enforce-eager"]
    command += ["--access-log", "off", "--disable-uvicorn-access-log", "--max-num-seqs", str(args.streams)]
    variables = {switched_metrics.FILE: str(work / "turns"), switched_metrics.SLICE: str(args.turn)}
    if args.control:
        variables[switched_metrics.CONTROL] = "1"
    return PluginServer([*command, "--kv-cache-memory-bytes", str(256 << 20)], work, PLUGIN, variables)


def play(server: PluginServer, streams: int, tokens: int, seconds: float) -> None:
    """Keep ``streams`` requests in flight for ``seconds`` seconds."""
    until = time.monotonic() + seconds
    numbers = itertools.count()

    def client(stream: int) -> None:
        while time.monotonic() < until:
            number = next(numbers)
            body = {
                "model": BUNDLED_MODEL.name,
                # Start with unique tokens, so that no request hits another's blocks in the prefix cache.
                "prompt": [
                    100 + number % 100,
                    100 + number // 100 % 100,
                    *([50] * (PROMPTS[number % len(PROMPTS)] - 2)),
                ],
                # Vary the lengths, so that the requests do not start and end together.
                "max_tokens": tokens // 2 + number * 37 % tokens,
                "stream": True,
                "ignore_eos": True,
            }
            if server.post("/v1/completions", body).count(b'"finish_reason":"length"') != 1:
                sys.exit(f"bench_metrics: a request did not complete; see {server.log}")
            if stream == 0 and number % 10 < 1:
                say(f"{max(until - time.monotonic(), 0):.0f} s left")

    with ThreadPoolExecutor(streams) as threads:
        list(threads.map(client, range(streams)))


def turns(server: PluginServer, work: Path, args: argparse.Namespace) -> np.ndarray:
    """Return shape [pairs, 2, 3]: seconds, CPU seconds and tokens of adjacent slices without and with the metrics."""
    play(server, args.streams, args.tokens, 5)
    server.process.send_signal(switched_metrics.START)
    play(server, args.streams, args.tokens, args.seconds)
    server.process.send_signal(switched_metrics.STOP)
    path, deadline = work / "turns", time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"bench_metrics: the server wrote no measurements within 30 s; see {server.log}")
        time.sleep(0.1)
    told = json.loads(path.read_text(encoding="utf-8"))
    pairs = [sorted(pair) for pair in zip(told[::2], told[1::2], strict=False)]
    return np.array([[turn[1:] for turn in pair] for pair in pairs], dtype=float)


def scrape(server: PluginServer) -> float:
    """Return the API server's CPU time for one complete ``/metrics`` response, in milliseconds."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    for _ in range(SCRAPES):
        server.get("/metrics")
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / SCRAPES * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="seconds to measure (default: %(default)g)")
    parser.add_argument(
        "--turn", type=float, default=0.25, help="seconds per slice with or without the metrics (default: %(default)s)"
    )
    parser.add_argument("--streams", type=int, default=32, help="concurrent requests (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="mean output tokens per request (default: %(default)s)")
    parser.add_argument(
        "--control", action="store_true", help="measure both sides without the metrics, which shows the noise"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        server = start(Path(folder), args)
        try:
            server.wait()
            measured = turns(server, Path(folder), args)
            scrapes = [scrape(server) for _ in range(5)]
        finally:
            server.stop()
    report(measured, metrics_hooks.measure(args.streams, args.tokens, HOOK_ROUNDS), scrapes)


def report(measured: np.ndarray, hooks: Sequence[Sequence[float]], scrapes: Sequence[float]) -> None:
    """Print the table."""
    sides = measured[:, 0], measured[:, 1]
    figures = [
        compare_rounds("CPU time of the output processor alone, us per token", *np.array(hooks)),
        compare("CPU time of the API server, us per token", *(side[:, [1, 2]] * [1e6, 1] for side in sides)),
        compare("tokens/s", *(side[:, [2, 0]] for side in sides)),
    ]
    print("| figure | without | with | with / without | 95 % interval |\n| --- | --- | --- | --- | --- |")
    print("\n".join(figure.row() for figure in figures))
    print(
        f"\n{len(measured)} pairs of slices. A scrape costs the API server {statistics.median(scrapes):.0f} ms of CPU time."
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
