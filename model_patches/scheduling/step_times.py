"""``vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size``: wrapped to measure steps for the scheduler.

replaces: nothing of the method; the engine core's constructor calls it first after making its scheduler.
why: length-aware scheduling needs a latency target that suits the hardware, and a first estimate of step times.
what differs: the workers time upstream's own warm-up steps of one token and of many, and the scheduler is calibrated. The
    engine core gets the utility ``scheduling_report``, which server/scheduling_metrics.py calls by its name.
limits: those steps have no context; the cost of attention is learnt from requests.
when it can go: when vLLM gives its scheduler measured step times.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

# Longer steps are tried until one takes this many seconds: long enough to derive the cost of a token.
ENOUGH_SECONDS = 0.2
FIRST_TOKENS = 64
# Tokens of the long step where several engines must run the same steps.
SAME_TOKENS = 256
# Measurements of the one-token step; the fastest counts, as slower ones include other work of the machine.
REPEATS = 7


def time_step(worker: Any, tokens: int) -> float:
    """Run and time a warm-up step; all ranks of an engine must do so together.

    Args:
        worker: An upstream worker, ready to serve.
        tokens: The step's tokens.

    Returns:
        Seconds of the second run; the first may compile or load something.
    """
    synchronize = torch.cuda.synchronize if worker.device.type == "cuda" else lambda: None
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    start = time.perf_counter()
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    return time.perf_counter() - start


def measure(step: Callable[[int], float], most: int, together: bool) -> list[tuple[int, float]]:
    """Measure a step of one token and one of many, as (tokens, seconds).

    Args:
        step: Runs a step of the given number of tokens and returns its seconds.
        most: Maximum tokens per step.
        together: Whether data parallel engines run these steps together and wait for each other.
    """
    found = [(1, min(step(1) for _ in range(REPEATS)))]
    if together:
        return [found[0], (min(SAME_TOKENS, most), step(min(SAME_TOKENS, most)))]
    tokens = FIRST_TOKENS
    while found[-1][1] < ENOUGH_SECONDS and found[-1][0] < most:
        found.append((min(tokens, most), step(min(tokens, most))))
        tokens *= 2
    return [found[0], found[-1]]


def calibrating_scheduler(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``EngineCore._initialize_effective_attention_block_size``."""

    def initialize(self: Any) -> None:
        upstream(self)
        if (length_aware := getattr(self.scheduler, "length_aware", None)) is not None:
            most = self.vllm_config.scheduler_config.max_num_batched_tokens
            together = self.vllm_config.parallel_config.data_parallel_size > 1

            def slowest(tokens: int) -> float:
                return float(max(self.model_executor.collective_rpc(time_step, args=(tokens,))))

            self.scheduler.calibrate(measure(slowest, most, together))
            self.scheduling_report = length_aware.report

    return initialize
