"""A seal holds for the prompt, the factor set and the blocks that it was made for, and for nothing else."""

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.factors.factor_set import FactorLadder, FactorSet
from ropeswitch.model_patches.switch.config.settings import RopeSettings
from ropeswitch.model_patches.switch.kv.nixl_connector import (
    SEAL,
    SET,
    UNTIL,
    is_address,
    is_whole,
    prompt_digest,
    sealed,
)
from ropeswitch.model_patches.switch.set_keys import ladder_digest, set_keys

SHORT, LONG = FactorSet("short", 16, (1.0, 1.0)), FactorSet("long", 64, (1.0, 4.0))
SETTINGS = RopeSettings(FactorLadder((SHORT, LONG)), 10000.0)
KEYS = set_keys(SETTINGS)
PLACE: dict[str, Any] = {
    "remote_engine_id": "p", "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5600,
    "remote_block_ids": ([1, 2],), "tp_size": 1, "remote_num_tokens": 5,
}  # fmt: skip


def request(tokens: list[int], adapter: str | None = None, media: tuple[str, ...] = ()) -> Any:
    """What a digest reads of a ``vllm.v1.request.Request``."""
    return SimpleNamespace(
        prompt_token_ids=tokens,
        lora_request=adapter and SimpleNamespace(lora_name=adapter),
        mm_features=[SimpleNamespace(identifier=each) for each in media],
    )


PROMPT = prompt_digest(request([1, 2, 3]))

NUMBERS = ("remote_port", "tp_size", "dcp_size", "pp_size")
TEXTS = ("remote_engine_id", "remote_request_id", "remote_host")


@pytest.mark.parametrize("field", ["remote_block_ids", *NUMBERS, *TEXTS])
def test_an_address_that_upstream_cannot_read_is_none(field: str) -> None:
    assert is_address(PLACE)
    wrong = [None, {}, 5 if field in TEXTS else "5", *([] if field == "remote_block_ids" else [[1]])]
    assert not any(is_address(PLACE | {field: value}) for value in wrong)
    if field in PLACE:
        assert not is_address({name: value for name, value in PLACE.items() if name != field})


def test_a_seal_survives_json() -> None:
    assert is_whole(json.loads(json.dumps(sealed(PLACE, KEYS[0], 1.5, PROMPT))), PROMPT)


@pytest.mark.parametrize("field", [*(name for name in PLACE if name != "remote_num_tokens"), SET, UNTIL, SEAL])
@pytest.mark.parametrize("value", [None, 3, "other", [[1]], {}])
def test_a_changed_field_breaks_it(field: str, value: Any) -> None:
    whole = sealed(PLACE, KEYS[0], 1.5, PROMPT)
    assert not is_whole(whole | {field: value}, PROMPT)
    assert not is_whole({name: each for name, each in whole.items() if name != field}, PROMPT)


@pytest.mark.parametrize(
    "other",
    [request([1, 2, 4]), request([1, 2]), request([1, 2, 3], "adapter"), request([1, 2, 3], media=("image",)), request([])],
)  # fmt: skip
def test_another_prompt_breaks_it(other: Any) -> None:
    assert not is_whole(sealed(PLACE, KEYS[0], 1.5, PROMPT), prompt_digest(other))


def test_ladders_that_rotate_alike_have_one_digest() -> None:
    def digest(*sets: FactorSet) -> str:
        return ladder_digest(replace(SETTINGS, ladder=FactorLadder(sets)))

    ladder = digest(SHORT, LONG)
    assert ladder == digest(replace(SHORT, name="other"), LONG)
    assert ladder not in (digest(SHORT), digest(SHORT, replace(LONG, factors=(1.0, 4.5))))
    assert ladder not in (digest(replace(SHORT, max_length=17), LONG), digest(SHORT, replace(LONG, scale=1.1)))
    assert ladder != ladder_digest(replace(SETTINGS, angles="hf"))


def test_blocks_are_left_after_a_pause_without_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """The prefill side keeps blocks for 30 s, and longer while heartbeats come with the decode side's steps."""
    from ropeswitch.model_patches.switch.kv import nixl_connector

    connector = object.__new__(nixl_connector.NixlPullConnector)
    connector._lease, connector._last_step, connector._kept_since = 30, 0.0, 0.0
    clock = [1000.0]
    monkeypatch.setattr(nixl_connector, "time", SimpleNamespace(monotonic=lambda: clock[0]))

    def lookup(seen: float, seconds: float) -> bool:
        clock[0] += seconds
        return connector._paused_since(seen)

    # An idle engine, then one that steps while the request waits for a minute.
    seen = clock[0]
    assert not lookup(seen, 1)
    assert not any(lookup(seen, 6) for _ in range(10))
    # A pause, after which the request that came before it is too late, in later steps too; one that came in its end is not.
    assert lookup(seen, 11)
    assert lookup(seen, 1)
    assert not lookup(clock[0], 0)
    late = clock[0] + 20
    assert not lookup(late, 25)
