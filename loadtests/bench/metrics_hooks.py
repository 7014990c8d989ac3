"""Times the hooks of the metrics by length alone: vLLM's output processor in this process, with and without them."""

import time
from typing import Any

from prometheus_client import CollectorRegistry
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.placement import EngineLadder, place
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import OutputWatch, WatchedOutputs

PROMPT = 100
LADDER = EngineLadder.of(
    RopeSettings(FactorLadder((FactorSet("short", 256, (1.0,)), FactorSet("long", 1024, (2.0,)))), 1e4)
)


def measure(streams: int, tokens: int, rounds: int) -> tuple[list[float], list[float]]:
    """Return the CPU microseconds per token of each round, without the hooks and with them.

    Args:
        streams: Number of requests; each gets one token per step.
        tokens: Output tokens per request.
        rounds: Measured rounds per side.
    """
    metrics = LengthMetrics(LADDER.sets, "model", CollectorRegistry())
    watched = WatchedOutputs(None, log_stats=True)
    watched.ropeswitch = OutputWatch(LADDER, metrics, lambda _: 0)
    bare = OutputProcessor(None, log_stats=True)
    sides = (bare, watched)
    results: dict[int, list[float]] = {0: [], 1: []}
    for turn in range(rounds + 1):
        for side in (0, 1) if turn % 2 == 0 else (1, 0):
            seconds = _serve(sides[side], streams, tokens)
            if turn:
                results[side].append(seconds / (streams * tokens) * 1e6)
    return results[0], results[1]


def _serve(processor: Any, streams: int, tokens: int) -> float:
    requests, names = [_request(str(index)) for index in range(streams)], range(streams)
    steps = [[_first(str(index)) for index in names]]
    steps += [[EngineCoreOutput(str(index), [7]) for index in names] for _ in range(tokens - 2)]
    steps += [[EngineCoreOutput(str(index), [7], finish_reason=FinishReason.LENGTH) for index in names]]
    started, now = time.thread_time(), time.monotonic()
    for request in requests:
        queue = RequestOutputCollector(RequestOutputKind.DELTA, request.request_id)
        processor.add_request(request, None, None, 0, queue)
    for outputs in steps:
        now += 0.02
        processor.process_outputs(outputs, now, IterationStats())
    return time.thread_time() - started


def _request(name: str) -> EngineCoreRequest:
    params = SamplingParams(max_tokens=1, detokenize=False, output_kind=RequestOutputKind.DELTA)
    params = place(LADDER, PROMPT).carried_by(params)
    return EngineCoreRequest(
        request_id=name, external_req_id=name, prompt_token_ids=[5] * PROMPT, mm_features=None, sampling_params=params,
        pooling_params=None, arrival_time=time.time(), lora_request=None, cache_salt=None, data_parallel_rank=None,
    )  # fmt: skip


def _first(name: str) -> EngineCoreOutput:
    stats, now = PrefillStats(), time.monotonic()
    stats.set(PROMPT, 0, 0)
    events = [EngineCoreEvent(each, now) for each in (EngineCoreEventType.QUEUED, EngineCoreEventType.SCHEDULED)]
    return EngineCoreOutput(name, [7], prefill_stats=stats, events=events)
