"""Which requests go to the engine with their prompt as bytes."""

import asyncio
from typing import Any

import pytest
from vllm import PoolingParams, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from ropeswitch.model_patches.serving.packed_prompt import FIELD, unpack
from ropeswitch.server.ingest.engine_messages import send_packed
from ropeswitch.server.ingest.token_ids import TokenIds


class Client:
    def __init__(self) -> None:
        self.sent: list[EngineCoreRequest] = []

    async def add_request_async(self, request: EngineCoreRequest) -> None:
        self.sent.append(request)


def sent(ids: list[int], sampling: SamplingParams | None = None, pooling: Any = None, times: int = 1) -> list[Any]:
    client = Client()
    send_packed(client)
    for _ in range(times):
        request = EngineCoreRequest(
            request_id="a", prompt_token_ids=ids, mm_features=None, sampling_params=sampling, pooling_params=pooling,
            arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
        )  # fmt: skip
        asyncio.run(client.add_request_async(request))
    return client.sent


def test_long_prompts_go_as_bytes_once() -> None:
    params = SamplingParams(extra_args={"rope_factor_set": "long"})
    first, second = sent(TokenIds([[5, 6], [7]]), params, times=2)
    assert first.prompt_token_ids == [] and FIELD in first.sampling_params.extra_args
    unpack(first)
    assert first.prompt_token_ids == second.prompt_token_ids == [5, 6, 7]
    # The parameters that the answer goes by are not those that were sent.
    assert params.extra_args == {"rope_factor_set": "long"}


@pytest.mark.parametrize("ids", [[5, 6], TokenIds([[5, 2**32]])])
def test_others_go_as_they_are(ids: list[int]) -> None:
    [request] = sent(ids, SamplingParams())
    assert request.prompt_token_ids is ids and request.sampling_params.extra_args is None


def test_pooling_has_no_place_for_bytes() -> None:
    [request] = sent(TokenIds([[5]]), pooling=PoolingParams())
    assert request.prompt_token_ids == [5]
