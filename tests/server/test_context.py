"""One context for each HTTP request, and one decision for each prompt, carried in it."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm import PoolingParams, SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import RepetitionDetectionParams, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM

from ropeswitch.model_patches.switch.placement import Placement
from ropeswitch.server.app.aliases import Alias
from ropeswitch.server.app.engine_client import Prompts, RopeClient
from ropeswitch.server.front.context import Asked, RequestContext, current
from ropeswitch.server.front.limits.keys import KeyRing, Turns, digest
from ropeswitch.server.front.refusal import Refusal, RefusedError, invalid_body, listeners
from tests.server.front.parts import LADDER, leaves_turns
from tests.server.placing import carried, chosen, engine_ladder


def prompts_of(admitted: list[Any] | None = None, policy: str = "length", length: Any = len, **options: Any) -> Prompts:
    """Of a server whose sequences may have 14 tokens, of which the first set has 8."""
    seen: list[Any] = [] if admitted is None else admitted
    admission: Any = SimpleNamespace(admit=lambda *args: seen.append(args))
    return Prompts(engine_ladder(LADDER, policy, 14), admission, length, **options)


def placed(params: Any, *, prompt: Any, context: RequestContext | None, **options: Any) -> Placement:
    """What is decided for a prompt, which may be given by its length."""
    token = current.set(context)
    try:
        ids = [1] * prompt if isinstance(prompt, int) else prompt
        return carried(prompts_of(**options).place(ids, params, "r"))
    finally:
        current.reset(token)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    """An engine client; a test gives its upstream's methods by name."""
    made: Any = RopeClient.__new__(RopeClient)
    made.prompts, made._entering = prompts_of(length=lambda prompt: len(prompt["prompt_token_ids"])), Turns()
    made.vllm_config = SimpleNamespace(kv_transfer_config=None)
    made.upstream = lambda **methods: [monkeypatch.setattr(AsyncLLM, *each) for each in methods.items()]
    return made


def test_a_prompt_is_placed_once_for_header_queue_and_metrics(client: Any) -> None:
    admitted: list[Any] = []
    given: list[Any] = []

    def upstream(self: AsyncLLM, *args: Any, **options: Any) -> None:
        given.append((*args, options))

    client.upstream(generate=upstream, encode=upstream)
    client.prompts = prompts_of(admitted, length=client.prompts.length)
    context = RequestContext()
    token = current.set(context)
    prompts = [{"prompt_token_ids": [1] * length} for length in (5, 9, 3)]
    client.generate(prompts[0], SamplingParams(extra_args={"rope_factor_set": "long"}), "r1")
    client.generate(prompts[1], SamplingParams(), "r2", priority=3)
    context.asked = Asked(beams=4)
    client.encode(prompts[2], pooling := PoolingParams(), request_id="r3")
    current.reset(token)
    expected = [("long", "forced"), ("long", "length"), ("short", "length")]
    assert [chosen(each) for each in context.entered.placements] == expected
    assert [carried(each[1]) for each in given] == context.entered.placements
    assert admitted == [(5, 0, 1, "r1"), (9, 1, 1, "r2"), (3, 0, 4, "r3")]
    rest = [(prompt, *more) for prompt, _, *more in given]
    assert rest == [(prompts[0], "r1", {}), (prompts[1], "r2", {"priority": 3}), (prompts[2], "r3", {})]
    assert pooling.extra_kwargs is None


def test_two_keys_share_cached_blocks_only_where_the_scope_is_the_server() -> None:
    def salt(key: bytes | None, client: str | None = None, **options: Any) -> str:
        context, prompt = RequestContext(key=key), {"prompt_token_ids": [1], "cache_salt": client}
        return placed(SamplingParams(), prompt=prompt, context=context, length=lambda _: 1, **options).salt

    keys = [None, b"a" * 32, b"b" * 32]
    assert len({salt(key, client) for key in keys for client in (None, "mine", salt(keys[1]))}) == 9
    assert salt(keys[1], "mine") == salt(keys[1], "mine")
    assert len({salt(key, "mine", by_key=False) for key in keys}) == 1 and salt(None, "mine").endswith(":mine")


def test_the_engine_knows_whose_prompt_it_is_where_a_server_has_several_clients() -> None:
    client = digest(b"a key")
    context = RequestContext(client=client)
    for several, given, expected in ((True, context, client.hex()[:16]), (False, context, None), (True, None, None)):
        found = placed(SamplingParams(), prompt=1, context=given, shared=lambda several=several: several)
        assert found.client == expected


@pytest.mark.parametrize("shows", [True, False])
def test_outputs_tell_cached_tokens_only_where_they_may(client: Any, shows: bool) -> None:
    """The Responses API reports those of its outputs whatever vLLM's flag says."""
    closed = []

    async def upstream(*_: Any) -> AsyncGenerator[Any, None]:
        try:
            while True:
                yield SimpleNamespace(num_cached_tokens=16, num_cache_creation_tokens=8)
        finally:
            closed.append(True)

    async def check() -> None:
        outputs = client.generate([1], SamplingParams(), "r")
        output = await anext(outputs)
        assert (output.num_cached_tokens, output.num_cache_creation_tokens) == ((16, 8) if shows else (None, None))
        # A client that disconnects ends the request in the engine at once.
        await outputs.aclose()
        assert closed

    client.upstream(generate=upstream)
    client.prompts = prompts_of(shows_cached=shows)
    asyncio.run(check())


def test_a_grammar_that_the_engine_cannot_follow_is_the_clients_fault(client: Any) -> None:
    async def upstream(*_: Any) -> AsyncGenerator[Any, None]:
        for reason in (None, "error"):
            yield SimpleNamespace(outputs=[SimpleNamespace(finish_reason=reason)])

    async def reasons(outputs: Any) -> list[Any]:
        made = client.generate({"prompt_token_ids": [1]}, SamplingParams(structured_outputs=outputs), "r1")
        return [each.outputs[0].finish_reason async for each in made]

    client.upstream(generate=upstream)
    with pytest.raises(VLLMValidationError, match="cannot follow this grammar"):
        asyncio.run(reasons(StructuredOutputsParams(json={"$ref": "#"})))
    assert asyncio.run(reasons(None)) == [None, "error"]


def test_an_error_of_the_engine_client_repeats_no_long_value(client: Any) -> None:
    async def upstream(*_: Any) -> None:
        raise VLLMValidationError("Too many bad words.", parameter="bad_words", value=["/a" * 4000])

    client.upstream(add_request=upstream)
    with pytest.raises(VLLMValidationError) as raised:
        asyncio.run(client.add_request("r1", {}, SamplingParams()))
    assert str(raised.value) == "Too many bad words. (parameter=bad_words)"


def test_a_list_of_prompts_leaves_every_turn_of_the_loop_to_others(client: Any) -> None:
    entered: list[str] = []

    async def upstream(_: Any, request_id: str, *__: Any) -> None:
        entered.append(request_id)

    async def ask(name: str) -> None:
        current.set(RequestContext(client=name.encode()))
        await client.add_request(name, {}, SamplingParams())

    client.upstream(add_request=upstream)
    asyncio.run(leaves_turns(ask, entered))


@pytest.mark.parametrize(("fixed", "filed", "single"), [(0, 0, False), (1, 0, True), (0, 1, True), (1, 1, False)])
def test_one_key_is_one_client(tmp_path: Path, fixed: int, filed: int, single: bool) -> None:
    (file := tmp_path / "keys").write_text("filed")
    assert KeyRing([digest(b"given")] * fixed, str(file) if filed else None).may_be_shared() is not single


def test_a_request_is_refused_and_counted_once() -> None:
    counted: list[Any] = []
    listeners.append(lambda *rejection: counted.append(rejection))
    context, first = RequestContext(), Refusal("prompt_tokens", 400, None, "too long")
    assert context.refuse(RefusedError(first), 9).refusal is first
    context.refuse(RefusedError(invalid_body("wrong")))
    listeners.pop()
    assert counted == [("prompt_tokens", 9)]
    assert (context.refusal, context.refused_tokens) == (first, 9)


@pytest.mark.parametrize(
    ("limit", "named", "by_server", "expected"),
    [
        (9, False, False, ("short", "length")),
        (9, True, False, ("long", "reserve")),
        (9, False, True, ("long", "reserve")),
        (3, True, False, ("short", "reserve")),
        (None, False, False, ("short", "length")),
    ],
)
def test_a_limit_that_nobody_named_reserves_nothing(
    limit: int | None, named: bool, by_server: bool, expected: tuple[str, str]
) -> None:
    """vLLM's handlers fill in the rest of the context, 9 tokens after a prompt of 5."""
    context = RequestContext(asked=Asked(limited=named))
    params = SamplingParams(max_tokens=limit)
    found = placed(params, prompt=5, context=context, policy="reserve", limits_output=by_server)
    assert chosen(found) == expected


def test_of_an_answer_in_steps_the_first_prompt_counts() -> None:
    """Later steps are in no header and no queue. vLLM runs each beam search of a body in a task of its own."""
    admitted: list[Any] = []
    prompts = prompts_of(admitted)
    context = RequestContext(asked=Asked(in_steps=True))

    async def search(start: int) -> list[str]:
        found = []
        for length in range(start, start + 3):
            found.append(carried(prompts.place([1] * length, SamplingParams(max_tokens=1), str(length))).name)
            await asyncio.sleep(0)
        return found

    async def handler() -> list[list[str]]:
        current.set(context)
        return await asyncio.gather(search(8), search(9), search(3))

    assert asyncio.run(handler()) == [["short", "long", "long"], ["long"] * 3, ["short"] * 3]
    assert [each.name for each in context.entered.placements] == ["short", "long", "short"]
    assert [each[3] for each in admitted] == ["8", "9", "3"]


@pytest.mark.parametrize("field", ["top_k", "repetition_detection.max_pattern_size"])
def test_a_number_that_the_engine_cannot_be_sent_is_refused(field: str) -> None:
    """Pydantic reads it from a string. Without this, the prompt would stay in the queue for ever."""
    params = SamplingParams(repetition_detection=RepetitionDetectionParams())
    owner, _, name = field.rpartition(".")
    setattr(getattr(params, owner) if owner else params, name, 2**63)
    with pytest.raises(VLLMValidationError) as refused:
        placed(params, prompt=5, context=RequestContext())
    assert refused.value.parameter == field


def test_a_priority_of_more_than_64_bits_is_refused_also_from_its_header(client: Any) -> None:
    for call in (client.generate, client.encode):
        with pytest.raises(VLLMValidationError, match=r"^priority: "):
            call({"prompt_token_ids": [1]}, SamplingParams(), "r", priority=-(2**63) - 1)


def test_a_beam_search_that_would_reserve_is_refused_unless_it_names_its_set() -> None:
    """vLLM sends each of its tokens as a request of one token, which has no answer's limit to reserve."""
    params, beams = SamplingParams(max_tokens=1), {"beams": 2, "limited": True}
    with pytest.raises(VLLMValidationError) as refused:
        placed(params, prompt=5, context=RequestContext(asked=Asked(**beams)), policy="reserve")
    assert refused.value.parameter == "use_beam_search"
    named = RequestContext(asked=Asked(alias=Alias("m@long", "m", "long"), **beams))
    assert chosen(placed(params, prompt=5, context=named, policy="reserve")) == ("long", "forced")
