"""``make bench-client``: what ``ropeswitch loadtest`` measures beside vLLM's own benchmark, and guidellm, on one server.

Three loads: a closed loop of one and of eight, and Poisson arrivals at half of what the eight get. The clients take turns;
the medians of the rounds are laid side by side. guidellm's inter-token latency is one figure for each request, which is the
others' TPOT. With ``--paced`` the server is guidellm's mock, which answers by the clock: what differs then is the clients'.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ropeswitch.loadtests.bench.plugin_server import PluginServer
from ropeswitch.models import BUNDLED_MODEL

MODEL = BUNDLED_MODEL.name
PROMPT, OUTPUT = 128, 64
PROGRAM = str(Path(sys.executable).with_name("ropeswitch"))
SERVER = (
    PROGRAM,
    "serve",
    "--enforce-eager",
    "--kv-cache-memory-bytes",
    "1G",
)
UPSTREAM = (
    "import sys; from vllm.benchmarks.serve import add_cli_args, main; "
    "from vllm.utils.argparse_utils import FlexibleArgumentParser as P; p = P(); add_cli_args(p); main(p.parse_args())"
)
# A core for the model, and what else there is for the API server and the client: they do not wait for each other.
# Milliseconds to the first token of the paced server, and between tokens.
PACE = ("--ttft-ms", "60", "--itl-ms", "12")
ONE_CORE = {"VLLM_CPU_OMP_THREADS_BIND": "0"}
FIGURES = (
    "median_ttft_ms", "p99_ttft_ms", "median_tpot_ms", "p99_tpot_ms", "median_itl_ms", "p99_itl_ms", "output_throughput",
)  # fmt: skip


@dataclass(frozen=True)
class Load:
    """One of the loads; ``rate`` is None in a closed loop, and ``clients`` elsewhere."""

    name: str
    requests: int
    clients: int | None = None
    rate: float | None = None


Figures = Mapping[str, float]
Client = Callable[[str, Load, int, Path], Figures]


def ours(url: str, load: Load, seed: int, work: Path) -> Figures:
    """``ropeswitch loadtest``, with the server's metrics scraped as by default."""
    arrival = {"closed": {"concurrency": load.clients}} if load.clients else {"poisson": {"rate": load.rate}}
    workload = {
        "name": "simple", "endpoint": "completions", "arrival": arrival, "requests": load.requests, "warmup": 8,
        "text": "village", "ignore_eos": True, "mix": [{"kind": "a", "prompt": PROMPT, "output": OUTPUT}],
    }  # fmt: skip
    # JSON is YAML too.
    (work / "workload.yaml").write_text(json.dumps(workload))
    command = [PROGRAM, "loadtest", str(work / "workload.yaml"), "--url", url, "--out", str(work / "out")]
    # The paced server's own tokenizer is not that of the model that it says it is.
    command += ["--tokenizer", str(BUNDLED_MODEL), "--cache", str(work / "cache"), "--seed", str(seed)]
    _run([*command, "--no-report", "--quiet"])
    found: Figures = json.loads((work / "out" / "results.json").read_text())
    return {name: found[name] for name in (*FIGURES, "request_throughput")}


def upstream(url: str, load: Load, seed: int, work: Path) -> Figures:
    """``vllm bench serve``."""
    flags = ["--backend", "openai", "--base-url", url, "--endpoint", "/v1/completions", "--model", MODEL]
    flags += ["--tokenizer", str(BUNDLED_MODEL), "--dataset-name", "random", "--random-input-len", str(PROMPT)]
    flags += ["--random-output-len", str(OUTPUT), "--num-prompts", str(load.requests), "--num-warmups", "8"]
    flags += ["--ignore-eos", "--temperature", "0", "--seed", str(seed), "--disable-tqdm", "--save-result"]
    flags += ["--result-dir", str(work), "--result-filename", "result.json"]
    flags += ["--max-concurrency", str(load.clients)] if load.clients else ["--request-rate", str(load.rate)]
    _run([sys.executable, "-c", UPSTREAM, *flags])
    found: Figures = json.loads((work / "result.json").read_text())
    return {name: found[name] for name in FIGURES}


def guidellm(program: str) -> Client:
    """guidellm, which is installed elsewhere: its packages are not those of the engine."""

    def run(url: str, load: Load, seed: int, work: Path) -> Figures:
        profile = f"kind=concurrent,streams={load.clients}" if load.clients else f"kind=poisson,rate={load.rate}"
        flags = ["--backend", f"kind=openai_http,target={url},model={MODEL},request_format=/v1/completions"]
        flags += ["--profile", profile, "--constraint", f"kind=max_requests,count={load.requests}"]
        flags += ["--data", f"kind=synthetic_text,prompt_tokens={PROMPT},output_tokens={OUTPUT}"]
        flags += ["--tokenizer", f"kind=huggingface_auto,model={BUNDLED_MODEL}", "--seed", f"kind=static,value={seed}"]
        _run([program, "run", *flags, "--output", f"kind=json,path={work / 'guide.json'}", "--disable-console"])
        (benchmark,) = json.loads((work / "guide.json").read_text())["benchmarks"]
        metrics = benchmark["metrics"]
        ttft, itl = (metrics[name]["successful"] for name in ("time_to_first_token_ms", "inter_token_latency_ms"))
        return {
            "median_ttft_ms": ttft["median"],
            "p99_ttft_ms": ttft["percentiles"]["p99"],
            "median_tpot_ms": itl["median"],
            "p99_tpot_ms": itl["percentiles"]["p99"],
            "output_throughput": metrics["output_tokens_per_second"]["successful"]["mean"],
        }

    return run


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(command[:4])} failed:\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")


def table(load: Load, measured: Mapping[str, list[Figures]]) -> str:
    """Medians of the rounds, and of ours over each other client's in the same round."""
    others = [name for name in measured if name != "ours"]
    lines = [f"\n### {load.name}\n", f"| figure | ours | {' | '.join(f'{name} | ours / {name}' for name in others)} |"]
    lines.append("| --- " * (2 + 2 * len(others)) + "|")
    for figure in FIGURES:
        cells = [f"{_median(measured['ours'], figure):.2f}"]
        for name in others:
            if figure in measured[name][0]:
                pairs = zip(measured["ours"], measured[name], strict=True)
                ratio = statistics.median(mine[figure] / theirs[figure] for mine, theirs in pairs)
                cells += [f"{_median(measured[name], figure):.2f}", f"{ratio:.3f}"]
            else:
                cells += ["", ""]
        lines.append(f"| {figure} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _median(rounds: list[Figures], figure: str) -> float:
    return statistics.median(each[figure] for each in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench_client", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=100, help="of each load (default: 100)")
    parser.add_argument("--guidellm", metavar="PROGRAM", help="the program of guidellm, where it is installed")
    parser.add_argument("--paced", action="store_true", help="against guidellm's mock server")
    args = parser.parse_args()
    if args.paced and not args.guidellm:
        parser.error("--paced needs --guidellm")
    clients: dict[str, Client] = {"ours": ours, "upstream": upstream}
    if args.guidellm:
        clients["guidellm"] = guidellm(args.guidellm)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "server").mkdir()
        paced = (args.guidellm, "mock-server", "--model", MODEL, *PACE)
        server = PluginServer(paced if args.paced else SERVER, Path(folder) / "server", variables=ONE_CORE)
        try:
            server.wait()
            loads = [
                Load("closed loop of 1", max(8, args.requests // 3), clients=1),
                Load("closed loop of 8", args.requests, clients=8),
            ]
            url = f"http://127.0.0.1:{server.port}"
            for load in loads:
                measured = measure(url, load, clients, args.rounds, Path(folder))
                print(table(load, measured), flush=True)
            rate = round(_median(measured["ours"], "request_throughput") / 2, 2)
            load = Load(f"Poisson arrivals, {rate:g} requests/s (half capacity)", args.requests, rate=rate)
            print(table(load, measure(url, load, clients, args.rounds, Path(folder))), flush=True)
        finally:
            server.stop()


def measure(url: str, load: Load, clients: Mapping[str, Client], rounds: int, folder: Path) -> dict[str, list[Figures]]:
    """Every client in turn, each round beginning with another one."""
    measured: dict[str, list[Figures]] = {name: [] for name in clients}
    names = list(clients)
    for each in range(rounds):
        start = each % len(names)
        for name in names[start:] + names[:start]:
            with tempfile.TemporaryDirectory(dir=folder) as work:
                # Upstream's prompts depend on the seed alone: another load must not find them in the prefix cache.
                seed = 1000 * len(load.name) + each
                measured[name].append(clients[name](url, load, seed, Path(work)))
            said: dict[str, Any] = {key: round(value, 2) for key, value in measured[name][-1].items()}
            print(
                f"bench_client: {load.name}, round {each + 1} of {rounds}, {name}: {said}", file=sys.stderr, flush=True
            )
    return measured


if __name__ == "__main__":
    main()
