"""What the metrics by length cost: a server with them and without them, alternating in one run.

One server on the bundled model, whose metrics are switched off and on between rounds (``switched_metrics.py``): the CPU
time of two processes that run the same code differs by a tenth. A round is a number of waves of concurrent streams. What
counts is the CPU time of the API server process, user and system, for each generated token, which other work on the machine
disturbs less than it does the throughput. Each pair of rounds gives a ratio; the median of the ratios counts. The part of it
that the hooks have is measured by itself, too (``metrics_hooks.py``).
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

from ropeswitch.loadtests import metrics_hooks, switched_metrics
from ropeswitch.loadtests.plugin_server import PluginServer

# Tokens of the prompts, in turns: in both factor sets of the model, and 200 grows from one into the other.
PROMPTS = (40, 120, 200, 400)
SCRAPES = 5
METRIC = b"ropeswitch_generated_tokens_total"
PLUGIN = "ropeswitch.loadtests.switched_metrics:install"
# Which side has the metrics.
SIDES = {"without": False, "with": True}


@dataclass(frozen=True)
class Round:
    """What one round took.

    Attributes:
        token: Microseconds of CPU time of the API server for each generated token.
        throughput: Tokens generated in a second.
    """

    token: float
    throughput: float


def start(work: Path, streams: int) -> PluginServer:
    """Start a server that can be switched, without a log of requests."""
    command = [str(Path(sys.executable).with_name("ropeswitch")), "serve", "--enforce-eager"]
    command += ["--access-log", "off", "--disable-uvicorn-access-log", "--max-num-seqs", str(streams)]
    return PluginServer([*command, "--kv-cache-memory-bytes", str(256 << 20)], work, PLUGIN)


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
    tokens = args.waves * args.streams * args.tokens
    return Round((answered - before) / tokens * 1e6, tokens / seconds)


def scrape(server: PluginServer) -> float:
    """Milliseconds of CPU time of the API server for reading ``/metrics`` once, with everything in it."""
    process = psutil.Process(server.process.pid)
    before = cpu_seconds(process)
    for _ in range(SCRAPES):
        server.get("/metrics")
    return (cpu_seconds(process) - before) / SCRAPES * 1e3


def generated(server: PluginServer) -> float:
    """How many tokens the metrics have counted."""
    lines = server.get("/metrics").splitlines()
    return sum(float(line.rsplit(b" ", 1)[1]) for line in lines if line.startswith(METRIC + b"{"))


def switch(server: PluginServer, *, on: bool) -> None:
    """Switch the metrics of a server, which has nothing in hand."""
    server.process.send_signal(switched_metrics.ON if on else switched_metrics.OFF)
    time.sleep(0.2)


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
        server = start(Path(folder), args.streams)
        try:
            server.wait()
            compare(server, args)
        finally:
            server.stop()


def compare(server: PluginServer, args: argparse.Namespace) -> None:
    """Alternate, after one round of each side that does not count, and print the table."""
    results: dict[str, list[Round]] = {name: [] for name in SIDES}
    now = True
    for turn in range(args.rounds + 1):
        for name in SIDES if turn % 2 == 0 else reversed(SIDES):
            if now != SIDES[name]:
                switch(server, on=SIDES[name])
            now = SIDES[name]
            before = generated(server)
            result = play(server, args)
            if (generated(server) > before) != now:
                sys.exit("bench_metrics: the metrics were not switched")
            say(f"round {turn}, {name}: {result.token:.1f} us a token, {result.throughput:.0f} tokens/s")
            if turn:
                results[name].append(result)
    scrapes = [scrape(server) for _ in range(args.rounds)]
    hooks = metrics_hooks.measure(args.streams, args.tokens, args.rounds)
    print("| figure | without | with | with / without | rounds |\n| --- | --- | --- | --- | --- |")
    print(row("CPU time of the output processor alone, us a token", *hooks))
    for field, figure in {"token": "of the API server, us a token", "throughput": "tokens/s"}.items():
        print(row(figure, *([getattr(each, field) for each in results[name]] for name in SIDES)))
    print(f"\nA scrape takes the API server {statistics.median(scrapes):.0f} ms of CPU time.")


def row(figure: str, without: list[float], with_them: list[float]) -> str:
    """A line of the table: the medians of both sides, the median of the rounds' ratios, and the least and the largest."""
    ratios = [b / a for a, b in zip(without, with_them, strict=True)]
    medians = f"{statistics.median(without):.2f} | {statistics.median(with_them):.2f} | {statistics.median(ratios):.3f}"
    return f"| {figure} | {medians} | {min(ratios):.3f} to {max(ratios):.3f} |"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
