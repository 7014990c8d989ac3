"""Prompts that travel as bytes arrive as they were, and what else is in a message stays."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.serial_utils import MsgpackDecoder, MsgpackEncoder

from ropeswitch.model_patches.serving.packed_prompt import FIELD, packed, unpack
from ropeswitch.server.ingest.token_ids import TokenIds


def received(params: Any, ids: Any) -> EngineCoreRequest:
    """A request as an engine core decodes it."""
    request = EngineCoreRequest(
        request_id="a", prompt_token_ids=ids, mm_features=None, sampling_params=params, pooling_params=None,
        arrival_time=0.0, lora_request=None, cache_salt=None, data_parallel_rank=None,
    )  # fmt: skip
    decoded: EngineCoreRequest = MsgpackDecoder(EngineCoreRequest).decode(MsgpackEncoder().encode(request))
    return decoded


@given(st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=50), st.sampled_from([1, 3000]))
def test_a_prompt_arrives(prompt: list[int], times: int) -> None:
    ids = TokenIds([prompt] * times)
    assert ids.packed is not None
    params = SamplingParams(temperature=0.5, extra_args={"rope_factor_set": "long"})
    request = received(packed(params, ids.packed), [])
    unpack(request)
    assert request.prompt_token_ids == prompt * times
    assert request.sampling_params == params and params.extra_args == {"rope_factor_set": "long"}


def test_parameters_that_had_none() -> None:
    request = received(packed(SamplingParams(), b"\x05\0\0\0"), [])
    unpack(request)
    assert request.prompt_token_ids == [5] and request.sampling_params.extra_args is None


@pytest.mark.parametrize("value", ["text", 7, [1, 2]])
def test_what_a_client_puts_there_stays_there(value: Any) -> None:
    params = SamplingParams(extra_args={FIELD: value})
    request = received(params, [5, 6])
    unpack(request)
    assert request.prompt_token_ids == [5, 6] and request.sampling_params.extra_args == {FIELD: value}
