"""An API server's output processor without a server, for tests of metrics, log and traces."""

import time
from typing import Any

from prometheus_client import CollectorRegistry
from vllm import SamplingParams
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine import EngineCoreEvent, EngineCoreEventType, EngineCoreOutput, EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import RequestOutputCollector
from vllm.v1.engine.parallel_sampling import ParentRequest
from vllm.v1.metrics.stats import IterationStats, PrefillStats

from ropeswitch.model_patches.switch.placement import asked_placement
from ropeswitch.server.metrics.length_metrics import LengthMetrics
from ropeswitch.server.metrics.outputs import OutputWatch, WatchedOutputs
from tests.server.metrics.ladders import ladder, read, total
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20, 64)
# Its length bands.
SHORT, MIDDLE, LONG = "1-10", "11-20", "21-64"


class Server:
    """An API server process without a server, whose requests go to the engine ``engine``."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.engine = 0
        metrics = LengthMetrics(LADDER, "m", self.registry)
        self.processor = WatchedOutputs(None, log_stats=True)
        self.processor.ropeswitch = OutputWatch(engine_ladder(LADDER), metrics, lambda _: self.engine)
        self.now = 100.0

    def add(
        self,
        name: str,
        prompt: int,
        forced: str | None = None,
        parent: ParentRequest | None = None,
        policy: str | None = None,
    ) -> None:
        queue = RequestOutputCollector(RequestOutputKind.DELTA, name)
        self.processor.add_request(request(name, prompt, forced, policy), None, parent, 0, queue)

    def step(self, *outputs: EngineCoreOutput, seconds: float = 0.5) -> None:
        """One step's outputs, as ``AsyncLLM``'s output handler handles them."""
        self.now += seconds
        self.processor.process_outputs(list(outputs), self.now, IterationStats())

    def value(self, name: str, **labels: str) -> float:
        return total(read(self.registry), f"ropeswitch_{name}", **labels)

    def count(self, name: str, **labels: str) -> float:
        """The observations of a histogram."""
        return self.value(f"{name}_seconds_count", **labels)


def request(name: str, prompt: int, forced: str | None = None, policy: str | None = None) -> EngineCoreRequest:
    asked = {"rope_factor_set": forced, "rope_ladder_policy": policy}
    extra = {field: value for field, value in asked.items() if value is not None} or None
    params = SamplingParams(max_tokens=50, detokenize=False, extra_args=extra, output_kind=RequestOutputKind.DELTA)
    placement = asked_placement(engine_ladder(LADDER), params, min(prompt, 64), None)
    return EngineCoreRequest(
        request_id=name,
        external_req_id=name,
        prompt_token_ids=[5] * prompt,
        mm_features=None,
        sampling_params=placement.carried_by(params),
        pooling_params=None,
        arrival_time=time.time() - 2.0,
        lora_request=None,
        cache_salt=placement.salt,
        data_parallel_rank=None,
    )


def output(name: str, tokens: int = 1, reason: FinishReason | None = None, **more: Any) -> EngineCoreOutput:
    return EngineCoreOutput(name, [7] * tokens, finish_reason=reason, **more)


def switch(length: int) -> PrefillStats:
    """The statistics of the first output after a switch at this length (``_report_switch`` of the scheduler)."""
    stats = PrefillStats()
    stats.set(length - 1, 0, 0)
    return stats


def first(name: str, prompt: int, started: float = 100.0) -> EngineCoreOutput:
    """The first output, with the events and statistics that an engine sends with it."""
    stats = PrefillStats()
    stats.set(prompt, 0, 0)
    queued = EngineCoreEvent(EngineCoreEventType.QUEUED, started - 1.0)
    scheduled = EngineCoreEvent(EngineCoreEventType.SCHEDULED, started)
    return output(name, prefill_stats=stats, events=[queued, scheduled])
