"""The one decision: which set a request is in."""

from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.engine_args import checked_max_model_len
from ropeswitch.model_patches.switch.preprocess_add_request import assigning
from ropeswitch.model_patches.switch.request_set import forced_set, set_for
from ropeswitch.model_patches.switch.settings import RopeSettings

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
    settings = RopeSettings(LADDER, 5e5, "hf")
    assert RopeSettings.from_json(settings.to_json()) == settings


def test_the_ladders_end_limits_the_model() -> None:
    assert checked_max_model_len(None, LADDER) == 64
    assert checked_max_model_len(-1, LADDER) == -1
    assert checked_max_model_len(30, LADDER) == 30
    with pytest.raises(FactorError, match="max_model_len: 65 exceeds 64, where the last factor set, 's64', ends"):
        checked_max_model_len(65, LADDER)


@pytest.mark.parametrize("cached", [True, False])
def test_a_set_is_decided_before_the_scheduler_sees_the_request(cached: bool) -> None:
    """With a prefix cache and without; an unknown set raises here, where upstream ends that request alone."""
    engine = SimpleNamespace(
        request_block_hasher=(lambda request: [request.rope_set]) if cached else None,
        vllm_config=SimpleNamespace(additional_config={"ropeswitch": RopeSettings(LADDER, 1e4).to_json()}),
    )

    def upstream(self: Any, message: Any) -> Any:
        return message, self.request_block_hasher(message)

    def message(num_tokens: int, forced: str | None) -> Any:
        params = SimpleNamespace(extra_args={"rope_factor_set": forced} if forced else None)
        return SimpleNamespace(num_tokens=num_tokens, sampling_params=params)

    for _ in range(2):
        made, hashes = assigning(upstream)(engine, message(9, None))
        assert made.rope_set == LADDER.index_for(9) > 0 and hashes == ([made.rope_set] if cached else [])
        with pytest.raises(FactorError, match="unknown factor set 'nope'"):
            assigning(upstream)(engine, message(9, "nope"))
