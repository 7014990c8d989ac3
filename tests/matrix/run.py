"""``make docs-models``: measures every architecture that has no result yet, then writes docs/models.md.

Stop it at any time and start it again: it goes on with the first architecture that is missing.
"""

import argparse
import json
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from tests.matrix import page
from tests.matrix.verdicts import CHECKPOINT, ENDED

RESULTS = Path("models/results/matrix.jsonl")
# What the processes of the models share: no hub, the engine inside, one thread each, nothing compiled.
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "TORCHDYNAMO_DISABLE": "1",
    "TOKENIZERS_PARALLELISM": "false",
}

MOST_MEMORY = 8 << 30
# Seconds that a process has to leave by itself.
LEAVING = 10

Line = dict[str, Any]
Measure = Callable[[str], Line]


def main() -> int:
    """Measure what is missing, then write the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.run", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure these architectures anew")
    parser.add_argument("--verdict", nargs="+", default=[], help="measure anew what has one of these verdicts")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one model (default: 300)")
    parser.add_argument("--logs", type=Path, help="folder for what each model's process prints (default: discarded)")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args()
    os.environ.update(ENVIRONMENT)
    try:
        if not args.page_only:
            if args.logs is not None:
                args.logs.mkdir(parents=True, exist_ok=True)
            processes = Processes(args.limit, args.logs)
            kinds = processes.kinds
            if unknown := sorted(set(args.only) - set(kinds)):
                parser.error(f"--only: {unknown[0]!r} is no architecture with rotary embeddings of vLLM's registry")
            known = read(RESULTS)
            anew = {*args.only, *(name for name, each in known.items() if each["verdict"] in args.verdict)}
            names = args.only or [name for name in kinds if name in anew or name not in known]
            fill(RESULTS, names, processes, jobs=args.jobs)
        page.write(Path(), read(RESULTS))
    except KeyboardInterrupt:
        print("docs-models: interrupted; the same command resumes", file=sys.stderr)
        return 130
    print(f"docs-models: wrote {page.PAGE}")
    return 0


def fill(path: Path, names: Sequence[str], measure: Measure, *, jobs: int = 1) -> None:
    """Measure architectures and keep each result as soon as it is there, with a line of progress.

    Args:
        path: The results file; a line of an architecture that is measured anew is replaced.
        names: The architectures.
        measure: Gives one architecture's result.
        jobs: How many at a time.
    """
    with ThreadPoolExecutor(jobs) as pool:
        running = {pool.submit(measure, name): name for name in names}
        try:
            for count, done in enumerate(as_completed(running), start=1):
                try:
                    line = done.result()
                except TimeoutError as error:
                    print(f"docs-models: {count} of {len(names)}: {error}", flush=True)
                    continue
                store(path, read(path) | {line["architecture"]: line})
                print(
                    f"docs-models: {count} of {len(names)}: {line['architecture']}: {line['verdict']}"
                    f"{', ' + line['reason'][:100] if line.get('reason') else ''} ({line['seconds']:.0f} s)",
                    flush=True,
                )
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def read(path: Path) -> dict[str, Line]:
    """The results by architecture; none where there is no file."""
    if not path.exists():
        return {}
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return {line["architecture"]: line for line in lines}


def store(path: Path, results: Mapping[str, Line]) -> None:
    """Write the results, in the order of their names, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".new")
    beside.write_text("".join(json.dumps(results[name]) + "\n" for name in sorted(results)), encoding="utf-8")
    beside.replace(path)


class Processes:
    """Measures each architecture in a process of its own, which is forked from one that has imported everything."""

    def __init__(self, limit: float, logs: Path | None) -> None:
        self.limit, self.logs = limit, logs
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.matrix.preload"])
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_kinds, args=(theirs,))
        process.start()
        # Every architecture with its kind.
        self.kinds: dict[str, str] = ours.recv()
        process.join()

    def __call__(self, name: str) -> Line:
        """One architecture's result.

        Raises:
            TimeoutError: where it takes longer than the limit, which says nothing about the architecture.
        """
        started = time.monotonic()
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(name, theirs, self.logs))
        process.start()
        theirs.close()
        stage = CHECKPOINT
        try:
            while True:
                if not ours.poll(max(0, self.limit - (time.monotonic() - started))):
                    raise TimeoutError(f"{name}: not finished after {self.limit:g} s; raise --limit")
                message = ours.recv()
                if isinstance(message, dict):
                    process.join(LEAVING)
                    return message | {"seconds": round(time.monotonic() - started, 1)}
                stage = message
        except EOFError:
            process.join()
            reason = f"{stage}: the process ended with exit code {process.exitcode}"
            line = {"architecture": name, "kind": self.kinds[name], "verdict": ENDED[stage], "reason": reason}
            return line | {"seconds": round(time.monotonic() - started, 1)}
        finally:
            process.kill()
            process.join()


def _kinds(pipe: Any) -> None:
    from tests.matrix.recipes import rotating

    pipe.send(rotating())


def _child(name: str, pipe: Any, logs: Path | None) -> None:
    target = os.devnull if logs is None else str(logs / f"{name}.log")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # A model that came out large must not take the memory of everything else.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    from tests.matrix.one_model import line, measure

    pipe.send(line(measure(name, stage=pipe.send)))


if __name__ == "__main__":
    sys.exit(main())
