"""Workloads of the scheduling benchmark: send requests to one engine and record when each token arrives.

The engine is driven step by step in its own process, without HTTP or a second process, so that it has the machine's cores to
itself. A request is added at the first step after its intended arrival; its times count from that arrival.
"""

import itertools
import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import psutil
from vllm import SamplingParams
from vllm.inputs import tokens_input
from vllm.sampling_params import RequestOutputKind

from ropeswitch.loadtests.scheduling.arrivals import BEFORE, BEHIND, CROSSINGS, SHORT, arrivals
from ropeswitch.loadtests.scheduling.settings import VOCABULARY, WINDOW
from ropeswitch.model_patches.switch.config.settings import LADDER_POLICY


@dataclass
class TimedRequest:
    """One request: its intended arrival and the time of each token, in seconds since the run's start."""

    arrival: float
    prompt: int
    times: list[float] = field(default_factory=list)
    finished: bool = False

    @property
    def ttft(self) -> float:
        return self.times[0] - self.arrival


class Run:
    """Drives one engine and records every request's times.

    Args:
        engine: ``vllm.v1.engine.llm_engine.LLMEngine``, idle.
    """

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.requests: dict[str, TimedRequest] = {}
        self._busy = _others_seconds()
        self._wall, self._start = time.time(), time.perf_counter()

    def now(self) -> float:
        return time.perf_counter() - self._start

    def add(
        self, name: str, prompt: list[int], output: int, arrival: float = 0.0, priority: int = 0,
        policy: str | None = None,
    ) -> TimedRequest:  # fmt: skip
        params = SamplingParams(
            extra_args=policy and {LADDER_POLICY: policy},
            temperature=0.0,
            max_tokens=output,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        # Scheduling by age needs the arrival time that a server would have recorded.
        self._engine.add_request(
            name, tokens_input(prompt_token_ids=prompt), params, arrival_time=self._wall + arrival, priority=priority
        )
        self.requests[name] = TimedRequest(arrival, len(prompt))
        return self.requests[name]

    def step(self) -> None:
        outputs = self._engine.step()
        now = self.now()
        for output in outputs:
            request = self.requests[output.request_id]
            request.times += [now] * len(output.outputs[0].token_ids)
            request.finished = output.finished

    def finish(self) -> None:
        """Step until every request has all its tokens."""
        while self._engine.has_unfinished_requests():
            self.step()

    def total(self) -> dict[str, float]:
        """Return totals so far: prompt and output tokens, seconds, and the share of the cores used by other processes."""
        tokens = sum(request.prompt + len(request.times) for request in self.requests.values())
        seconds = self.now()
        others = (_others_seconds() - self._busy) / (seconds * psutil.cpu_count())
        return {"tokens": tokens, "seconds": seconds, "others": others}


def _others_seconds() -> float:
    """CPU seconds of all other processes since the machine started, including stolen time."""
    times = psutil.cpu_times()
    return sum(times) - times.idle - times.iowait - times.guest - times.guest_nice - time.process_time()


class Prompts:
    """Random prompts; different seeds share no prefix, so that no cache makes a later run faster."""

    def __init__(self, seed: int | str) -> None:
        self._random = random.Random(seed)

    def make(self, tokens: int) -> list[int]:
        return self._random.choices(range(3, VOCABULARY), k=tokens)


def served(engine: Any, *, name: str, prompt: int, alone: float, seed: int) -> dict[str, Any]:
    """Run one workload of the front (``arrivals.py``) until every request is answered.

    Args:
        engine: ``vllm.v1.engine.llm_engine.LLMEngine``, idle.
        name: The workload.
        prompt: Tokens of the longest prompt.
        alone: Seconds that this prompt takes alone.
        seed: Random seed for lengths, times and prompts.

    Returns:
        ``firsts``: seconds to the first token of every short request; ``gap``: the longest time between two tokens of a
        request; ``long``: mean seconds from arrival to last token of the prompts at least half as long as the longest;
        ``tokens`` and ``seconds``.
    """
    prompts = Prompts(f"{name} {seed}")
    coming = [(arrival, prompts.make(arrival.prompt)) for arrival in arrivals(name, prompt, alone, seed)]
    run = Run(engine)
    for i, (arrival, tokens) in enumerate(coming):
        while run.now() < arrival.at:
            if engine.has_unfinished_requests():
                run.step()
            else:
                time.sleep(max(0.0, arrival.at - run.now()))
        run.add(str(i), tokens, arrival.output, arrival.at, int(arrival.prompt > SHORT))
    run.finish()
    done = list(run.requests.values())
    longest = max(request.prompt for request in done)
    return {
        "firsts": [request.ttft for request in done if request.prompt <= SHORT],
        "gap": max(b - a for request in done for a, b in itertools.pairwise(request.times)),
        "long": statistics.mean(each.times[-1] - each.arrival for each in done if 2 * each.prompt >= longest),
        **run.total(),
    }


def exactness(engine: Any, *, policy: str | None, again: bool, seed: int) -> dict[str, Any]:
    """Run requests that cross the limit while decoding, all at once.

    Args:
        engine: ``vllm.v1.engine.llm_engine.LLMEngine``, idle.
        policy: ``rope_ladder_policy`` of the requests; None for stock.
        again: Whether to prefill as many other prompts of limit + 1 tokens at the end: the recomputation by itself.
        seed: Random seed for the prompts.

    Returns:
        ``recomputed``: tokens computed in addition to those of prompts and answers; ``long``: mean seconds to a crossing
        request's last token; ``gap``: the longest time between two of its tokens; ``tokens`` and ``seconds``.
    """
    prompts = Prompts(f"{policy} {again} {seed}")
    scheduler = engine.engine_core.engine_core.scheduler
    plan, planned = scheduler.schedule, []

    def counting(*args: Any) -> Any:
        output = plan(*args)
        planned.append(output.total_num_scheduled_tokens)
        return output

    scheduler.schedule = counting
    run = Run(engine)
    crossing = [
        run.add(f"crossing {i}", prompts.make(WINDOW - BEFORE), BEFORE + BEHIND, policy=policy)
        for i in range(CROSSINGS)
    ]
    run.finish()
    # The token that outgrows the set is computed together with all before it.
    extra = [run.add(f"again {i}", prompts.make(WINDOW + 1), 1, run.now()) for i in range(CROSSINGS) if again]
    run.finish()
    del scheduler.schedule
    needed = sum(request.prompt + len(request.times) - 1 for request in crossing)
    assert all(request.finished for request in extra)
    return {
        "recomputed": sum(planned) - needed,
        "long": statistics.mean(request.times[-1] for request in crossing),
        "gap": max(b - a for request in crossing for a, b in itertools.pairwise(request.times)),
        **run.total(),
    }


def alone(engine: Any, *, prompt: int, seed: int) -> dict[str, Any]:
    """Run one long prompt alone; ``long`` is the seconds to its first token."""
    long_prompt = Prompts(seed).make(prompt)
    run = Run(engine)
    long = run.add("long", long_prompt, 1)
    run.finish()
    return {"long": long.ttft, **run.total()}


WORKLOADS: dict[str, Callable[..., dict[str, Any]]] = {
    "served": served,
    "exactness": exactness,
    "alone": alone,
}
