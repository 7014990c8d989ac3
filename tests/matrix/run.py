"""``make docs-models``: measures every architecture that has no result yet, then writes docs/models.md.

An interrupted run resumes with the first architecture that has no result.
"""

import argparse
import multiprocessing
import os
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from ropeswitch.model_patches.switch.releases import RELEASES, release
from tests.docs.made import write
from tests.matrix import page
from tests.matrix.recipe import architectures, rotating
from tests.matrix.results import CHECKPOINT, ENDED, Line, file_of, read, store

MOST_MEMORY = 8 << 30
# Seconds that a process has to leave by itself.
LEAVING = 10

Measure = Callable[[str], Line]


def main() -> int:
    """Measure what is missing, then write the page; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.matrix.run", description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="measure these architectures again")
    parser.add_argument("--verdict", nargs="+", default=[], help="measure architectures with these verdicts again")
    parser.add_argument("--jobs", type=int, default=1, help="models at a time (default: 1)")
    parser.add_argument("--limit", type=float, default=300, help="seconds for one model (default: 300)")
    parser.add_argument("--logs", type=Path, help="folder for the output of each model's process (default: discarded)")
    parser.add_argument("--page-only", action="store_true", help="measure nothing, write the page")
    args = parser.parse_args()
    try:
        if not args.page_only:
            results = file_of(release())
            known, names = read(results), list(rotating())
            if unknown := sorted(set(args.only) - set(names)):
                parser.error(f"--only: {unknown[0]!r} is no architecture with rotary embeddings of vLLM's registry")
            again = {name for name, each in known.items() if each["verdict"] in args.verdict}
            names = args.only or [name for name in names if name in again or name not in known]
            fill(results, names, Processes(args.limit, args.logs), jobs=args.jobs)
        write(page.PAGE, "docs-models", page.tables({each: read(file_of(each)) for each in RELEASES}))
    except KeyboardInterrupt:
        print("docs-models: interrupted; the same command resumes", file=sys.stderr)
        return 130
    return 0


def fill(path: Path, names: Sequence[str], measure: Measure, *, jobs: int = 1) -> None:
    """Measure architectures, ``jobs`` at a time; store each result at once in the file ``path``, and print a line."""
    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(measure, name) for name in names]
        try:
            for count, done in enumerate(as_completed(running), start=1):
                try:
                    line = done.result()
                except TimeoutError as error:
                    print(f"docs-models: {count} of {len(names)}: {error}", flush=True)
                    continue
                store(path, read(path) | {line["architecture"]: line})
                reason = f", {line['reason'][:100]}" if line.get("reason") else ""
                said = f"{line['architecture']}: {line['verdict']}{reason} ({line['seconds']:.0f} s)"
                print(f"docs-models: {count} of {len(names)}: {said}", flush=True)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


class Processes:
    """Measures each architecture in a separate process, which is forked from one that has imported everything.

    Args:
        limit: Seconds for one architecture.
        logs: Folder for the output of each process; None to discard it.
    """

    def __init__(self, limit: float, logs: Path | None = None) -> None:
        self.limit, self.logs = limit, logs
        if logs is not None:
            logs.mkdir(parents=True, exist_ok=True)
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["tests.matrix.preload"])

    def __call__(self, name: str, **changes: Any) -> Line:
        """One architecture's result; ``changes`` are of its recipe.

        Raises:
            TimeoutError: if it takes longer than the limit, which says nothing about the architecture.
        """
        started = time.monotonic()
        ours, theirs = self.context.Pipe(duplex=False)
        process = self.context.Process(target=_child, args=(name, changes, theirs, self.logs))
        process.start()
        theirs.close()
        message: Line | str = CHECKPOINT
        try:
            while isinstance(message, str):
                stage = message
                if not ours.poll(max(0, self.limit - (time.monotonic() - started))):
                    raise TimeoutError(f"{name}: not finished after {self.limit:g} s; raise --limit")
                message = ours.recv()
            process.join(LEAVING)
        except EOFError:
            process.join()
            reason = f"{stage}: the process ended with exit code {process.exitcode}"
            kind = architectures()[name]
            message = {"architecture": name, "kind": kind, "verdict": ENDED[stage], "reason": reason}
        finally:
            process.kill()
            process.join()
        return message | {"seconds": round(time.monotonic() - started, 1)}


def _child(name: str, changes: Mapping[str, Any], pipe: Any, logs: Path | None) -> None:
    from tests.matrix.preload import measure

    target = os.devnull if logs is None else str(logs / f"{name}.log")
    file = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(file, 1)
    os.dup2(file, 2)
    # A model that came out large must not take the memory of everything else.
    resource.setrlimit(resource.RLIMIT_DATA, (MOST_MEMORY, MOST_MEMORY))
    pipe.send(measure(name, changes, stage=pipe.send))


if __name__ == "__main__":
    sys.exit(main())
