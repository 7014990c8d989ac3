"""What the metrics by length cost: two servers of ours, one of them without, alternating in one run.

Both serve the bundled model. One works while the other waits: a round is a number of waves of concurrent streams, and then
some scrapes of ``/metrics``. What counts is the CPU time of the API server process, user and system, for each generated
token or each scrape, which other work on the machine disturbs less than it does the throughput. Each pair of rounds gives
a ratio; the median of the ratios counts. As a server's CPU time varies by some percent, the part of it that the hooks have
is measured by itself, too (``metrics_hooks.py``).
"""

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil

from ropeswitch.loadtests import metrics_hooks
from ropeswitch.loadtests.plugin_server import PluginServer

# Tokens of the prompts, in turns: in both factor sets of the model, and 200 grows from one into the other.
PROMPTS = (40, 120, 200, 400)
SCRAPES = 5
METRIC = b"ropeswitch_generated_tokens_total"
WITHOUT = "ropeswitch.loadtests.without_metrics:install"


@dataclass(frozen=True)
class Round:
    """What one round took.

    Attributes:
        token: Microseconds of CPU time of the API server for each generated token.
        scrape: Milliseconds of it for each scrape.
        throughput: Tokens generated in a second.
    """

    token: float
    scrape: float
    throughput: float


def start(work: Path, streams: int, plugin: str | None) -> PluginServer:
    """Start a server with the metrics, or with a plugin that leaves them out; without a log of requests."""
    command = [str(Path(sys.executable).with_name("ropeswitch")), "serve", "--enforce-eager"]
    command += ["--access-log", "off", "--disable-uvicorn-access-log", "--max-num-seqs", str(streams)]
    work.mkdir()
    return PluginServer([*command, "--kv-cache-memory-bytes", str(256 << 20)], work, plugin)


def play(server: PluginServer, args: argparse.Namespace) -> Round:
    """One round."""
    bodies = [
        {
            "model": "passkey-tiny",
            # A token of its own in front, so that no two find each other's keys in the prefix cache.
            "prompt": [100 + stream, *([50] * (PROMPTS[stream % len(PROMPTS)] - 1))],
            "max_tokens": args.tokens,
            "stream": True,
            "ignore_eos": True,
        }
        for stream in range(args.streams)
    ]
    process = psutil.Process(server.process.pid)
    before, started = cpu_seconds(process), time.perf_counter()
    with ThreadPoolExecutor(args.streams) as threads:
        for _ in range(args.waves):
            answers = threads.map(lambda body: server.post("/v1/completions", body), bodies)
            if any(answer.count(b'"finish_reason":"length"') != 1 for answer in answers):
                sys.exit(f"bench_metrics: a stream was not answered to its end; see {server.log}")
    answered, seconds = cpu_seconds(process), time.perf_counter() - started
    for _ in range(SCRAPES):
        server.get("/metrics")
    scraped = cpu_seconds(process)
    tokens = args.waves * args.streams * args.tokens
    return Round((answered - before) / tokens * 1e6, (scraped - answered) / SCRAPES * 1e3, tokens / seconds)


def cpu_seconds(process: psutil.Process) -> float:
    """User and system time of a process, without its children's."""
    times = process.cpu_times()
    return float(times.user + times.system)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--waves", type=int, default=4, help="of streams, in each round")
    parser.add_argument("--streams", type=int, default=32, help="at once")
    parser.add_argument("--tokens", type=int, default=128, help="of each stream")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        sides: list[PluginServer] = []
        try:
            for name, plugin in (("with", None), ("without", WITHOUT)):
                sides.append(start(Path(folder, name), args.streams, plugin))
                sides[-1].wait()
            compare(sides[0], sides[1], args)
        finally:
            for side in sides:
                side.stop()


def compare(measured: PluginServer, bare: PluginServer, args: argparse.Namespace) -> None:
    """Alternate the two, after one round of each that does not count, and print the table."""
    results: dict[PluginServer, list[Round]] = {bare: [], measured: []}
    for turn in range(args.rounds + 1):
        for side in (bare, measured) if turn % 2 == 0 else (measured, bare):
            result = play(side, args)
            name = "with" if side is measured else "without"
            say(
                f"round {turn}, {name}: {result.token:.1f} us a token, {result.scrape:.0f} ms a scrape, "
                f"{result.throughput:.0f} tokens/s"
            )
            if turn:
                results[side].append(result)
        if turn == 0 and (METRIC in bare.get("/metrics") or METRIC not in measured.get("/metrics")):
            sys.exit("bench_metrics: the plugin does not leave the metrics out")
    hooks = metrics_hooks.measure(args.streams, args.tokens, args.rounds)
    print("| figure | without | with | with / without | rounds |\n| --- | --- | --- | --- | --- |")
    print(row("CPU time of the output processor alone, us a token", *hooks))
    figures = {
        "token": "of the API server, us a token",
        "scrape": "of the API server, ms a scrape",
        "throughput": "tokens/s",
    }
    for field, figure in figures.items():
        print(row(figure, *([getattr(each, field) for each in results[side]] for side in (bare, measured))))


def row(figure: str, without: list[float], with_them: list[float]) -> str:
    """A line of the table: the medians of both sides, the median of the rounds' ratios, and the least and the largest."""
    ratios = [b / a for a, b in zip(without, with_them, strict=True)]
    medians = f"{statistics.median(without):.2f} | {statistics.median(with_them):.2f} | {statistics.median(ratios):.3f}"
    return f"| {figure} | {medians} | {min(ratios):.3f} to {max(ratios):.3f} |"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
