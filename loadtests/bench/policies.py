"""Measures the cost of a crossing under each ladder policy: tokens recomputed, longest gap and time of the whole answer.

Runs the bundled model, or another one with its automatic ladder, one request at a time. A prompt ends 32 tokens below a
set's limit and its answer has 64 tokens, so the policy ``length`` recomputes the sequence half-way. The policies alternate
with new prompts; results are medians.
"""

import argparse
import multiprocessing
import os
import random
import statistics
import time
from dataclasses import astuple, dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

LIMITS = (512, 1024, 4096)
BEFORE, ANSWER = 32, 64
PARTS = {"with background prefill": ["guard", "cpu", "scheduling"], "without it": ["guard", "cpu"]}


@dataclass(frozen=True)
class Crossing:
    """One measured answer.

    Attributes:
        recomputed: Tokens recomputed by its switches.
        stall: Longest gap between two of its tokens, in seconds.
        seconds: Time from arrival to last token, in seconds.
    """

    recomputed: int
    stall: float
    seconds: float


@dataclass(frozen=True)
class Model:
    """The served model: a checkpoint with its automatic ladder, or the bundled model if ``folder`` is None.

    Attributes:
        folder: Checkpoint folder.
        max_length: ``max_model_len``, in tokens.
        limits: Limits of the sets below the last one, in tokens.
    """

    folder: str | None = None
    max_length: int | None = None
    limits: tuple[int, ...] = LIMITS


def _engine(model: Model, parts: list[str]) -> Any:
    """Return a ``vllm.LLM`` in this process; the bundled model's ladder gets a set for each of :data:`LIMITS`."""
    from vllm import LLM

    if model.folder is not None:
        return LLM(
            model.folder, max_model_len=model.max_length, kv_cache_memory_bytes=2 << 30, enforce_eager=True,
            disable_log_stats=True, additional_config={"ropeswitch": {"ladder": "auto", "parts": parts}},
        )  # fmt: skip

    from ropeswitch.factors import file
    from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL

    by_length = {each["max_length"]: each for each in file.load(BUNDLED_FACTORS).ladder.to_json()}
    last = by_length[max(by_length)]
    # The limits of the bundled ladder are far apart, so add sets between them.
    for limit in LIMITS:
        by_length.setdefault(limit, last | {"name": str(limit), "max_length": limit})
    sets = [by_length[limit] for limit in sorted(by_length)]
    return LLM(
        str(BUNDLED_MODEL), kv_cache_memory_bytes=1 << 30, enforce_eager=True, disable_log_stats=True,
        additional_config={"ropeswitch": {"sets": sets, "parts": parts}},
    )  # fmt: skip


def _answer(engine: Any, recomputed: list[int], name: str, limit: int, policy: str) -> Crossing:
    from vllm import SamplingParams

    # Seeded by name, every prompt is new and misses the prefix cache.
    prompt = random.Random(name).choices(range(3, 256), k=limit - BEFORE)
    params = SamplingParams(
        temperature=0.0, max_tokens=ANSWER, ignore_eos=True, detokenize=False, extra_args={"rope_ladder_policy": policy}
    )
    recomputed.clear()
    times = [time.perf_counter()]
    engine.add_request(name, {"prompt_token_ids": prompt}, params)
    tokens = 0
    while engine.has_unfinished_requests():
        for output in engine.step():
            if len(output.outputs[0].token_ids) > tokens:
                tokens = len(output.outputs[0].token_ids)
                times.append(time.perf_counter())
    gaps = [after - before for before, after in pairwise(times[1:])]
    return Crossing(sum(recomputed), max(gaps), times[-1] - times[0])


def _work(connection: Connection, model: Model, parts: list[str], rounds: int) -> None:
    engine = _engine(model, parts).llm_engine
    scheduler = engine.engine_core.engine_core.scheduler
    report, recomputed = scheduler._report_switch, []

    def reporting(request: Any, scheduled: int) -> None:
        switched = request.request_id in scheduler._moved_up
        report(request, scheduled)
        if switched:
            recomputed.append(request.prefill_stats.num_computed_tokens)

    scheduler._report_switch = reporting
    for turn in range(rounds + 1):
        for limit in model.limits:
            for policy in ("length", "reserve")[:: 1 if turn % 2 else -1]:
                found = _answer(engine, recomputed, f"{turn}-{limit}-{policy}", limit, policy)
                # The first round warms up.
                if turn:
                    connection.send((limit, policy, astuple(found)))
    connection.send(None)


def main() -> None:
    """Print a row for each limit, policy and setting."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9, help="measured rounds (default: 9)")
    parser.add_argument(
        "--model", help="checkpoint with an automatic ladder (default: the bundled model and its ladder)"
    )
    parser.add_argument("--max-model-len", type=int, help="maximum sequence length of --model, in tokens")
    parser.add_argument(
        "--limits", type=int, nargs="+", default=LIMITS, help="set limits to cross, in tokens (default: 512 1024 4096)"
    )
    args = parser.parse_args()
    model = Model(args.model, args.max_model_len, tuple(args.limits))
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    print(
        "| crossing | policy | tokens recomputed | longest gap ms | whole answer ms |\n| --- | --- | --- | --- | --- |"
    )
    for setting, parts in PARTS.items():
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs, model, parts, args.rounds))
        process.start()
        # With this end closed, a dead process ends the wait below with an EOFError.
        theirs.close()
        found: dict[tuple[int, str], list[Crossing]] = {}
        while (message := ours.recv()) is not None:
            limit, policy, values = message
            found.setdefault((limit, policy), []).append(Crossing(*values))
        process.join()
        for (limit, policy), runs in sorted(found.items()):
            if policy == "reserve" and setting != next(iter(PARTS)):
                continue
            named = "reserve" if policy == "reserve" else f"length, {setting}"
            tokens = statistics.median(run.recomputed for run in runs)
            stall, seconds = (statistics.median(getattr(run, name) for run in runs) for name in ("stall", "seconds"))
            print(f"| {limit:,} | {named} | {tokens:g} | {1e3 * stall:.0f} | {1e3 * seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
