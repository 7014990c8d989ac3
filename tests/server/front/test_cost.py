"""A request that would block the engine or the event loop for minutes is refused; an honest one is not."""

import asyncio
import json
import time
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.server.front.bodies.parse import TokenIds
from ropeswitch.server.front.context import Asked, RequestContext, current
from ropeswitch.server.front.flags import CONSTRAINTS, LOGPROBS, CostLimits
from ropeswitch.server.front.limits.cost import ASKED, GrammarTurns, excess, prompt_excess
from ropeswitch.server.front.limits.grammar import grammar_seconds

LIMITS = CostLimits(vocabulary=1005)
IDS = TokenIds([list(range(5000))])
TEXT = {"type": "string"}


def schema(count: int, value: Any = TEXT, required: bool = False) -> dict[str, Any]:
    names = [f"property_{i}" for i in range(count)]
    made = {"type": "object", "properties": dict.fromkeys(names, value)}
    return made | ({"required": names, "additionalProperties": False} if required else {})


def bounded(lengths: range) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string", "maxLength": i} for i in lengths}}


HONEST = [
    {"json": schema(200)},
    {"json": schema(1000, required=True)},
    {"json": json.dumps(schema(200, {**TEXT, "description": "Explains itself. " * 30}))},
    {"json": schema(200, {"type": "integer", "minimum": 0, "maximum": 100}, required=True)},
    {"json": schema(200, {"type": "string", "format": "date-time", "maxLength": 500})},
    {"json": {"enum": [f"value {i}" for i in range(2000)]}},
    {"json": {"$defs": {"node": {"anyOf": [TEXT, {"$ref": "#/$defs/node"}]}}, "$ref": "#/$defs/node"}},
    {"choice": [f"label {i}" for i in range(5000)]},
    {"regex": r"\(\d{3}\) \d{3}-\d{4}( ext\. [0-9]{1,5})?"},
    {"regex": "|".join(f"word{i}" for i in range(1000))},
    {"grammar": "root ::= a | b\n" + "\n".join(f'r{i} ::= "x" r{i + 1}' for i in range(200))},
    {
        "structural_tag": json.dumps(
            {"structures": [{"begin": "<f>", "schema": schema(200), "end": "</f>"}], "triggers": ["<f"]}
        )
    },
]
SLOW = [
    {"json": schema(20_000)},
    {"json": schema(20_000, required=True)},
    {"json": json.dumps(schema(3_000))},
    {"json": schema(300) | {"minProperties": 50, "maxProperties": 250}},
    {"json": {"const": "a" * 100_000}},
    {"json": {"enum": ["a" * 16_000, "a" * 16_000 + "b"]}},
    {"json": {"anyOf": [{"properties": {f"p{i}": TEXT}} for i in range(12_000)]}},
    {"json": bounded(range(100, 150))},
    {"json": {"items": [{"pattern": f"^[a-z]{{1,{i}}}$"} for i in range(1000, 1020)]}},
    {"json": {"items": [{"minimum": -i, "maximum": 10**15 + i} for i in range(500)]}},
    {"json": {"patternProperties": {"a*" * 2000: TEXT}}},
    {"regex": "a*" * 2000},
    {"regex": "(a|b|)" * 2000},
    {"regex": "(" + "abcdefghij" * 100 + "){1,256}"},
    {"choice": ["a" * 16_000, "a" * 16_000 + "b"]},
    {"grammar": "root ::= " + " | ".join(f"r{i}" for i in range(3000))},
    {
        "structural_tag": json.dumps(
            {"type": "structural_tag", "format": {"type": "json_schema", "json_schema": schema(3000)}}
        )
    },
]


@pytest.mark.parametrize("spec", HONEST)
def test_a_grammar_that_clients_use_is_accepted(spec: dict[str, Any]) -> None:
    assert excess({"prompt": "a", "structured_outputs": spec}, LIMITS) is None
    assert grammar_seconds(spec, 131_072) <= LIMITS.grammar_seconds


def test_a_schema_of_200_properties_is_accepted_for_128_prompts_of_8_answers() -> None:
    body = {"prompt": ["a"] * 128, "n": 8, "logprobs": 20, "max_tokens": 256, "stop": ["\n\n", "END"]}
    assert excess({**body, "structured_outputs": {"json": schema(200)}}, LIMITS) is None
    context, params = RequestContext(asked=Asked(limited=True)), sampling(schema(200), logprobs=20, n=8)
    assert all(prompt_excess(context, params, 1000, LIMITS) is None for _ in range(128))


@pytest.mark.parametrize(
    "spec",
    [
        {"regex": "[" * 60_000},
        {"json": {"pattern": "a[" * 30_000}},
        {"grammar": '"[' * 30_000},
    ],
)
def test_the_estimate_itself_takes_no_time(spec: dict[str, Any]) -> None:
    """A class without an end was searched for it from each of its brackets: minutes of the event loop for 60 KB."""
    started = time.process_time()
    grammar_seconds(spec, 1005)
    assert time.process_time() - started < 1


@pytest.mark.parametrize("mark", ['"', "["])
def test_a_comment_hides_no_rules(mark: str) -> None:
    rules = f"root ::= a # {mark}\na ::= {'[a-z]{256} ' * 200}\n# {mark}]\n"
    assert excess({"structured_outputs": {"grammar": rules}}, LIMITS) is not None


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


def test_the_tools_of_a_chat_may_not_make_such_a_grammar() -> None:
    refusal = prompt_excess(RequestContext(), sampling(schema(3000)), 10, LIMITS)
    assert refusal is not None and refusal.param == "tools"


@pytest.mark.parametrize(
    ("size", "count", "accepted"), [(100, 3, True), (20, 80, True), (1400, 2, False), (2, 10_000, False)]
)
def test_no_search_for_repetitions_slows_every_step(size: int, count: int, accepted: bool) -> None:
    params = SimpleNamespace(repetition_detection=SimpleNamespace(max_pattern_size=size, min_count=count))
    refusal = prompt_excess(RequestContext(), params, 10, LIMITS)
    assert refusal is None if accepted else refusal is not None and refusal.param == "repetition_detection"


def test_a_grammar_is_not_converted_for_a_thousand_prompts() -> None:
    context = RequestContext()
    refusals = [prompt_excess(context, sampling(schema(800)), 10, LIMITS) for _ in range(40)]
    assert refusals[0] is None and refusals[-1] is not None and "prompts" in refusals[-1].message


@pytest.mark.parametrize(
    ("params", "tokens"),
    [
        (sampling(logprobs=20, n=1024, max_tokens=20_000), 10),
        (sampling(logprobs=-1, n=4, max_tokens=20_000), 10),
        (sampling(prompt_logprobs=20), 1_000_000),
    ],
)
def test_millions_of_log_probabilities_are_refused(params: Any, tokens: int) -> None:
    refusal = prompt_excess(RequestContext(asked=Asked(limited=True)), params, tokens, LIMITS)
    most = LOGPROBS if params.prompt_logprobs else ASKED * LOGPROBS
    assert refusal is not None and str(most) in refusal.message and "--max-logprobs-per-request" in refusal.message


@pytest.mark.parametrize(
    ("params", "tokens", "limited"),
    [
        (sampling(logprobs=20, max_tokens=20_000), 1000, True),
        # Without a limit of the client's, vLLM fills in the rest of the context.
        (sampling(logprobs=20, n=8, max_tokens=1_000_000), 1000, False),
        # Documents that an evaluation scores.
        (sampling(prompt_logprobs=1), 32_768, True),
    ],
)
def test_twenty_log_probabilities_are_accepted(params: Any, tokens: int, limited: bool) -> None:
    assert prompt_excess(RequestContext(asked=Asked(limited=limited)), params, tokens, LIMITS) is None


def test_a_clients_new_grammars_do_not_hold_up_anothers() -> None:
    async def done(turns: GrammarTurns, asked: Sequence[tuple[bytes, int]]) -> list[bool]:
        tasks = []
        for client, number in asked:
            current.set(RequestContext(client=client))
            grammar = {"json": schema(500), "whitespace_pattern": str(number)}
            tasks.append(asyncio.create_task(turns.wait(grammar)))
        finished, pending = await asyncio.wait(tasks, timeout=0.05)
        for task in pending:
            task.cancel()
        return [task in finished for task in tasks]

    turns = GrammarTurns(1000)
    asked = [(b"a", 1), (b"a", 2), (b"a", 3), (b"b", 4), (b"b", 1), (b"b", 2)]
    # The first of each client begins; one that has begun is cached; the others wait, for whoever asks for them.
    assert asyncio.run(done(turns, asked)) == [True, False, False, True, True, False]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a"] * 1024, "n": 16384, "max_tokens": 1}, "n"),
        ({"prompt": ["a"] * 2049}, "prompt"),
        ({"prompt": [[1]] * 2049}, "prompt"),
        ({"prompt": "a", "n": "2049"}, "n"),
        ({"prompt": "a", "n": "2500.0"}, "n"),
        ({"prompt": ["a"] * 11, "n": "2_00.00"}, "n"),
        ({"prompt": "a", "n": 2049.0, "use_beam_search": True}, "n"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 2049}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 65, "n": 32}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 2049}, "messages"),
        ({"token_ids": [1], "sampling_params": {"n": 2049}}, "sampling_params.n"),
        ({"token_ids": [1], "n": 1, "sampling_params": {"n": 2049}}, "sampling_params.n"),
        ({"input": ["a"] * 2049}, "input"),
        ({"query": "a", "documents": ["a"] * 2049}, "documents"),
        ({"prompt": "a", "bad_words": ["a" * (CONSTRAINTS + 1)]}, "bad_words"),
        ({"prompt": "a", "bad_words": ["a" * CONSTRAINTS], "stop": "b"}, "stop"),
        ({"prompt": ["a"] * 1024, "logit_bias": {str(i): 1 for i in range(513)}}, "logit_bias"),
        ({"tokens": [5] * 101}, "tokens"),
        ({"model": "/a" * 257, "prompt": "a"}, "model"),
        ({"prompt": "a", "n": 1024, "allowed_token_ids": list(range(513))}, "allowed_token_ids"),
        ({"prompt": "a", "stop": "é" * (CONSTRAINTS // 2 + 1)}, "stop"),
        ({"messages": [], "stop_sequences": ["a" * 1024] * 513}, "stop_sequences"),
        ({"token_ids": [1], "sampling_params": {"stop": ["a" * 1024] * 513}}, "sampling_params.stop"),
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
        {"prompt": ["a"] * 128, "n": 8},
        {"prompt": IDS, "n": 2048},
        {"prompt": [IDS] * 2048},
        {"prompt": list(range(5000))},
        {"input": [{"role": "user", "content": "a"}] * 5000},
        {"messages": [{"role": "user", "content": "a"}] * 5000, "n": 2},
        {"prompt": "a", "bad_words": ["a" * CONSTRAINTS]},
        {"prompt": "a", "n": None, "stop": None},
        # Left for validation.
        {"prompt": "a", "n": "many", "stop": [1, {}]},
        {"prompt": "a", "n": float("inf")},
        {"prompt": "a", "n": -5},
        [1, 2],
        "text",
    ],
)
def test_a_body_that_starts_as_much_as_allowed_is_accepted(body: Any) -> None:
    assert excess(body, CostLimits()) is None


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a", "stop": [f"{each:06}" for each in range(40_000)]},
        {"prompt": "a", "n": 1000, "cache_salt": "x" * 1000},
        {"prompt": "a", "n": 1000, "vllm_xargs": {"a": ["x" * 1000]}},
        {"messages": [], "n": 1000, "kv_transfer_params": {"a": {"b": "x" * 1000}}},
        {"messages": [], "n": 1000, "chat_template_kwargs": {"a": "x" * 1000}},
        {"messages": [], "n": 1000, "response_format": {"json_schema": {"schema": {"description": "x" * 100_000}}}},
    ],
)
def test_no_list_or_text_is_searched_or_sent_without_a_limit(body: dict[str, Any]) -> None:
    """Stop words are searched for at each token, and what goes to the engine goes there once for each sequence."""
    refusal = excess(body, LIMITS)
    assert refusal is not None and refusal.status == 400 and refusal.param in body


def test_texts_and_images_to_score_are_counted() -> None:
    items = [{"content": [{"type": "text", "text": "a"}]}] * 3000
    refusal = excess({"queries": "a", "documents": items}, LIMITS)
    assert refusal is not None and refusal.param == "documents"
    assert excess({"input": items}, LIMITS) is None


def test_four_stop_words_are_accepted_for_a_thousand_sequences() -> None:
    arguments = {"cache_salt": "tenant-1", "vllm_xargs": {"rope_factor_set": "short"}}
    stop = ["\n\nHuman:", "\n\nAssistant:", "<|im_end|>", "</s>"]
    assert excess({"prompt": ["a"] * 128, "n": 8, "stop": stop, **arguments}, LIMITS) is None
    assert excess({"prompt": "a", "logit_bias": {str(each): -100 for each in range(300)}, "n": 8}, LIMITS) is None


def test_no_client_can_put_off_anothers_grammar() -> None:
    """One client asks for many grammars before the one that another will need."""

    async def main() -> float:
        turns, grammar = GrammarTurns(1000), {"json": schema(500)}
        current.set(RequestContext(client=b"a"))
        waiting = [asyncio.create_task(turns.wait({**grammar, "whitespace_pattern": str(each)})) for each in range(9)]
        waiting.append(asyncio.create_task(turns.wait(grammar)))
        await asyncio.sleep(0)
        current.set(RequestContext(client=b"b"))
        started = time.monotonic()
        await asyncio.wait_for(turns.wait(grammar), 5)
        for task in waiting:
            task.cancel()
        return time.monotonic() - started

    assert asyncio.run(main()) < 0.1


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
