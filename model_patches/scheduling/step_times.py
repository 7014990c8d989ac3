"""``vllm.v1.engine.core.EngineCore._initialize_effective_attention_block_size``: wrapped for the scheduler and the server.

replaces: nothing in the method; the engine core's constructor calls it first after making its scheduler.
why: length-aware scheduling needs a latency target that suits the hardware, and a first estimate of step times. A server
    shows how far a prompt is, which only the scheduler knows.
what differs: the workers time upstream's own warm-up steps, of one token and of many, to calibrate the scheduler. The
    engine core gets the utilities ``scheduling_report`` and ``prefill_progress``, which the server calls by name.
limits: the timed steps have no context; the cost of attention is learnt from requests. On GPUs each also runs once before
    upstream starts watching for kernels compiled while serving (``switch/engine/gpu_worker.py``).
when it can go: when vLLM gives its scheduler measured step times.
"""

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from vllm.config import CUDAGraphMode, VllmConfig

# Longer steps are tried until one takes this many seconds: long enough to derive the cost of a token.
ENOUGH_SECONDS = 0.2
FIRST_TOKENS = 64
# Tokens in the long step if several engines must run the same steps.
SAME_TOKENS = 256
# Measurements of the one-token step; the fastest counts, as slower ones include other work on the machine.
REPEATS = 7


def long_steps(vllm_config: VllmConfig) -> list[int]:
    """Return the token counts of the long steps to try, shortest first, until one takes long enough."""
    scheduler = vllm_config.scheduler_config
    # Upstream's step shares its tokens among all sequences; one longer than allowed would read past its block table.
    longest = scheduler.max_num_seqs * vllm_config.model_config.max_model_len
    most = min(scheduler.max_num_batched_tokens, longest)
    if vllm_config.parallel_config.data_parallel_size > 1:
        # Data parallel engines run these steps together and wait for each other.
        return [min(SAME_TOKENS, most)]
    found = [FIRST_TOKENS]
    while found[-1] < most:
        found.append(2 * found[-1])
    return [min(tokens, most) for tokens in found]


def run_every_step(worker: Any) -> None:
    """Run every step that may be timed, without CUDA graphs, as none is captured yet; all ranks must call it together."""
    for tokens in (1, *long_steps(worker.vllm_config)):
        worker.model_runner._dummy_run(tokens, skip_eplb=True, cudagraph_runtime_mode=CUDAGraphMode.NONE)


def time_step(worker: Any, tokens: int) -> float:
    """Run a warm-up step twice, as the first may compile or load something, and return the second's seconds.

    All ranks of an engine must call it together.
    """
    synchronize = torch.cuda.synchronize if worker.device.type == "cuda" else lambda: None
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    start = time.perf_counter()
    worker.model_runner._dummy_run(tokens, skip_eplb=True)
    synchronize()
    return time.perf_counter() - start


def measure(step: Callable[[int], float], steps: Sequence[int]) -> list[tuple[int, float]]:
    """Measure a step of one token and one of many, tried shortest first, as (tokens, seconds).

    ``step`` runs a step of the given number of tokens and returns its duration in seconds.
    """
    one = longest = (1, min(step(1) for _ in range(REPEATS)))
    for tokens in steps:
        longest = (tokens, step(tokens))
        if longest[1] >= ENOUGH_SECONDS:
            break
    return [one, longest]


def calibrating_scheduler(upstream: Callable[[Any], None]) -> Callable[[Any], None]:
    """Wrap ``EngineCore._initialize_effective_attention_block_size``."""

    def initialize(self: Any) -> None:
        upstream(self)
        self.prefill_progress = partial(prefill_progress, self.scheduler)
        if (length_aware := getattr(self.scheduler, "length_aware", None)) is not None:

            def slowest(tokens: int) -> float:
                return float(max(self.model_executor.collective_rpc(time_step, args=(tokens,))))

            self.scheduler.calibrate(measure(slowest, long_steps(self.vllm_config)))
            self.scheduling_report = lambda: length_aware.report(self.scheduler.running)

    return initialize


def prefill_progress(
    scheduler: Any, request_ids: Sequence[str], predicts: bool = False
) -> dict[str, tuple[int, int, float | None]]:
    """Return for each known request its prompt tokens computed or scheduled, those cached, and the others' seconds.

    The seconds are None under upstream's order, and unless ``predicts``, which takes a multiple of the time.
    """
    length_aware = getattr(scheduler, "length_aware", None) if predicts else None
    found = {}
    for request_id in request_ids:
        if (request := scheduler.requests.get(request_id)) is not None:
            # Upstream drops these statistics at the first token.
            cached = request.prefill_stats.num_cached_tokens if request.prefill_stats is not None else 0
            processed = min(request.num_computed_tokens, request.num_prompt_tokens)
            seconds = None if length_aware is None else length_aware.prefill_seconds(request)
            found[request_id] = processed, cached, seconds
    return found
