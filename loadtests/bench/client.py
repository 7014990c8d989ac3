"""``make bench-client``: compares the figures of ``ropeswitch loadtest`` and aiperf for the same requests at the same times.

The server streams tokens at fixed times, so any difference comes from the clients. The clients alternate, and the server
records when each body arrived.
"""

import argparse
import asyncio
import json
import multiprocessing
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from aiohttp import web

from ropeswitch.models import BUNDLED_MODEL

MODEL = BUNDLED_MODEL.name
PROGRAM = str(Path(sys.executable).with_name("ropeswitch"))
# The server's time to first token and time between tokens, in seconds.
TTFT, ITL = 0.060, 0.012
Figures = dict[str, float]


@dataclass(frozen=True)
class Load:
    """``requests`` completions with Poisson arrivals at ``rate`` per second; lengths in tokens."""

    requests: int
    rate: float
    prompt: int
    output: int

    def __str__(self) -> str:
        return (
            f"{self.requests} prompts of {self.prompt:,} tokens with answers of {self.output}, {self.rate:g} per second"
        )


LOADS = (Load(300, 20, 128, 64), Load(30, 2, 100_000, 16))


def serve(ready: Connection) -> None:
    """Run an OpenAI server that streams tokens at fixed times; ``/seen`` returns and clears the bodies and arrival times."""
    arrivals: list[float] = []
    bodies: list[str] = []

    async def complete(request: web.Request) -> web.StreamResponse:
        bodies.append(await request.text())
        arrivals.append(time.time())
        loop = asyncio.get_running_loop()
        start, count = loop.time() + TTFT, json.loads(bodies[-1])["max_tokens"]
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        head = {"id": "cmpl", "object": "text_completion", "created": 1, "model": MODEL}
        chunks = [{"index": 0, "text": " a", "finish_reason": None}] * (count - 1)
        for number, choice in enumerate([*chunks, {"index": 0, "text": " a", "finish_reason": "length"}]):
            await asyncio.sleep(start + number * ITL - loop.time())
            await response.write(b"data: " + json.dumps(head | {"choices": [choice]}).encode() + b"\n\n")
        usage = {"prompt_tokens": 1, "completion_tokens": count, "total_tokens": count + 1}
        last = json.dumps(head | {"choices": [], "usage": usage}).encode()
        await response.write(b"data: " + last + b"\n\ndata: [DONE]\n\n")
        return response

    async def seen(request: web.Request) -> web.Response:
        found = {"arrivals": arrivals[:], "bodies": bodies[:]}
        arrivals.clear()
        bodies.clear()
        return web.json_response(found)

    async def models(request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def run() -> None:
        app = web.Application(client_max_size=1 << 30)
        app.add_routes([web.post("/v1/completions", complete), web.get("/v1/models", models), web.get("/seen", seen)])
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(run())


def ours(url: str, load: Load, due: np.ndarray, work: Path) -> Figures:
    """Run ``ropeswitch loadtest`` with a trace of the given arrival times, and return its figures."""
    line = {"input_length": load.prompt, "output_length": load.output}
    (work / "trace.jsonl").write_text("".join(json.dumps({"timestamp": int(at), **line}) + "\n" for at in due))
    workload = {
        "name": "paced", "endpoint": "completions", "arrival": {"trace": {"file": str(work / "trace.jsonl")}},
        "warmup": 0, "text": "village", "ignore_eos": True, "mix": [{"kind": "a"}],
    }  # fmt: skip
    # JSON is valid YAML.
    (work / "workload.yaml").write_text(json.dumps(workload))
    flags = [
        "--url",
        url,
        "--out",
        str(work / "out"),
        "--tokenizer",
        str(BUNDLED_MODEL),
    ]
    _run(
        [PROGRAM, "loadtest", str(work / "workload.yaml"), *flags, "--no-report", "--quiet", "--metrics-interval", "0"]
    )
    found = json.loads((work / "out" / "results.json").read_text())
    return {name: found[f"{name}_ms"] for name in ("median_ttft", "p99_ttft", "median_itl")}


def aiperf(program: Path, url: str, due: np.ndarray, bodies: list[str], work: Path) -> Figures:
    """Run ``aiperf profile`` with the given bodies and arrival times, and return its figures."""
    lines = (
        json.dumps({"timestamp": int(at), "payload": json.loads(body)}) for at, body in zip(due, bodies, strict=True)
    )
    (work / "requests.jsonl").write_text("".join(f"{line}\n" for line in lines))
    flags = ["--url", url, "--model", MODEL, "--tokenizer", str(BUNDLED_MODEL), "--endpoint-type", "completions"]
    flags += ["--streaming", "--use-server-token-count", "--ui", "none", "--input-file", str(work / "requests.jsonl")]
    flags += ["--custom-dataset-type", "mooncake-trace", "--fixed-schedule", "--export-level", "raw"]
    _run([str(program), "profile", *flags, "--output-artifact-dir", str(work / "out")])
    found = json.loads((work / "out" / "profile_export_aiperf.json").read_text())
    ttft, gaps = found["time_to_first_token"], found["inter_token_latency"]
    return {"median_ttft": ttft["p50"], "p99_ttft": ttft["p99"], "median_itl": gaps["p50"]}


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def measure(url: str, load: Load, program: Path, rounds: int) -> Mapping[str, list[Figures]]:
    """Run both clients alternately and return the figures of each round, by client.

    Each round draws new arrival times and swaps the order of the clients.
    """
    found: dict[str, list[Figures]] = {"ours": [], "aiperf": []}
    bodies: list[str] = []
    # Round -1 only collects the bodies; it is not counted.
    for each in range(-1, rounds):
        due = np.cumsum(np.random.default_rng(each + 1).exponential(1000 / load.rate, load.requests))
        due = np.floor(due - due[0])
        for client in ("ours",) if each < 0 else ("ours", "aiperf") if each % 2 else ("aiperf", "ours"):
            with tempfile.TemporaryDirectory() as folder:
                used, start = _cpu_seconds(), time.monotonic()
                if client == "ours":
                    figures = ours(url, load, due, Path(folder))
                else:
                    figures = aiperf(program, url, due, bodies, Path(folder))
                figures |= {"cpu_seconds": _cpu_seconds() - used, "seconds": time.monotonic() - start}
            seen = json.load(urlopen(f"{url}/seen"))
            bodies = bodies or seen["bodies"]
            late = 1000 * np.sort(seen["arrivals"]) - np.sort(due)
            figures["p99_late"] = float(np.percentile(late - late.min(), 99))
            if each >= 0:
                found[client].append(figures)
                print(f"bench-client: {load}: round {each + 1} of {rounds}, {client}", file=sys.stderr, flush=True)
    return found


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


NAMES = {
    "median_ttft": "TTFT p50, ms",
    "p99_ttft": "TTFT p99, ms",
    "median_itl": "ITL p50, ms",
    "p99_late": "body lateness p99, ms",
    "cpu_seconds": "CPU time, s",
    "seconds": "whole command, s",
}


def table(load: Load, found: Mapping[str, list[Figures]]) -> str:
    """Return a Markdown table of each client's medians over the rounds, and the medians of the per-round ratios."""
    lines = [f"{load}:\n", "| figure | ours | aiperf | ours / aiperf |", "| --- | --: | --: | --: |"]
    for name, label in NAMES.items():
        pairs = [(mine[name], theirs[name]) for mine, theirs in zip(found["ours"], found["aiperf"], strict=True)]
        mine, theirs, ratio = (statistics.median(each) for each in zip(*((a, b, a / b) for a, b in pairs), strict=True))
        lines.append(f"| {label} | {mine:.1f} | {theirs:.1f} | {ratio:.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench-client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="rounds per load (default: 5)")
    parser.add_argument(
        "--aiperf", type=Path, default=Path(".venv/aiperf/bin/aiperf"), help="aiperf executable (default: %(default)s)"
    )
    args = parser.parse_args()
    if not args.aiperf.exists():
        parser.error(f"--aiperf: {args.aiperf} does not exist; run make setup-loadtest")
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    server = context.Process(target=serve, args=(there,), daemon=True)
    server.start()
    url = f"http://127.0.0.1:{here.recv()}"
    for load in LOADS:
        print(table(load, measure(url, load, args.aiperf, args.rounds)), flush=True)


if __name__ == "__main__":
    main()
