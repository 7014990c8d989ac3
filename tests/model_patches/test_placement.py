"""The one decision: which set a request is in."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import PoolingParams, SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs
from vllm.exceptions import VLLMValidationError
from vllm.v1.engine.input_processor import InputProcessor

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.model_patches.switch.config.settings import PLACEMENT, POLICIES, RopeSettings, settings_of
from ropeswitch.model_patches.switch.engine import patching
from ropeswitch.model_patches.switch.engine.process_inputs import placing
from ropeswitch.model_patches.switch.engine_args import configure_from_key
from ropeswitch.model_patches.switch.placement import (
    EngineLadder,
    Placement,
    asked_placement,
    carried_index,
    place,
    placement_of,
    salt_of,
)
from ropeswitch.model_patches.switch.set_keys import set_keys
from ropeswitch.models import BUNDLED_FACTORS, BUNDLED_MODEL

LADDER = FactorLadder.checked(
    [{"name": f"s{n}", "max_length": n, "factors": [1.0, 2.0], "start_tokens": n // 8} for n in (8, 16, 64)]
)
ENGINE = EngineLadder.of(RopeSettings(LADDER, 1e4), 64)


class Processor:
    """``InputProcessor``, of which :func:`placing` reads the config."""

    def __init__(self, policy: str = "length", *, fills_in_limits: bool = False) -> None:
        settings = RopeSettings(LADDER, 1e4, policy=policy, fills_in_limits=fills_in_limits)
        key = {"ropeswitch": settings.to_json()}
        self.vllm_config = SimpleNamespace(additional_config=key, model_config=SimpleNamespace(max_model_len=64))


def upstream(self: Any, request_id: str, prompt: list[int], params: Any) -> Any:
    """As ``InputProcessor.process_inputs``: the parameters are copied, and a missing limit is filled in."""
    params = params.clone()
    if isinstance(params, SamplingParams) and params.max_tokens is None:
        params.max_tokens = 64 - len(prompt)
    return message(params, request_id=request_id, prompt_token_ids=prompt, prompt_embeds=None)


def message(params: Any, *, cache_salt: str | None = None, **fields: Any) -> Any:
    """What an engine client sends."""
    kinds = {"sampling_params": SamplingParams, "pooling_params": PoolingParams}
    both = {field: params if isinstance(params, kind) else None for field, kind in kinds.items()}
    return SimpleNamespace(cache_salt=cache_salt, **both, **fields)


@given(st.integers(0, 64))
def test_the_first_set_that_is_long_enough(length: int) -> None:
    index = place(ENGINE, length).index
    assert length <= LADDER.sets[index].max_length
    assert index == 0 or length > LADDER.sets[index - 1].max_length


def test_beyond_the_ladder_and_unknown_names_are_errors() -> None:
    with pytest.raises(FactorError, match="65 tokens"):
        place(ENGINE, 65)
    with pytest.raises(FactorError, match="unknown factor set 'x'"):
        place(ENGINE, 3, forced="x")
    assert place(ENGINE, 65, forced="s8").index == 0


def test_settings_survive_the_trip_to_a_worker() -> None:
    settings = RopeSettings(LADDER, 5e5, "hf", policy="reserve")
    assert RopeSettings.from_json(settings.to_json()) == settings


def placed(ladder: EngineLadder, prompt: int, generated: int = 0, **values: Any) -> Placement:
    """Where a request is after its prompt, and then after ``generated`` tokens more."""
    return place(ladder, prompt, **values).moved(ladder, prompt + generated, prompt)


@given(
    prompt=st.integers(1, 64),
    limit=st.integers(1, 200),
    generated=st.integers(0, 63),
    most=st.integers(1, 64),
    policy=st.sampled_from(["length", "reserve"]),
    salt=st.one_of(st.none(), st.sampled_from(["alice", "a:b", ":"])),
)
def test_reserve_is_the_set_of_prompt_and_limit_and_never_changes(
    prompt: int, limit: int, generated: int, most: int, policy: str, salt: str | None
) -> None:
    """Up to the longest sequence, whatever has been generated; the client's salt stays in the set's."""
    prompt = min(prompt, most)
    generated = min(generated, limit, most - prompt)
    ladder = EngineLadder.of(RopeSettings(LADDER, 1e4), most)
    found = placed(ladder, prompt, generated, limit=limit, policy=policy, client_salt=salt)
    length = min(prompt + limit, most) if policy == "reserve" else prompt + generated
    assert (found.index, found.chosen_by) == (LADDER.index_for(length), policy)
    assert found.name == LADDER.names[found.index] and found.limit == limit
    assert found.salt == salt_of(set_keys(RopeSettings(LADDER, 1e4))[found.index], salt)
    # A session may grow beyond what its chunk reserves.
    assert place(ENGINE, 5, policy="reserve").chosen_by == "length"
    assert placed(ENGINE, 5, 20, policy="reserve", limit=2).index == 2
    forced = placed(ladder, prompt, generated, limit=limit, policy=policy, forced="s64", client_salt=salt)
    assert (forced.index, forced.name, forced.chosen_by) == (2, "s64", "forced")


@pytest.mark.parametrize("params", [SamplingParams(max_tokens=3, extra_args={"a": 1}), PoolingParams()])
def test_a_request_carries_its_placement(params: Any) -> None:
    made = place(ENGINE, 9, limit=3, policy="reserve", client_salt="alice")
    carrying = made.carried_by(params)
    assert getattr(params, "extra_args", None) == ({"a": 1} if isinstance(params, SamplingParams) else None)
    sent = message(carrying, request_id="r", cache_salt=made.salt)
    assert placement_of(sent) == made and carried_index(sent) == made.index
    with pytest.raises(FactorError, match="request r: no factor set was chosen for it"):
        placement_of(message(params, request_id="r"))


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
    """Whether the engine's policy or its own is ``reserve``; the user's parameters stay as they are.

    One wrapper serves the engines of ``LLM`` and of ``AsyncLLM`` in a process.
    """
    process_inputs = placing(upstream)
    for filled_in, policy in ((False, llm), (True, http)):
        processor = Processor(default, fills_in_limits=filled_in)
        for asked in (None, "reserve"):
            extra = None if asked is None else {"rope_ladder_policy": asked}
            params = SamplingParams(max_tokens=max_tokens, extra_args=extra)
            made = process_inputs(processor, "r", [1] * prompt, params)
            expected = policy if asked or default == "reserve" else "length"
            assert placement_of(made).policy == expected
            assert made.cache_salt == placement_of(made).salt
            assert (params.max_tokens, params.extra_args) == (max_tokens, extra)


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        *(({"rope_factor_set": value}, "rope_factor_set") for value in ("nope", 1, ["s8"], {"a": 1}, True)),
        *(({"rope_ladder_policy": value}, "rope_ladder_policy") for value in ("nope", 1, ["reserve"])),
        *(({"rope_ladder_policy": value, "rope_factor_set": "s8"}, "rope_ladder_policy") for value in POLICIES),
    ],
)
def test_plain_vllm_raises_its_validation_error(extra: dict[str, Any], field: str) -> None:
    with pytest.raises(VLLMValidationError, match=f"vllm_xargs.{field}: ") as raised:
        placing(lambda *_: pytest.fail("passed on"))(Processor(), "r", [1], SamplingParams(extra_args=extra))
    assert raised.value.parameter == f"vllm_xargs.{field}"


def test_engines_of_both_kinds_in_a_process_place_a_request_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Placed twice, a request would have the salt of its salt."""
    monkeypatch.setattr(InputProcessor, "process_inputs", upstream)
    monkeypatch.setattr(patching, "_done", set())
    made: list[Any] = []
    for kind in (EngineArgs, AsyncEngineArgs):
        arguments = kind(str(BUNDLED_MODEL), additional_config={"ropeswitch": {"factors": str(BUNDLED_FACTORS)}})
        configure_from_key(arguments)
        processor = Processor()
        processor.vllm_config.additional_config = arguments.additional_config
        made.append(InputProcessor.process_inputs(processor, "r", [1] * 3, SamplingParams()))  # type: ignore[arg-type]
        settings = settings_of(processor.vllm_config)
        assert settings is not None and settings.fills_in_limits == (kind is AsyncEngineArgs)
    assert made[0].cache_salt == made[1].cache_salt == salt_of(set_keys(settings)[0], None)


def test_stock_engines_and_prompts_that_come_placed() -> None:
    stock = Processor()
    stock.vllm_config.additional_config = {}
    wrong = SamplingParams(extra_args={"rope_factor_set": "nope"})
    assert placing(lambda *_: "passed")(stock, "r", [1], wrong) == "passed"
    before = replace(place(ENGINE, 3, client_salt="alice"), client="5f2c")
    params = SamplingParams(max_tokens=3, extra_args={PLACEMENT: before})
    found = placement_of(placing(upstream)(Processor(), "r", [1] * 3, params))
    assert found == before and found.moved(ENGINE, 9, 3).client == "5f2c"
    # A client's field of that name is none.
    params = SamplingParams(max_tokens=3, extra_args={PLACEMENT: [2, "s64", "length", True, None]})
    assert placement_of(placing(upstream)(Processor(), "r", [1] * 3, params)).name == "s8"
    pooled = placing(upstream)(Processor(policy="reserve"), "r", [1] * 9, PoolingParams())
    assert (placement_of(pooled).name, placement_of(pooled).chosen_by) == ("s16", "length")


def test_a_prefill_reserves_for_the_answer_that_the_decode_engine_will_give() -> None:
    ladder = EngineLadder.of(RopeSettings(LADDER, 1e4, policy="reserve"), 64)

    def index(prompt: int, **transfer: Any) -> int:
        params = SamplingParams(max_tokens=1, extra_args={"kv_transfer_params": transfer})
        return asked_placement(ladder, params, prompt, None).index

    assert index(6, do_remote_decode=True) == 0
    assert index(6, do_remote_decode=True, rope_max_tokens=3) == 1
    assert index(6, do_remote_decode=True, rope_max_tokens=500) == 2
    # The decode side's own limit counts there.
    assert index(6, do_remote_prefill=True, rope_max_tokens=3) == 0
    for wrong in (0, -1, "3", 1.5, True):
        with pytest.raises(FactorError, match=r"kv_transfer_params\.rope_max_tokens: "):
            index(6, do_remote_decode=True, rope_max_tokens=wrong)
