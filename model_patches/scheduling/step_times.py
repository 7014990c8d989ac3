"""``vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size``: wrapped to time steps for the scheduler.

replaces: nothing of the method; it is what the engine core's constructor calls first when it has its scheduler.
why: length-aware scheduling needs a latency target that suits the hardware, and a first idea of what a step costs.
what differs: the workers time upstream's own warm-up steps of one token and of many, which the scheduler starts from. The
    engine core gets the utility ``scheduling_report``, which server/scheduling_metrics.py calls by its name.
limits: those steps have no context; what attention costs is learnt from the requests.
when it can go: when vLLM's scheduler is told how long steps take.
"""

import time
from collections.abc import Callable
from typing import Any

import torch

# Ever longer steps are tried until one takes so long that it tells what a token costs.
ENOUGH_SECONDS = 0.2
FIRST_TOKENS = 64
# What engines try that must all try the same.
SAME_TOKENS = 256
# The fastest counts: what else the machine does is not the model's.
REPEATS = 7


def time_step(worker: Any, tokens: int) -> float:
    """Run and time a warm-up step; all ranks of an engine must do so together.

    Args:
        worker: An upstream worker, ready to serve.
        tokens: The step's tokens.

    Returns:
        Seconds, without those of a first run, which may compile or load something.
    """
    synchronize = torch.cuda.synchronize if worker.device.type == "cuda" else lambda: None
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    start = time.perf_counter()
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    return time.perf_counter() - start


def measure(step: Callable[[int], float], most: int, together: bool) -> list[tuple[int, float]]:
    """Steps of one token and of many, as (tokens, seconds).

    Args:
        step: Runs a step of so many tokens and gives its seconds.
        most: The most tokens of a step.
        together: Whether other engines measure the same steps and wait for each other in them, as data parallel ones do.
    """
    found = [(1, min(step(1) for _ in range(REPEATS)))]
    if together:
        return [found[0], (min(SAME_TOKENS, most), step(min(SAME_TOKENS, most)))]
    tokens = FIRST_TOKENS
    while found[-1][1] < ENOUGH_SECONDS and found[-1][0] < most:
        found.append((min(tokens, most), step(min(tokens, most))))
        tokens *= 2
    return [found[0], found[-1]]


def telling_scheduler(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
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
