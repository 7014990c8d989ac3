"""The one decision: which set a request is in."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import PoolingParams, SamplingParams
from vllm.exceptions import VLLMValidationError

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch import parts
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.engine.preprocess_add_request import assigning
from ropeswitch.model_patches.switch.engine.process_inputs import reading_filled_in_limits, reading_sets
from ropeswitch.model_patches.switch.engine_args import checked_max_model_len
from ropeswitch.model_patches.switch.placement import (
    EngineLadder,
    SetRule,
    asked_policy,
    forced_set,
    set_for,
    wanted_set,
)
from ropeswitch.model_patches.switch.set_keys import salt_of, set_keys

# The parts of an engine that another server than ours serves.
PLUGIN = tuple(name for name in parts.PARTS if name != parts.SERVER)
LADDER = FactorLadder.checked(
    [{"name": f"s{n}", "max_length": n, "factors": [1.0, 2.0], "start_tokens": n // 8} for n in (8, 16, 64)]
)


@given(st.integers(0, 64))
def test_the_first_set_that_is_long_enough(length: int) -> None:
    index = set_for(LADDER, length, None)
    assert length <= LADDER.sets[index].max_length
    assert index == 0 or length > LADDER.sets[index - 1].max_length


def test_beyond_the_ladder_and_unknown_names_are_errors() -> None:
    with pytest.raises(FactorError, match="65 tokens is longer than the factor ladder's end, 64"):
        set_for(LADDER, 65, None)
    with pytest.raises(FactorError, match="unknown factor set 'x'; this server has 's8', 's16', 's64'"):
        set_for(LADDER, 3, "x")
    assert set_for(LADDER, 65, "s8") == 0


@pytest.mark.parametrize("value", [1, ["s8"], {"a": 1}, True])
def test_a_forced_set_is_a_name(value: object) -> None:
    with pytest.raises(FactorError, match=r"vllm_xargs\.rope_factor_set"):
        forced_set(SimpleNamespace(extra_args={"rope_factor_set": value}))


def test_settings_survive_the_trip_to_a_worker() -> None:
    settings = RopeSettings(LADDER, 5e5, "hf", policy="reserve")
    assert RopeSettings.from_json(settings.to_json()) == settings


def test_the_ladders_end_limits_the_model() -> None:
    assert checked_max_model_len(None, LADDER) == 64
    assert checked_max_model_len(-1, LADDER) == -1
    assert checked_max_model_len(30, LADDER) == 30
    with pytest.raises(FactorError, match="--max-model-len: 65 exceeds 64, where the last factor set, 's64', ends"):
        checked_max_model_len(65, LADDER)


@pytest.mark.parametrize("cached", [True, False])
def test_a_set_is_decided_before_the_scheduler_sees_the_request(cached: bool) -> None:
    """With a prefix cache and without; an unknown set raises here, where upstream ends that request alone."""
    settings = RopeSettings(LADDER, 1e4)
    engine = SimpleNamespace(
        request_block_hasher=(lambda request: [request.cache_salt]) if cached else None,
        vllm_config=SimpleNamespace(
            additional_config={"ropeswitch": settings.to_json()},
            model_config=SimpleNamespace(max_model_len=64),
        ),
        scheduler=SimpleNamespace(ladder=EngineLadder.of(settings, 64)),
    )

    def upstream(self: Any, message: Any) -> Any:
        return message, self.request_block_hasher(message)

    def message(num_tokens: int, forced: str | None) -> Any:
        params = SimpleNamespace(extra_args={"rope_factor_set": forced} if forced else None, max_tokens=50)
        return SimpleNamespace(
            num_tokens=num_tokens, num_prompt_tokens=num_tokens, sampling_params=params, cache_salt="alice"
        )

    for _ in range(2):
        made, hashes = assigning(upstream)(engine, message(9, None))
        assert made.rope_set == LADDER.index_for(9) > 0 and hashes == ([made.cache_salt] if cached else [])
        assert made.cache_salt == salt_of(set_keys(settings)[made.rope_set], "alice")
        with pytest.raises(FactorError, match="unknown factor set 'nope'"):
            assigning(upstream)(engine, message(9, "nope"))


def request(prompt: int, generated: int, max_tokens: int | None, **extra: Any) -> Any:
    params = SimpleNamespace(extra_args=extra or None, max_tokens=max_tokens)
    return SimpleNamespace(num_tokens=prompt + generated, num_prompt_tokens=prompt, sampling_params=params)


@given(
    prompt=st.integers(1, 64),
    max_tokens=st.integers(1, 200),
    generated=st.integers(0, 63),
    most=st.integers(1, 64),
    default=st.sampled_from(["length", "reserve"]),
    asked=st.sampled_from([None, "length", "reserve"]),
)
def test_reserve_is_the_set_of_prompt_and_limit_and_never_changes(
    prompt: int, max_tokens: int, generated: int, most: int, default: str, asked: str | None
) -> None:
    """Up to the longest sequence, whatever has been generated; a request's own policy comes before the engine's."""
    prompt = min(prompt, most)
    generated = min(generated, max_tokens, most - prompt)
    rule = SetRule(LADDER, default, most)
    extra = {} if asked is None else {"rope_ladder_policy": asked}
    index = wanted_set(request(prompt, generated, max_tokens, **extra), rule)
    if (asked or default) == "reserve":
        assert index == LADDER.index_for(min(prompt + max_tokens, most))
    else:
        assert index == LADDER.index_for(prompt + generated)
    assert wanted_set(request(prompt, generated, max_tokens, rope_factor_set="s64"), rule) == 2


def test_reserve_never_moves_a_session_down_and_pooling_goes_by_length() -> None:
    rule = SetRule(LADDER, "reserve")
    chunk = request(5, 0, 2)
    assert wanted_set(chunk, rule) == 0
    chunk.rope_set = 1
    assert wanted_set(chunk, rule) == 1
    # A session may have grown beyond what its chunk reserves.
    assert wanted_set(request(5, 20, 2), rule) == 2
    assert (
        wanted_set(SimpleNamespace(num_tokens=5, num_prompt_tokens=5, sampling_params=None, pooling_params=None), rule)
        == 0
    )


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"rope_ladder_policy": "longest"}, "rope_ladder_policy: 'longest' must be one of length, reserve"),
        ({"rope_ladder_policy": 1}, "rope_ladder_policy: 1 must be one of length, reserve"),
        ({"rope_ladder_policy": ["reserve"]}, "must be one of length, reserve"),
        (
            {"rope_ladder_policy": "length", "rope_factor_set": "s8"},
            "'length' cannot be combined with vllm_xargs.rope_factor_set, which keeps the request in one set",
        ),
    ],
)
def test_a_wrong_policy_is_an_error(extra: dict[str, Any], message: str) -> None:
    with pytest.raises(FactorError, match=message):
        asked_policy(SimpleNamespace(extra_args=extra))


@pytest.mark.parametrize("default", ["length", "reserve"])
@pytest.mark.parametrize(
    ("prompt", "max_tokens", "llm", "http"),
    [
        (5, 9, "reserve", "reserve"),
        (5, None, "length", "length"),
        # Named by the user of `LLM`, filled in by a server's handler, or longer than the context.
        (5, 59, "reserve", "length"),
        (5, 100, "reserve", "reserve"),
    ],
)
def test_a_request_without_an_output_limit_goes_by_length(
    default: str, prompt: int, max_tokens: int | None, llm: str, http: str
) -> None:
    """Whether the engine's policy or its own is ``reserve``; the user's parameters stay as they are."""
    processor = SimpleNamespace(
        vllm_config=SimpleNamespace(
            additional_config={"ropeswitch": RopeSettings(LADDER, 1e4, policy=default, parts=PLUGIN).to_json()},
            model_config=SimpleNamespace(max_model_len=64),
        )
    )

    def upstream(self: Any, request_id: str, prompt: list[int], params: SamplingParams) -> Any:
        params = params.clone()
        params.max_tokens = 64 - len(prompt) if params.max_tokens is None else params.max_tokens
        return SimpleNamespace(prompt_token_ids=prompt, sampling_params=params)

    rule = SetRule(LADDER, default, 64)
    for wrap, policy in ((reading_sets, llm), (reading_filled_in_limits, http)):
        for asked in (None, "reserve"):
            extra = None if asked is None else {"rope_ladder_policy": asked}
            params = SamplingParams(max_tokens=max_tokens, extra_args=extra)
            made = wrap(upstream)(processor, "r", [1] * prompt, params)
            expected = policy if asked or default == "reserve" else "length"
            assert rule.policy_of(made.sampling_params) == expected
            assert (params.max_tokens, params.extra_args) == (max_tokens, extra)


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"rope_factor_set": "nope"}, "rope_factor_set"),
        ({"rope_ladder_policy": "nope"}, "rope_ladder_policy"),
        ({"rope_ladder_policy": "reserve", "rope_factor_set": "s8"}, "rope_ladder_policy"),
    ],
)
def test_plain_vllm_raises_its_validation_error(extra: dict[str, Any], field: str) -> None:
    config = SimpleNamespace(additional_config={"ropeswitch": RopeSettings(LADDER, 1e4, parts=PLUGIN).to_json()})
    with pytest.raises(VLLMValidationError, match=f"vllm_xargs.{field}: ") as raised:
        reading_sets(lambda *_: pytest.fail("passed on"))(
            SimpleNamespace(vllm_config=config), "r", [1], SamplingParams(extra_args=extra)
        )
    assert raised.value.parameter == f"vllm_xargs.{field}"


def test_stock_engines_those_of_our_server_and_pooling_pass() -> None:
    def passes(params: Any, **key: Any) -> bool:
        processor = SimpleNamespace(vllm_config=SimpleNamespace(additional_config=key))
        return reading_sets(lambda *_: "passed")(processor, "r", [1], params) == "passed"

    wrong = SamplingParams(extra_args={"rope_factor_set": "nope"})
    assert passes(wrong)
    assert passes(wrong, ropeswitch=RopeSettings(LADDER, 1e4).to_json())
    assert passes(PoolingParams(), ropeswitch=RopeSettings(LADDER, 1e4, policy="reserve", parts=PLUGIN).to_json())


def test_a_prefill_reserves_for_the_answer_that_the_decode_engine_will_give() -> None:
    rule = SetRule(LADDER, "reserve", 64)

    def index(prompt: int, **transfer: Any) -> int:
        return rule.index(SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": transfer}), prompt, prompt)

    assert index(6, do_remote_decode=True) == 0
    assert index(6, do_remote_decode=True, rope_max_tokens=3) == 1
    assert index(6, do_remote_decode=True, rope_max_tokens=500) == 2
    # The decode side's own limit counts there.
    assert index(6, do_remote_prefill=True, rope_max_tokens=3) == 0
    for wrong in (0, -1, "3", 1.5, True):
        with pytest.raises(
            FactorError, match=r"kv_transfer_params.rope_max_tokens: .* must be a number of tokens above 0"
        ):
            index(6, do_remote_decode=True, rope_max_tokens=wrong)
