"""Names of ladders and sets: how they are read, and what a request's prompts are put into."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from vllm import PoolingParams, SamplingParams

from ropeswitch.factors.errors import FactorError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.model_patches.switch.request_set import SetRule
from ropeswitch.model_patches.switch.settings import FORCED_SET, LADDER_ID, RopeSettings
from ropeswitch.server.aliases import Aliases, forcing, split
from ropeswitch.server.context import Alias, RequestContext, current
from ropeswitch.server.ladder_updates import MOST_LADDERS, LadderUpdates, Update, UpdateError
from ropeswitch.server.ladders import ServedLadders, label, qualified, set_name
from ropeswitch.server.rope_route import rope_info

NAMES = st.text(st.sampled_from("abzAZ019._-"), min_size=1, max_size=64)


def ladder(*names: str, longest: int = 16) -> FactorLadder:
    return FactorLadder.checked(
        [
            {"name": name, "max_length": longest - len(names) + 1 + i, "factors": [1.0 + i + len(name)]}
            for i, name in enumerate(names)
        ]
    )


START = ladder("short", "long")


@given(NAMES, NAMES)
def test_names_are_read_as_they_are_written(name: str, factor_set: str) -> None:
    assert split(qualified("", factor_set)) == (None, factor_set)
    assert split(qualified(name, factor_set)) == (name, factor_set)
    assert split(f"{name}:") == (name, None)


@given(model=st.text(min_size=1), name=NAMES, factor_set=st.none() | NAMES)
def test_any_model_name_may_come_before_them(model: str, name: str, factor_set: str | None) -> None:
    ladders = ServedLadders(SetRule(START), "start")
    ladders.use(ladders.make(ladders.start, "2", name, ladder(factor_set or "one")))
    exact: Any = SimpleNamespace(lora_requests={}, is_base_model=lambda asked: asked == model)
    context = RequestContext()
    token = current.set(context)
    try:
        asked = f"{model}@{name}:{factor_set or ''}"
        assert Aliases(exact, ladders, listed=False).resolve(asked) == model
        assert context.alias == Alias(asked, factor_set) and context.rule is ladders.named[name]
        assert Aliases(exact, ladders, listed=False).resolve(model) == model
    finally:
        current.reset(token)


def test_sets_keep_their_labels_and_new_names_get_new_ones() -> None:
    ladders = ServedLadders(SetRule(START), "start")
    second = ladders.make(ladders.start, "2", "", ladder("long", "longer"))
    third = ladders.make(ladders.start, "3", "b", ladder("long"))
    assert ladders.names == ["short", "long", "longer", "b:long"]
    assert [label(each, 0) for each in (ladders.start, second, third, SetRule(START))] == [0, 1, 3, 0]
    assert [set_name(each, 0) for each in (second, third, SetRule(START))] == ["long", "b:long", "short"]


def test_all_prompts_of_a_request_are_in_one_ladder() -> None:
    ladders, context = ServedLadders(SetRule(START), "start"), RequestContext()
    assert ladders.of(context) is ladders.start
    ladders.use(second := ladders.make(ladders.start, "2", "", ladder("one")))
    assert ladders.of(context) is ladders.start
    assert ladders.of(RequestContext()) is ladders.of(None) is second


def test_the_engine_is_given_the_ladders_id() -> None:
    params = SamplingParams(extra_args={"kept": 1})
    assert forcing(params, None, None) is params
    assert forcing(params, None, "7").extra_args == {"kept": 1, LADDER_ID: "7"}
    assert forcing(params, "long", "7").extra_args == {"kept": 1, FORCED_SET: "long", LADDER_ID: "7"}
    assert forcing(PoolingParams(), None, "7").extra_kwargs == {LADDER_ID: "7"}
    assert params.extra_args == {"kept": 1}


class Engines:
    """Two engines, of which the second refuses to load what it is told to."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.errors: list[str | None] = [None, None]

    async def call_utility_all_async(self, name: str, *arguments: Any) -> list[Any]:
        self.calls.append(name)
        await asyncio.sleep(0)
        return list(self.errors) if name == "load_ladder" else [[], []]


def updates(engines: Engines) -> tuple[LadderUpdates, ServedLadders]:
    settings = RopeSettings(START, 1e4)
    ladders = ServedLadders(SetRule(START, "length", 16), "start")
    client = SimpleNamespace(engine_core=engines, output_processor=SimpleNamespace(ropeswitch=None))
    return LadderUpdates(client, settings, ladders, rope_info(settings, 16, ())), ladders


@pytest.mark.parametrize(("error", "full"), [("worker 1: MemoryError: ", False), ("sets: 3 sets do not fit", True)])
def test_nothing_changes_where_one_engine_fails(error: str, full: bool) -> None:
    engines = Engines()
    made, ladders = updates(engines)
    engines.errors[1] = error
    for name in ("", "b"):
        with pytest.raises(UpdateError, match=error) as raised:
            asyncio.run(made.serve(Update(ladder("one"), name, recompute=True)))
        assert raised.value.full == full
    assert (engines.calls, ladders.default, ladders.named) == (["load_ladder"] * 2, ladders.start, {})


def test_only_so_many_ladders_have_names() -> None:
    made, ladders = updates(Engines())

    async def fill() -> None:
        for number in range(MOST_LADDERS):
            await made.serve(Update(ladder("one"), str(number), recompute=False))
        await made.serve(Update(ladder("two"), "0", recompute=False))
        with pytest.raises(FactorError, match="name: 'x' would be ladder 17 of at most 16"):
            await made.serve(Update(ladder("one"), "x", recompute=False))
        assert await made.drop("3") and not await made.drop("3")
        await made.serve(Update(ladder("one"), "x", recompute=False))

    asyncio.run(fill())
    assert len(ladders.named) == MOST_LADDERS and ladders.named["0"].ladder.names == ("two",)
