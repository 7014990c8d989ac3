"""Measures how fast long prompts get into our server and stock vLLM's, alternating in one run.

Both servers use one tiny random model, and their engines accept requests but run no steps. One server works while the other
idles. Each body is sent whole over its own connection. The benchmark measures the seconds until the engine has queued all
requests, and the delays of the API server's event loop and of the engine core's loop in the meantime (``ingest_probe.py``).
It reports the median of the rounds' time ratios and the worst delay of all rounds.
"""

import argparse
import http.client
import json
import random
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ropeswitch.loadtests.bench.ingest_server import LETTERS, IngestServer, make_model

WAIT_SECONDS = 1200.0


@dataclass(frozen=True)
class Case:
    """One kind of request body and how often to send it.

    Attributes:
        name: Name in the table.
        path: Route.
        body: JSON body.
        count: Bodies sent at once.
        rounds: Rounds per server.
        warm_up: Whether to run an uncounted round first.
    """

    name: str
    path: str
    body: bytes
    count: int
    rounds: int
    warm_up: bool = True


@dataclass(frozen=True)
class Result:
    """Seconds until all requests were queued, and the worst delay of both loops in seconds."""

    seconds: float
    server: float
    engine: float


def cases(words: Sequence[str], args: argparse.Namespace) -> list[Case]:
    generator = random.Random(1)
    ids = generator.choices(range(300, 4000), k=args.tokens)
    text = " ".join(generator.choices(words, k=args.characters // (LETTERS + 1)))
    options = {"model": "model", "max_tokens": 1, "stream": True}
    as_ids = json.dumps({**options, "prompt": ids}).encode()
    as_text = json.dumps({**options, "messages": [{"role": "user", "content": text}]}).encode()
    chat, completion = "/v1/chat/completions", "/v1/completions"
    return [
        Case(f"1 body of {len(ids)} token IDs", completion, as_ids, 1, args.rounds),
        Case(f"{args.at_once} bodies of {len(ids)} token IDs", completion, as_ids, args.at_once, args.rounds),
        Case(f"1 text of {len(text)} characters", chat, as_text, 1, args.rounds),
        Case(f"{args.at_once} texts of {len(text)} characters", chat, as_text, args.at_once, args.text_rounds, False),
    ]


def send(server: IngestServer, case: Case) -> Result:
    """Send a case's bodies at once, and disconnect when the engine has queued all of them."""
    already = sum("queued" in record for record in server.records())
    connections = [
        http.client.HTTPConnection("127.0.0.1", server.port, timeout=WAIT_SECONDS) for _ in range(case.count)
    ]
    for connection in connections:
        connection.connect()
    started = time.time()

    def post(connection: http.client.HTTPConnection) -> None:
        connection.request("POST", case.path, case.body, {"content-type": "application/json"})

    threads = [threading.Thread(target=post, args=(connection,)) for connection in connections]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    deadline = time.monotonic() + WAIT_SECONDS
    while len(queued := [each for each in server.records() if "queued" in each]) < already + case.count:
        if time.monotonic() > deadline:
            sys.exit(
                f"bench_ingest: only {len(queued) - already} of {case.count} requests were queued; see {server.log}"
            )
        time.sleep(0.05)
    ended = max(record["at"] for record in queued)
    # Let the loops finish their work on the requests.
    time.sleep(0.5)
    late = {"server": 0.0, "engine": 0.0}
    for record in server.records():
        if "loop" in record and started <= record["at"] + record["late"] and record["at"] <= ended + 0.4:
            late[record["loop"]] = max(late[record["loop"]], record["late"])
    for connection in connections:
        connection.close()
    # Let the engine drop the requests of the closed connections.
    time.sleep(2.0)
    return Result(ended - started, late["server"], late["engine"])


def compare(case: Case, stock: IngestServer, ours: IngestServer) -> str:
    """Alternate between both servers and return a line of the table."""
    results: dict[IngestServer, list[Result]] = {stock: [], ours: []}
    for turn in range(0 if case.warm_up else 1, case.rounds + 1):
        for side in (stock, ours) if turn % 2 == 0 else (ours, stock):
            result = send(side, case)
            name = "ours" if side is ours else "stock"
            step = f"round {turn} of {case.rounds}" if turn else "warm-up"
            say(f"{case.name}: {step}, {name}: {result.seconds:.2f} s, late {result.server:.3f} {result.engine:.3f} s")
            if turn:
                results[side].append(result)
    ratio = statistics.median(b.seconds / a.seconds for a, b in zip(results[stock], results[ours], strict=True))
    columns = []
    for side in (stock, ours):
        seconds = statistics.median(result.seconds for result in results[side])
        worst = max(result.server for result in results[side]), max(result.engine for result in results[side])
        columns.append(f"{seconds:8.2f} {worst[0]:10.3f} {worst[1]:10.3f}")
    return f"{case.name:34} {columns[0]} {columns[1]} {ratio:8.2f}"


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default, what in (
        ("tokens", 1_000_000, "token IDs per body"),
        ("characters", 16_000_000, "characters per text"),
        ("at-once", 10, "concurrent bodies in the cases with several"),
        ("rounds", 5, "rounds of every case except concurrent texts"),
        ("text-rounds", 1, "rounds of concurrent texts, minutes each"),
    ):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"{what} (default: %(default)s)")
    parser.add_argument(
        "--case", type=int, action="append", choices=range(4), help="run only this case, counted from 0; repeatable"
    )
    args = parser.parse_args(arguments)
    for name in ("tokens", "characters", "at_once", "rounds", "text_rounds"):
        if getattr(args, name) < 1:
            parser.error(f"--{name.replace('_', '-')}: {getattr(args, name)} must be at least 1")
    return args


def main() -> None:
    args = parse()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        say("creating the model")
        todo = cases(make_model(folder / "model"), args)
        sides: list[IngestServer] = []
        try:
            for ours, title in ((False, "stock"), (True, "ours")):
                say(f"starting {title}")
                sides.append(IngestServer(ours, folder / "model", folder / title))
                sides[-1].wait()
            titles = f"{'s':>8} {'server':>10} {'engine':>10}"
            lines = [f"{'':34} {'stock':^30} {'ours':^30}", f"{'':34} {titles} {titles} {'time':>8}"]
            for number, case in enumerate(todo):
                if args.case is None or number in args.case:
                    lines.append(compare(case, *sides))
            print("\n".join(lines))
            for side, title in zip(sides, ("stock", "ours"), strict=True):
                print(f"{title}: peak memory of the largest process {side.peak_memory() / 2**30:.2f} GiB")
        except KeyboardInterrupt:
            say("interrupted")
            sys.exit(130)
        finally:
            for side in sides:
                side.stop()


if __name__ == "__main__":
    main()
