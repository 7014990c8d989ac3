"""A request that would block the engine or the event loop for minutes is refused; an honest one is not."""

import asyncio
import json
import time
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.server.front.bodies.parse import TokenIds
from ropeswitch.server.front.context import Asked, RequestContext, current
from ropeswitch.server.front.flags import CONSTRAINTS, CostLimits
from ropeswitch.server.front.limits.cost import GrammarTurns, excess, prompt_excess
from ropeswitch.server.front.limits.grammar import grammar_seconds
from ropeswitch.server.front.refusal import RefusedError
from ropeswitch.server.front.state import build
from tests.server.front.parts import LADDER, Engine, taking

LIMITS = CostLimits(vocabulary=1005)
IDS = TokenIds([list(range(5000))])
TEXT = {"type": "string"}
# Of /score and /rerank.
ITEMS = [{"content": [{"type": "text", "text": "a"}]}] * 3000


def schema(count: int, value: Any = TEXT, required: bool = False) -> dict[str, Any]:
    names = [f"property_{i}" for i in range(count)]
    made = {"type": "object", "properties": dict.fromkeys(names, value)}
    return made | ({"required": names, "additionalProperties": False} if required else {})


def bounded(lengths: range) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i} for i in lengths}}


def tag(**fields: Any) -> dict[str, Any]:
    return {"structural_tag": json.dumps(fields)}


HONEST = [
    {"json": schema(200)},
    {"json": schema(2000, required=True)},
    {"json": json.dumps(schema(200, {**TEXT, "description": "Explains itself. " * 30}))},
    {"json": schema(200, {"type": "integer", "minimum": 0, "maximum": 100}, required=True)},
    {"json": schema(200, {"type": "string", "format": "date-time", "maxLength": 500})},
    {"json": {"enum": [f"value {i}" for i in range(2000)]}},
    {"json": {"items": [{"pattern": "^[a-z]{1,200}$"}] * 50}},
    {"json": {"$defs": {"node": {"anyOf": [TEXT, {"$ref": "#/$defs/node"}]}}, "$ref": "#/$defs/node"}},
    {"choice": [f"label {i}" for i in range(5000)]},
    {"regex": r"\(\d{3}\) \d{3}-\d{4}( ext\. [0-9]{1,5})?"},
    {"regex": "|".join(f"word{i}" for i in range(1000))},
    {"grammar": "root ::= " + '"| **a** | (b)? |" ' * 150},
    {"grammar": "root ::= a | b\n" + "\n".join(f'r{i} ::= "x" r{i + 1}' for i in range(200))},
    tag(structures=[{"begin": "<f>", "schema": schema(200), "end": "</f>"}], triggers=["<f"]),
]
SLOW = [
    {"json": schema(20_000)},
    {"json": schema(20_000, required=True)},
    {"json": json.dumps(schema(3_000))},
    {"json": schema(300, required=True) | {"minProperties": 50, "maxProperties": 250}},
    *({"json": {"const": value}} for value in ("a" * 100_000, {"a": "a" * 100_000}, [["a" * 100_000]])),
    {"json": {"enum": ["a" * 16_000, "a" * 16_000 + "b"]}},
    {"json": {"description": "a" * 6_000_000}},
    {"json": {"anyOf": [{"properties": {f"p{i}": TEXT}} for i in range(12_000)]}},
    {"json": bounded(range(100, 150))},
    {"json": {"items": [{"pattern": f"^[a-z]{{1,{i}}}$"} for i in range(1000, 1020)]}},
    {"json": {"items": [{"minimum": -i, "maximum": 10**15 + i} for i in range(500)]}},
    {"json": {"patternProperties": {"a*" * 2000: TEXT}}},
    {"regex": "a*" * 2000},
    # Only a grammar has literals, in which nothing repeats.
    {"regex": f'"{"a*" * 2000}"'},
    {"regex": "(a|b|)" * 2000},
    {"regex": "(|a)" * 2000},
    {"json": {"items": [{"format": "uuid"}] * 500}},
    {"regex": "(" + "abcdefghij" * 100 + "){1,256}"},
    {"choice": ["a" * 16_000, "a" * 16_000 + "b"]},
    {"grammar": "root ::= " + " | ".join(f"r{i}" for i in range(3000))},
    # A comment hides no rules.
    *({"grammar": f"root ::= a # {mark}\na ::= {'[a-z]{256} ' * 200}\n# {mark}]\n"} for mark in '"['),
    tag(type="structural_tag", format={"type": "json_schema", "json_schema": schema(3000)}),
]


@pytest.mark.parametrize("spec", HONEST)
def test_a_grammar_that_clients_use_is_accepted(spec: dict[str, Any]) -> None:
    assert excess({"prompt": "a", "structured_outputs": spec}, LIMITS) is None
    assert grammar_seconds(spec, 131_072) <= LIMITS.grammar_seconds


@pytest.mark.parametrize("spec", [{"regex": "[" * 60_000}, {"grammar": '"[' * 30_000}])
def test_the_estimate_itself_takes_no_time(spec: dict[str, Any]) -> None:
    """A class without an end was searched for it from each of its brackets: minutes of the event loop for 60 KB."""
    started = time.process_time()
    grammar_seconds(spec, 1005)
    assert time.process_time() - started < 1 and grammar_seconds({}, 1005) < 0.01


@pytest.mark.parametrize(
    ("body", "param"),
    [
        *(({"prompt": "a", "structured_outputs": spec}, "structured_outputs") for spec in SLOW),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": schema(20_000)}}}, "response_format"),
        ({"text": {"format": {"type": "json_schema", "schema": schema(20_000)}}}, "text"),
        ({"sampling_params": {"structured_outputs": SLOW[0]}}, "sampling_params.structured_outputs"),
    ],
)
def test_a_grammar_that_compiles_for_minutes_is_refused_on_every_route(body: dict[str, Any], param: str) -> None:
    refusal = excess(body, LIMITS)
    assert refusal is not None and (refusal.status, refusal.param) == (400, param)
    assert "at most 5 s" in refusal.message and "--max-grammar-seconds" in refusal.message


def sampling(json_schema: Any = None, logprobs: int | None = None, n: int = 1, **more: Any) -> Any:
    outputs = None if json_schema is None else SimpleNamespace(json=json_schema)
    return SimpleNamespace(
        structured_outputs=outputs, num_logprobs=logprobs, n=n, **{"max_tokens": 256, "prompt_logprobs": None, **more}
    )


def repeating(size: int, count: int) -> Any:
    return sampling(repetition_detection=SimpleNamespace(max_pattern_size=size, min_count=count))


@pytest.mark.parametrize(
    ("params", "tokens", "prompts", "param"),
    [
        # Prompts of a request, one after the other: the last is refused, or none.
        (sampling(schema(200), logprobs=20, n=8), 1000, 128, None),
        # The grammar of a chat's tools, and one that is converted for each of many prompts.
        (sampling(schema(3000)), 10, 1, "tools"),
        (sampling(schema(800)), 10, 40, "tools"),
        (sampling(logprobs=20, max_tokens=20_000), 1000, 1, None),
        # Documents that an evaluation scores.
        (sampling(prompt_logprobs=1), 32_768, 1, None),
        (sampling(logprobs=20, n=1024, max_tokens=20_000), 10, 1, "logprobs"),
        (sampling(logprobs=-1, n=4, max_tokens=20_000), 10, 1, "logprobs"),
        (sampling(prompt_logprobs=20), 1_000_000, 1, "prompt_logprobs"),
        # A search for repetitions slows every step.
        (repeating(100, 3), 10, 1, None),
        (repeating(20, 80), 10, 1, None),
        (repeating(1400, 2), 10, 1, "repetition_detection"),
        (repeating(2, 10_000), 10, 1, "repetition_detection"),
    ],
)
def test_what_the_prompts_of_a_request_cost_together_is_limited(
    params: Any, tokens: int, prompts: int, param: str | None
) -> None:
    context = RequestContext(asked=Asked(limited=True))
    *_, refusal = [prompt_excess(context, params, tokens, LIMITS) for _ in range(prompts)]
    assert (refusal and refusal.param) == param


def test_without_a_limit_of_the_clients_vllm_fills_in_the_rest_of_the_context() -> None:
    assert prompt_excess(RequestContext(), sampling(logprobs=20, n=8, max_tokens=1_000_000), 1000, LIMITS) is None


def test_no_client_can_put_off_anothers_grammar() -> None:
    """The first of each begins, also one for which another client waits; one that has begun is cached."""

    async def main() -> list[bool]:
        turns, tasks = GrammarTurns(1000), []
        for client, number in ((b"a", 1), (b"a", 2), (b"a", 3), (b"b", 3), (b"b", 1), (b"b", 4)):
            current.set(RequestContext(client=client))
            grammar = {"json": schema(500), "whitespace_pattern": str(number)}
            tasks.append(asyncio.create_task(turns.wait(grammar)))
        finished, pending = await asyncio.wait(tasks, timeout=0.05)
        for task in pending:
            task.cancel()
        return [task in finished for task in tasks]

    assert asyncio.run(main()) == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a"] * 1024, "n": 16384, "max_tokens": 1}, "n"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": "a", "n": "2049"}, "n"),
        ({"prompt": ["a"] * 11, "n": "2_00.00"}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 65, "n": 32}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 2049}, "messages"),
        ({"token_ids": [1], "n": 1, "sampling_params": {"n": 2049}}, "sampling_params.n"),
        ({"input": ["a"] * 2049}, "input"),
        ({"prompt": "a", "bad_words": ["a" * (CONSTRAINTS + 1)]}, "bad_words"),
        ({"prompt": "a", "bad_words": ["a" * CONSTRAINTS], "stop": "b"}, "stop"),
        ({"tokens": [5] * 101}, "tokens"),
        ({"model": "/a" * 257, "prompt": "a"}, "model"),
        ({"prompt": "a", "n": 1024, "allowed_token_ids": list(range(513))}, "allowed_token_ids"),
        ({"prompt": "a", "stop": "é" * (CONSTRAINTS // 2 + 1)}, "stop"),
        ({"token_ids": [1], "sampling_params": {"stop": ["a" * 1024] * 513}}, "sampling_params.stop"),
        ({"queries": "a", "documents": ITEMS}, "documents"),
        # /v1/decisions and /v1/systemone ask each question in a prompt of its own.
        ({"input": "a", "questions": [{"type": "predicate"}] * 2049}, "questions"),
        ({"state": "a", "questions": {str(i): {"type": "yes_no"} for i in range(2049)}}, "questions"),
        # Stop words are searched for at each token, and what goes to the engine goes there once for each sequence.
        ({"prompt": "a", "stop": [f"{each:06}" for each in range(40_000)]}, "stop"),
        ({"prompt": "a", "n": 1000, "cache_salt": "x" * 1000}, "cache_salt"),
        ({"prompt": "a", "n": 1000, "vllm_xargs": {"a": ["x" * 1000]}}, "vllm_xargs"),
        ({"messages": [], "n": 1000, "kv_transfer_params": {"a": {"b": "x" * 1000}}}, "kv_transfer_params"),
        ({"messages": [], "n": 1000, "chat_template_kwargs": {"a": "x" * 1000}}, "chat_template_kwargs"),
        ({"n": 1000, "response_format": {"schema": {"description": "x" * 100_000}}}, "response_format"),
    ],
)
def test_a_body_that_starts_or_names_too_much_is_refused(body: dict[str, Any], param: str) -> None:
    refusal = excess(body, CostLimits(longest=100))
    assert refusal is not None and refusal.param == param
    assert refusal.message.startswith(f"{param}: ") and "at most" in refusal.message


@pytest.mark.parametrize(
    "body",
    [
        {"input": ["a"] * 2048},
        {"prompt": [IDS] * 2048},
        {"input": [{"role": "user", "content": "a"}] * 5000},
        {"prompt": "a", "bad_words": ["a" * CONSTRAINTS]},
        {"input": ITEMS},
        {"prompt": ["a"] * 128, "n": 8, "stop": ["\n\nHuman:", "<|im_end|>"], "cache_salt": "tenant-1"},
        {"prompt": "a", "logit_bias": {str(each): -100 for each in range(300)}, "n": 8},
        {"prompt": ["a"] * 128, "n": 8, "structured_outputs": {"json": schema(200)}},
        {"prompt": "a", "n": None, "stop": None},
        # Left for validation.
        {"prompt": "a", "n": "many", "stop": [1, {}]},
        {"prompt": "a", "n": float("inf")},
        [1, 2],
    ],
)
def test_a_body_that_starts_as_much_as_allowed_is_accepted(body: Any) -> None:
    assert excess(body, CostLimits()) is None


def test_the_longest_sequence_and_the_vocabulary_of_the_model_limit_what_bodies_cost() -> None:
    limits = build(taking(), LADDER, 16, Engine().waits, RefusedError, vocabulary=500_000).cost_limits
    assert excess({"tokens": [5] * 17}, limits) is not None is excess({"tokens": [5] * 16}, limits)
    assert prompt_excess(RequestContext(), sampling(logprobs=-1), 1, limits) is not None


def test_a_clients_many_words_leave_the_event_loop_to_others() -> None:
    """vLLM tokenizes words to ban on the event loop, half a second for the most that a request may have."""

    async def main() -> list[float]:
        turns = GrammarTurns(1000)
        ended: list[float] = []

        async def words(client: bytes) -> None:
            current.set(RequestContext(client=client))
            await turns.wait_words(["a" * 50_000])
            ended.append(time.monotonic() - started)

        started = time.monotonic()
        await asyncio.gather(*(words(client) for client in (b"a", b"a", b"a", b"b")))
        return ended

    first, other, second, third = asyncio.run(main())
    assert max(first, other) < 0.09 < second < third - 0.05
