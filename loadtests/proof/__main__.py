"""Evaluates three servers with ``ropeswitch factors eval``, one after another: ``python -m ropeswitch.loadtests.proof``.

It can be interrupted at any time; the same command resumes with the first missing cell.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from ropeswitch.factors.errors import InputError
from ropeswitch.factors.evaluate.cells import TASKS
from ropeswitch.factors.evaluate.passkey import PASSKEY, REPLY_TOKENS
from ropeswitch.factors.evaluate.perplexity import PERPLEXITY
from ropeswitch.factors.evaluate.statistics import paired_ratio, perplexity
from ropeswitch.loadtests.proof.server import Server
from ropeswitch.loadtests.proof.texts import save_texts
from ropeswitch.models.demo.convert import convert
from ropeswitch.models.demo.source import SMOLLM2, fetch

COMMAND = str(Path(sys.executable).with_name("ropeswitch"))
WORK = Path(".demo")
"""Folder for the model, shared with ``make demo``, the texts and the results."""
NAME = "smollm2"
WINDOW, LONGEST = 8192, 32768
"""The model's window and the longest sequence, in tokens."""
NATIVE, STATIC, OURS = ROTATIONS = ("native", "static YaRN x4", "ropeswitch")
YARN = {"rope_type": "yarn", "rope_theta": 100_000.0, "factor": 4.0, "original_max_position_embeddings": WINDOW}
# Longer position tables and the length check both follow this field; unscaled angles do not depend on it.
OVERRIDES: dict[str, Any] = {"max_position_embeddings": LONGEST}


@dataclass(frozen=True)
class Run:
    """One evaluation: documents or pass keys at a length, in tokens of prompt and answer.

    In float32 where ropeswitch must equal native, which bfloat16 rounding would hide; elsewhere in bfloat16, the model's own
    type and three times as fast.
    """

    dtype: str
    task: str
    length: int
    count: int

    @property
    def flags(self) -> list[str]:
        if self.task == PASSKEY:
            return ["--lengths", str(self.length - REPLY_TOKENS), "--tries", str(self.count)]
        text = ["--text", str(WORK / "texts"), "--windows", "1"]
        return ["--lengths", str(self.length), "--documents", str(self.count), *text]

    def output(self, rotation: str) -> Path:
        return WORK / "proof" / f"{rotation.split()[0]}-{self.task}-{self.length}.json"


RUNS = (
    *(Run("float32", PERPLEXITY, length, 30) for length in (512, 2048, WINDOW)),
    # With the token that the server generates after each prompt, the last is the longest sequence.
    Run("bfloat16", PERPLEXITY, 16384, 8),
    Run("bfloat16", PERPLEXITY, LONGEST - 1, 5),
    *(Run("bfloat16", PASSKEY, length, count) for length, count in ((512, 20), (2048, 20), (WINDOW, 10), (16384, 5))),
    Run("bfloat16", PASSKEY, LONGEST - 1, 3),
)


def command(rotation: str, dtype: str, model: Path) -> list[str]:
    """Return the command that serves ``model``, without host and port."""
    if rotation == OURS:
        serve = [COMMAND, "serve", str(model)]
    else:
        overrides = OVERRIDES | ({"rope_parameters": YARN} if rotation == STATIC else {})
        serve = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry", "--model", str(model)]
        serve += ["--hf-overrides", json.dumps(overrides)]
    serve += ["--served-model-name", NAME, "--dtype", dtype, "--enforce-eager", "--max-num-seqs", "1"]
    serve += ["--max-model-len", str(LONGEST), "--max-num-batched-tokens", "1024"]
    # The KV cache takes 46 KB per token in float32.
    return [*serve, "--kv-cache-memory-bytes", str(1600 << 20), "--no-enable-prefix-caching"]


def main() -> int:
    """Measure what is missing, then print the tables; return the exit code."""
    try:
        WORK.mkdir(parents=True, exist_ok=True)
        convert(fetch(SMOLLM2, WORK, _say), WORK / NAME, _say)
        save_texts(WORK / "texts")
        for dtype, runs in groupby(RUNS, key=lambda run: run.dtype):
            measure(dtype, list(runs))
    except (InputError, OSError) as error:
        print(f"docs-proof: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("docs-proof: interrupted; the same command resumes", file=sys.stderr)
        return 130
    print("\n".join(tables()))
    return 0


def measure(dtype: str, runs: Sequence[Run]) -> None:
    """Evaluate each rotation's server on the runs that have no results yet; KeyboardInterrupt when one is interrupted."""
    for rotation in ROTATIONS:
        missing = [run for run in runs if not run.output(rotation).exists()]
        if not missing:
            continue
        (WORK / "proof").mkdir(exist_ok=True)
        _say(f"{rotation}, {dtype}")
        with tempfile.TemporaryDirectory() as work:
            server = Server(command(rotation, dtype, WORK / NAME), Path(work), {"VLLM_CPU_OMP_THREADS_BIND": "auto"})
            try:
                server.wait()
                for run in missing:
                    target = ["factors", "eval", f"http://127.0.0.1:{server.port}", "--tasks", run.task]
                    where = ["--tokenizer", str(WORK / NAME), "--concurrency", "1", "--sets", served(rotation)]
                    flags = [*target, *run.flags, *where, "-o", str(run.output(rotation))]
                    code = subprocess.run([COMMAND, *flags], check=False).returncode
                    if code == 130:
                        raise KeyboardInterrupt
                    if code:
                        raise InputError(f"{rotation}: {run.task} at {run.length} tokens failed; the reason is above")
            finally:
                server.stop()


def served(rotation: str) -> str:
    """Return the name of the set that an evaluation asks a server for."""
    return "switched" if rotation == OURS else "served"


def tables() -> list[str]:
    """Return the lines of a table for each task, from the results of every run."""
    lines: list[str] = []
    for task in TASKS:
        compared = [f"{one} / {other}" for one, other in PAIRS] if task == PERPLEXITY else []
        columns = [task, "documents or keys", *ROTATIONS, *compared]
        lines += ["", f"| {' | '.join(columns)} |", "|" + " --: |" * len(columns)]
        for run in (each for each in RUNS if each.task == task):
            found = {each: _results(run, each) for each in ROTATIONS}
            cells = [_value(task, each) for each in found.values()]
            if task == PERPLEXITY:
                cells += [_ratio(found[one], found[other]) for one, other in PAIRS]
            lines.append(f"| {run.length:,} | {run.count} | {' | '.join(cells)} |")
    return lines[1:]


PAIRS = ((STATIC, NATIVE), (OURS, NATIVE), (OURS, STATIC))


def _results(run: Run, rotation: str) -> list[dict[str, Any]]:
    content = json.loads(run.output(rotation).read_text(encoding="utf-8"))
    return [result for cell in content["cells"] for result in cell["result"]]


def _value(task: str, results: Sequence[dict[str, Any]]) -> str:
    if task == PASSKEY:
        return f"{sum(each['score'] for each in results):.0f}"
    return f"{perplexity([(each['nll'], each['tokens']) for each in results])[0]:.3f}"


def _ratio(ours: Sequence[dict[str, Any]], theirs: Sequence[dict[str, Any]]) -> str:
    ratio, low, high = paired_ratio(*([each["nll"] / each["tokens"] for each in results] for results in (ours, theirs)))
    return f"{100 * (ratio - 1):+.2f}% ({100 * (low - 1):+.2f} to {100 * (high - 1):+.2f})"


def _say(line: str) -> None:
    print(f"docs-proof: {line}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
