"""``ropeswitch loadtest``: its flags, and the results it prints and writes."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import flag, number, whole

if TYPE_CHECKING:
    from ropeswitch.loadtests.client.workload import Workload

EXAMPLES = """\
examples:
  ropeswitch loadtest chat --url http://127.0.0.1:8000
  ropeswitch loadtest mixed --url http://127.0.0.1:8000 --rate 1,2,4 --repetitions 3 --baseline http://127.0.0.1:8001
  ropeswitch loadtest chat --url http://127.0.0.1:8000 --assert "band=0-8k,ttft_p99<0.5" --assert "failed==0"
exit codes: 0 success; 1 an assertion failed; 2 bad input, or requests failed; 130 interrupted (results so far are kept)
"""


def add_parser(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add ``loadtest`` to the commands of ``ropeswitch``."""
    about = "send a workload to an OpenAI-compatible server, check every answer, and report by prompt length"
    parser = commands.add_parser(
        "loadtest", help=about, description=f"{about[0].upper()}{about[1:]}.", epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.set_defaults(func=main)
    add = parser.add_argument
    add("workload", nargs="?", help="name of a shipped workload (--list), or a YAML file")
    add("--list", action="store_true", help="list the shipped workloads")
    add("--url", help="server URL, such as http://127.0.0.1:8000; the API key is read from OPENAI_API_KEY")
    add("--model", help="model to request (default: the first model the server lists)")
    add("--baseline", metavar="URL", help="URL of a server to compare with in alternating runs, such as stock vLLM")
    add("--baseline-model", metavar="MODEL", help="model to request from the baseline (default: the first it lists)")
    add("--ca", metavar="FILE", help="PEM file of certificates to trust in addition to the system's")
    _number(parser, "--wait", "S", 0, 86_400, "maximum seconds to wait for the servers to answer", 0.0)
    load = parser.add_argument_group("load (overrides the workload file)")
    add = load.add_argument
    rates, clients = listed(flag(number, 1e-6, 1e5)), listed(flag(whole, 1, 10_000))
    add(
        "--rate", type=rates, default=(), metavar="R,R", help="requests per second; a comma-separated list runs a sweep"
    )
    add("--concurrency", type=clients, default=(), metavar="N,N",
        help="number of clients of a closed loop; a comma-separated list runs a sweep")  # fmt: skip
    _number(load, "--requests", "N", 1, 10_000_000, "maximum requests per run; a conversation counts once")
    _number(load, "--seconds", "S", 0.1, 86_400 * 30, "stop sending requests after this many seconds")
    _number(load, "--warmup", "N", 0, 10_000, "uncounted warm-up requests before each run")
    _number(load, "--repetitions", "N", 1, 1000, "runs per rate or concurrency", 1)
    _number(load, "--seed", "SEED", 0, 2**31, "random seed for lengths, texts and arrivals", 0)
    _number(load, "--scale", "X", 1e-6, 1e3, "multiply the workload's prompt lengths and bands by this factor", 1.0)
    add("--longest", metavar="TOKENS", help="maximum tokens of a prompt plus its answer; longer prompts are cut")
    add("--text", help="text to build prompts from: paper, village, or a YAML file")
    report = parser.add_argument_group("results")
    add = report.add_argument
    add("--out", type=Path, metavar="DIR",
        help="results folder (default: loadtest-NAME); an interrupted test in it is started over")  # fmt: skip
    add(
        "--bands",
        metavar="B,B",
        help="length bands, such as 0-8k,8k-1M (default: the workload's, else the factor sets')",
    )
    add("--slo", action="append", default=[], metavar="SLO",
        help='latency objective in seconds, such as "band=0-8k,ttft<0.5,tpot<0.1"; repeatable')  # fmt: skip
    add("--assert", action="append", default=[], dest="assertions", metavar="LIMIT",
        help='exit with 1 unless this holds, such as "band=0-8k,ttft_p99<0.5", "correct>=0.99" or "ratio_itl_p50<1.05"; '
        "repeatable")  # fmt: skip
    add("--no-report", action="store_true", help="do not write report.html, the page of plots")
    client = parser.add_argument_group("client")
    add = client.add_argument
    add("--tokenizer", metavar="DIR", help="folder of the served model's tokenizer, for servers without /tokenize")
    _number(client, "--timeout", "S", 0.1, 86_400 * 7, "maximum seconds for a complete answer", 21600.0)
    _number(client, "--most-failures", "N", 1, 1_000_000, "stop after this many consecutive failures", 20)
    add("--quiet", action="store_true", help="do not print progress")


def _number(
    group: "argparse._ActionsContainer", name: str, metavar: str, least: float, most: float, about: str,
    default: float | None = None,
) -> None:  # fmt: skip
    """Add a flag for a number; a whole one if ``most`` is an int and ``least`` too."""
    kind = whole if isinstance(least, int) and isinstance(most, int) and metavar in ("N", "SEED") else number
    said = about if default is None else f"{about} (default: {default:g})"
    group.add_argument(name, type=flag(kind, least, most), default=default, metavar=metavar, help=said)


def main(args: argparse.Namespace) -> int:
    """Run a load test and return the exit code; raises UsageError for bad input, or if failed requests stopped it."""
    if args.list:
        from ropeswitch.loadtests.client import workload as workloads

        for name in workloads.shipped("workload"):
            print(f"{name:12} {workloads.load(name).about}")
        return 0
    if not args.workload or not args.url:
        raise UsageError(f"{'workload' if not args.workload else '--url'} is missing: see ropeswitch loadtest --help")
    try:
        return _run(args)
    except KeyboardInterrupt:
        print("loadtest: stopped by Ctrl-C", file=sys.stderr, flush=True)
        return 130


def _run(args: argparse.Namespace) -> int:
    from ropeswitch.factors.evaluate.endpoint import connect
    from ropeswitch.factors.evaluate.tokenizers import LocalTokenizer, ServedTokenizer
    from ropeswitch.loadtests.client import pieces
    from ropeswitch.loadtests.client import workload as workloads
    from ropeswitch.loadtests.client.assertions import Assertion, Slo
    from ropeswitch.loadtests.client.bands import bands, tokens
    from ropeswitch.loadtests.client.loadtest import LoadTest, Options, make_keys
    from ropeswitch.loadtests.client.prompts import Composer
    from ropeswitch.loadtests.client.records import Store
    from ropeswitch.loadtests.client.sender import Client

    workload = _changed(workloads.load(args.workload), args)
    text = pieces.load(workload.text)
    options = Options(
        **{name: getattr(args, name) for name in ("rate", "concurrency", "repetitions", "seed", "scale")},
        longest=tokens(args.longest) if args.longest else None,
        bands=bands(args.bands) if args.bands else None,
        slos=tuple(map(Slo.parse, args.slo)),
        assertions=tuple(map(Assertion.parse, args.assertions)),
    )
    target = connect(args.url, args.model, args.ca, args.wait)
    baseline = connect(args.baseline, args.baseline_model, args.ca, args.wait) if args.baseline else None
    keys = make_keys(text, args.seed)
    tokenizer = ServedTokenizer(target) if args.tokenizer is None else LocalTokenizer(args.tokenizer)
    chat = workload.endpoint == "chat"
    composer = Composer(pieces.cut(text, tokenizer, chat, keys), chat)
    client = Client(workload, text, keys, args.timeout, args.most_failures, not args.quiet)
    out = args.out or Path(f"loadtest-{workload.name}")
    test = LoadTest(client, target, baseline, tokenizer, composer, options)
    _check(test)
    store = Store(out)
    if not args.quiet:
        print("loadtest: building the prompts", file=sys.stderr, flush=True)
    prompts = test.prepare(out)
    # vLLM reads the variable when imported. Import it now: it takes seconds, which would delay an interrupted test's report.
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    import_module("ropeswitch.loadtests.client.results")
    if not args.no_report:
        # A missing matplotlib is found before the load.
        import_module("ropeswitch.loadtests.report.page")

    runs = test.run(store, prompts)
    return finish(test, store, runs, not args.no_report)


def _check(test: Any) -> None:
    """Reject assertions that no run of this test could satisfy."""
    for assertion in test.options.assertions:
        bands = test.bands()
        if assertion.band is not None and assertion.band not in bands:
            said = f"the bands of this test are {', '.join(map(str, bands))}; change them with --bands"
            raise UsageError(f"assertion {assertion.text!r}: {said}")
        if test.baseline is None and any(limit.ratio for limit in assertion.limits):
            raise UsageError(f"assertion {assertion.text!r} compares with a baseline: add --baseline URL")


def finish(test: Any, store: Any, runs: Sequence[Any], drawn: bool) -> int:
    """Print the results, write them and the report, and return the exit code."""
    from ropeswitch.loadtests.report.printed import text

    points = test.points(runs)
    results = test.results(points)
    try:
        print(text(results), flush=True)
        if drawn:
            from ropeswitch.loadtests.report.page import html

            report = store.write("report.html", html(results, points, test.bands(), test.limits()))
            print(f"report: {report}", flush=True)
    finally:
        # Last: a folder with complete results starts no test again.
        store.write("results.json", json.dumps(results, indent=1) + "\n")
    stopped = [run.stopped for run in runs if not run.complete]
    if any(reason.startswith("stopped by") for reason in stopped):
        print(f"loadtest: {stopped[0]}; results so far are in {store.folder}", file=sys.stderr, flush=True)
        return 130
    if stopped:
        raise UsageError(f"{stopped[0]} (results so far are in {store.folder})")
    if not any(each.status == "completed" for run in runs for each in run.exchanges):
        errors = [each.error for run in runs for each in run.exchanges if each.error]
        raise UsageError(f"no request completed; last error: {errors[-1] if errors else 'none'}")
    broken = [check for check in results["assertions"] if not check["ok"]]
    for check in broken:
        value = "the figure has no value" if check["value"] is None else f"measured {check['value']:.6g}"
        print(f"loadtest: assertion failed at {check['point']}: {check['text']}: {value}", file=sys.stderr, flush=True)
    return 1 if broken else 0


def _changed(workload: "Workload", args: argparse.Namespace) -> "Workload":
    """Return the workload with the flags applied."""
    from ropeswitch.loadtests.client.workload import parse

    arrival = workload.arrival
    if args.rate and not arrival.rated:
        raise UsageError(f"--rate: workload {workload.name} has no rate; only arrival poisson, gamma and bursts have")
    if args.concurrency and not arrival.closed:
        raise UsageError(f"--concurrency: workload {workload.name} is not a closed loop; use one with arrival closed")
    given = {name: getattr(args, name) for name in ("requests", "seconds", "warmup", "text")}
    content = workload.model_dump(exclude_none=True, mode="json") | {k: v for k, v in given.items() if v is not None}
    return parse(content, f"workload {workload.name} with the flags")


def listed(parse: Callable[[str], Any]) -> Callable[[str], tuple[Any, ...]]:
    """Return an argparse type for comma-separated lists of distinct values."""

    def parse_all(text: str) -> tuple[Any, ...]:
        found = tuple(parse(part.strip()) for part in text.split(","))
        if len(set(found)) < len(found):
            raise argparse.ArgumentTypeError(f"{text!r} contains a value twice")
        return found

    return parse_all
