"""What the metrics by length cost: a server that has them and has them not, in turns of a fraction of a second.

One server on the bundled model answers a number of streams, and its metrics go on and off meanwhile
(``switched_metrics.py``): two processes that run the same code differ by a tenth, and so does one process from one second to
the next, on machines whose cores are shared. What counts is the CPU time of the API server process for each generated token,
and the tokens generated in a second. What the hooks take is also measured by itself, with what they do once for a request
(``metrics_hooks.py``).
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

# Tokens of the prompts, in turns: in two factor sets of the model, and 450 grows from one into the other.
PROMPTS = (40, 120, 450, 800)
SCRAPES = 5
PLUGIN = "ropeswitch.loadtests.bench.switched_metrics:install"
HOOK_ROUNDS = 40
RESAMPLES = 2000


@dataclass(frozen=True)
class Figure:
    """A line of the table.

    Attributes:
        name: What is measured.
        without: Without the metrics.
        with_them: With them.
        ratio: With / without.
        interval: The 95 % interval of the ratio.
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
        name: Of the figure.
        without: Shape [pairs, 2]: what was counted in each turn without the metrics, and what it was counted by.
        with_them: The same, of the turns beside them.

    Returns:
        Sums by sums; the interval is that of pairs drawn anew (bootstrap, percentiles).
    """

    def rate(turns: np.ndarray) -> np.ndarray:
        return np.asarray(turns[..., 0].sum(-1) / turns[..., 1].sum(-1))

    drawn = np.random.default_rng(0).integers(len(without), size=(RESAMPLES, len(without)))
    low, high = np.percentile(rate(with_them[drawn]) / rate(without[drawn]), [2.5, 97.5])
    before, after = float(rate(without)), float(rate(with_them))
    return Figure(name, before, after, after / before, (float(low), float(high)))


def compare_rounds(name: str, without: np.ndarray, with_them: np.ndarray) -> Figure:
    """Compare two figures of each round, shape [rounds], by their medians."""
    drawn = np.random.default_rng(0).integers(len(without), size=(RESAMPLES, len(without)))
    ratios = np.median(with_them[drawn], axis=-1) / np.median(without[drawn], axis=-1)
    low, high = np.percentile(ratios, [2.5, 97.5])
    before, after = float(np.median(without)), float(np.median(with_them))
    return Figure(name, before, after, after / before, (float(low), float(high)))


def start(work: Path, args: argparse.Namespace) -> PluginServer:
    """Start a server that can be switched, without a log of requests."""
    command = [str(Path(sys.executable).with_name("ropeswitch")), "serve", "--enforce-eager"]
    command += ["--access-log", "off", "--disable-uvicorn-access-log", "--max-num-seqs", str(args.streams)]
    variables = {switched_metrics.FILE: str(work / "turns"), switched_metrics.SLICE: str(args.turn)}
    if args.control:
        variables[switched_metrics.CONTROL] = "1"
    return PluginServer([*command, "--kv-cache-memory-bytes", str(256 << 20)], work, PLUGIN, variables)


def play(server: PluginServer, streams: int, tokens: int, seconds: float) -> None:
    """Have so many streams answered at once, one after the other, until the time is over."""
    until = time.monotonic() + seconds
    numbers = itertools.count()

    def client(stream: int) -> None:
        while time.monotonic() < until:
            number = next(numbers)
            body = {
                "model": BUNDLED_MODEL.name,
                # Tokens of its own in front, so that no two find each other's keys in the prefix cache.
                "prompt": [
                    100 + number % 100,
                    100 + number // 100 % 100,
                    *([50] * (PROMPTS[number % len(PROMPTS)] - 2)),
                ],
                # Of many lengths, so that the streams do not begin and end together.
                "max_tokens": tokens // 2 + number * 37 % tokens,
                "stream": True,
                "ignore_eos": True,
            }
            if server.post("/v1/completions", body).count(b'"finish_reason":"length"') != 1:
                sys.exit(f"bench_metrics: a stream was not answered to its end; see {server.log}")
            if stream == 0 and number % 10 < 1:
                say(f"{max(until - time.monotonic(), 0):.0f} s left")

    with ThreadPoolExecutor(streams) as threads:
        list(threads.map(client, range(streams)))


def turns(server: PluginServer, work: Path, args: argparse.Namespace) -> np.ndarray:
    """Shape [pairs, 2, 3]: seconds, CPU seconds and tokens of the turns without the metrics and with them, side by side."""
    play(server, args.streams, args.tokens, 5)
    server.process.send_signal(switched_metrics.START)
    play(server, args.streams, args.tokens, args.seconds)
    server.process.send_signal(switched_metrics.STOP)
    path, deadline = work / "turns", time.monotonic() + 30
    while not path.exists():
        if time.monotonic() > deadline:
            sys.exit(f"bench_metrics: the server wrote nothing; see {server.log}")
        time.sleep(0.1)
    told = json.loads(path.read_text(encoding="utf-8"))
    pairs = [sorted(pair) for pair in zip(told[::2], told[1::2], strict=False)]
    return np.array([[turn[1:] for turn in pair] for pair in pairs], dtype=float)


def scrape(server: PluginServer) -> float:
    """Milliseconds of CPU time of the API server for reading ``/metrics`` once, with everything in it."""
    process = psutil.Process(server.process.pid)
    before = process.cpu_times()
    for _ in range(SCRAPES):
        server.get("/metrics")
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system) / SCRAPES * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=300, help="how long the streams are answered")
    parser.add_argument("--turn", type=float, default=0.25, help="seconds with the metrics, or without, at a time")
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream, on average")
    parser.add_argument(
        "--control", action="store_true", help="have both sides without: what is measured then is chance"
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
        compare_rounds("CPU time of the output processor alone, us a token", *np.array(hooks)),
        compare("of the API server, us a token", *(side[:, [1, 2]] * [1e6, 1] for side in sides)),
        compare("tokens/s", *(side[:, [2, 0]] for side in sides)),
    ]
    print("| figure | without | with | with / without | 95 % interval |\n| --- | --- | --- | --- | --- |")
    print("\n".join(figure.row() for figure in figures))
    print(
        f"\n{len(measured)} pairs of turns. A scrape takes the API server {statistics.median(scrapes):.0f} ms of CPU time."
    )


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
