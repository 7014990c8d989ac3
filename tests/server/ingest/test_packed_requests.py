"""Which requests go to the engine with their prompt as bytes."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import PoolingParams, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.output_processor import OutputProcessor, RequestOutputCollector

from ropeswitch.model_patches.serving.packed_prompt import FIELD, unpack
from ropeswitch.server.ingest.token_ids import TokenIds
from ropeswitch.server.length_metrics.start import start
from tests.server.length_metrics.processor import LADDER


class Core:
    """An engine that keeps what it is sent."""

    def __init__(self) -> None:
        self.sent: list[EngineCoreRequest] = []

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.sent.append(request)


def sent(ids: list[int], sampling: SamplingParams | None = None, pooling: Any = None, times: int = 1) -> AsyncLLM:
    """An engine client that has been given the same prompt so many times."""
    client: Any = AsyncLLM.__new__(AsyncLLM)
    client.output_processor, client.engine_core = OutputProcessor(None, log_stats=False), Core()
    client.logger_manager, client.log_requests = None, False
    client.scheduler_config = SimpleNamespace(max_num_queued_reqs=None, max_num_queued_tokens=None)
    client.shutdown = lambda: None
    start(client, LADDER)
    for index in range(times):
        request = EngineCoreRequest(
            request_id=str(index), external_req_id="a", prompt_token_ids=ids, mm_features=None, sampling_params=sampling,
            pooling_params=pooling, arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
        )  # fmt: skip
        queue = RequestOutputCollector((sampling or pooling).output_kind, request.request_id)
        asyncio.run(client._add_request(request, None, None, 0, queue))
    return client


def test_long_prompts_go_as_bytes_once() -> None:
    params = SamplingParams(extra_args={"rope_factor_set": "long"}, detokenize=False)
    client = sent(TokenIds([[5, 6], [7]]), params, times=2)
    first, second = client.engine_core.sent
    assert first.prompt_token_ids == [] and FIELD in first.sampling_params.extra_args
    unpack(first)
    assert first.prompt_token_ids == second.prompt_token_ids == [5, 6, 7]
    # The parameters that the answer goes by are not those that were sent, and its side keeps the numbers.
    assert params.extra_args == {"rope_factor_set": "long"}
    assert [state.prompt_token_ids for state in client.output_processor.request_states.values()] == [[5, 6, 7]] * 2


@pytest.mark.parametrize("ids", [[5, 6], TokenIds([[5, 2**32]])])
def test_others_go_as_they_are(ids: list[int]) -> None:
    [request] = sent(ids, SamplingParams(detokenize=False)).engine_core.sent
    assert request.prompt_token_ids is ids and request.sampling_params.extra_args is None


def test_pooling_has_no_place_for_bytes() -> None:
    [request] = sent(TokenIds([[5]]), pooling=PoolingParams()).engine_core.sent
    assert request.prompt_token_ids == [5]
