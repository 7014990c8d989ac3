"""One engine of the scheduling benchmark, in its own process: sends a workload and records when each token arrives.

The engine is driven step by step, without HTTP or a second process, so that it has the machine's cores to itself. A request
is added at the first step after its intended arrival; its times count from that arrival.
"""

import itertools
import math
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from ropeswitch.loadtests.bench.gpu_engine import Size
from ropeswitch.loadtests.bench.sides import with_ladder

# Two layers: with stock's defaults on two cores, 24k tokens prefill in 10 to 25 s. With many small query heads and one key
# head, nearly all of that is attention's arithmetic, as in a 7B model at a few hundred thousand tokens.
# Room for a 32k prompt and the short requests that arrive in the meantime: key and value of 32 bfloat16 each.
SHAPE = Size(2, 16, 1, 512, 512, 2048, 40960, 49152 * 2 * 2 * 32 * 2, vocabulary=8192)
# Maximum tokens of a short prompt; tokens of every answer.
SHORT, OUTPUT, CHATS = 512, 16, 24
# Requests that outgrow the first set; tokens by which the prompt ends before the limit, and by which its answer passes it.
CROSSINGS, BEFORE, BEHIND = 4, 40, 40


@dataclass(frozen=True)
class Setting:
    """One engine of the comparison; a target of None is our default."""

    name: str
    arguments: dict[str, Any] = field(default_factory=dict)
    ours: bool = False
    target: float | None = None


class Arrival(NamedTuple):
    """One request: its arrival in seconds, its prompt's tokens and its answer's."""

    at: float
    prompt: int
    output: int = OUTPUT


def arrivals(name: str, prompt: int, alone: float, seed: int) -> list[Arrival]:
    """Return a workload's requests by arrival; times scale with the seconds that the longest prompt takes alone."""
    return sorted(WORKLOADS[name](random.Random(seed), prompt, alone), key=lambda arrival: arrival.at)


def _chats(dice: random.Random, horizon: float) -> list[Arrival]:
    lengths = [round(math.exp(dice.uniform(math.log(50), math.log(SHORT)))) for _ in range(CHATS)]
    return [Arrival(dice.uniform(0, horizon), length) for length in lengths]


def _single(dice: random.Random, prompt: int, alone: float) -> list[Arrival]:
    return [*_chats(dice, 2 * alone), Arrival(0.2 * alone, prompt)]


def _mixed(dice: random.Random, prompt: int, alone: float) -> list[Arrival]:
    longs = [(0.15, prompt // 2), (1.05, prompt), (1.95, prompt // 2)]
    return [*_chats(dice, 3 * alone), *(Arrival(at * alone, length) for at, length in longs)]


def _heavy(dice: random.Random, prompt: int, alone: float) -> list[Arrival]:
    # Quantiles of a Pareto distribution (exponent 0.75), so that every seed has the same work.
    shape, least, count = 0.75, 50, 40
    end = 1 - (least / prompt) ** shape
    shares = [1 - end * i / (count - 1) for i in range(count)]
    lengths = [min(prompt, round(least * share ** (-1 / shape))) for share in shares]
    return [Arrival(dice.uniform(0, 2.5 * alone), length) for length in lengths]


def _crossing(dice: random.Random, prompt: int, alone: float) -> list[Arrival]:
    horizon = 2.5 * alone
    times = [dice.uniform(0, horizon) for _ in range(CROSSINGS)]
    return [*_chats(dice, horizon), *(Arrival(at, SHAPE.window - BEFORE, BEFORE + BEHIND) for at in times)]


WORKLOADS: Mapping[str, Callable[[random.Random, int, float], list[Arrival]]] = {
    "single": _single,
    "mixed": _mixed,
    "heavy": _heavy,
    "crossing": _crossing,
}


def serve(pipe: Connection, folder: str, setting: Setting) -> None:
    """Start an engine and report that it is ready, then answer each question with :func:`served`'s figures."""
    # Ctrl-C reaches the whole process group; the parent decides when this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "HF_HUB_OFFLINE": "1",
    }
    from vllm import EngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.llm_engine import LLMEngine

    arguments: dict[str, Any] = {
        "model": folder, "load_format": "dummy", "max_model_len": SHAPE.maximum, "skip_tokenizer_init": True,
        "enforce_eager": True, "kv_cache_memory_bytes": SHAPE.cache_bytes, "disable_log_stats": True,
        "use_tqdm_on_load": False, **setting.arguments,
    }  # fmt: skip
    if setting.ours:
        arguments = with_ladder(arguments, step_latency_target=setting.target)
    # The defaults that `vllm serve` would give it.
    engine = LLMEngine.from_engine_args(EngineArgs(**arguments), usage_context=UsageContext.OPENAI_API_SERVER)
    pipe.send(True)
    while (question := pipe.recv()) is not None:
        pipe.send(served(engine, **question))


def served(engine: Any, *, name: str, prompt: int, alone: float, seed: int) -> dict[str, Any]:
    """Run one workload until every request is answered; ``alone`` is the long prompt and nothing else.

    Returns:
        ``firsts``: seconds to the first token of every short request; ``gap``: the longest time between two tokens of a
        request; ``long``: mean seconds from arrival to last token of the prompts at least half as long as the longest;
        ``others``: the share of the cores that other processes used.
    """
    import psutil
    from vllm import SamplingParams
    from vllm.inputs import tokens_input
    from vllm.sampling_params import RequestOutputKind

    def others_seconds() -> float:
        """CPU seconds of all other processes since the machine started, including stolen time."""
        times = psutil.cpu_times()
        return float(sum(times) - times.idle - times.iowait - times.guest - times.guest_nice - time.process_time())

    coming = [Arrival(0.0, prompt, 1)] if name == "alone" else arrivals(name, prompt, alone, seed)
    # Different seeds share no prefix, so that no cache makes a later run faster.
    dice = random.Random(f"{name} {seed}")
    prompts = [dice.choices(range(3, SHAPE.vocabulary), k=arrival.prompt) for arrival in coming]
    tokens: dict[str, list[float]] = {str(i): [] for i in range(len(coming))}
    busy, wall, start = others_seconds(), time.time(), time.perf_counter()
    waiting = 0
    while waiting < len(coming) or engine.has_unfinished_requests():
        now = time.perf_counter() - start
        while waiting < len(coming) and coming[waiting].at <= now:
            arrival = coming[waiting]
            params = SamplingParams(
                temperature=0.0, max_tokens=arrival.output, ignore_eos=True, detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )  # fmt: skip
            # Scheduling by age needs the arrival time that a server would have recorded.
            engine.add_request(
                str(waiting), tokens_input(prompt_token_ids=prompts[waiting]), params, arrival_time=wall + arrival.at,
                priority=int(arrival.prompt > SHORT),
            )  # fmt: skip
            waiting += 1
        if engine.has_unfinished_requests():
            outputs, now = engine.step(), time.perf_counter() - start
            for output in outputs:
                tokens[output.request_id] += [now] * len(output.outputs[0].token_ids)
        else:
            time.sleep(max(0.0, coming[waiting].at - now))
    seconds = time.perf_counter() - start
    done = list(zip(coming, tokens.values(), strict=True))
    longest = max(arrival.prompt for arrival in coming)
    return {
        "firsts": [times[0] - arrival.at for arrival, times in done if arrival.prompt <= SHORT],
        "gap": max((b - a for _, times in done for a, b in itertools.pairwise(times)), default=0.0),
        "long": statistics.mean(times[-1] - arrival.at for arrival, times in done if 2 * arrival.prompt >= longest),
        "tokens": sum(arrival.prompt + len(times) for arrival, times in done),
        "seconds": seconds,
        "others": (others_seconds() - busy) / (seconds * (psutil.cpu_count() or 1)),
    }
