"""Values that few requests have: wrong types, ends of ranges, halves of things, and programs."""

import json
from typing import Any

from tests.faults.conftest import MODEL
from tests.server import mistakes

# A right request to each route.
RIGHT: dict[str, dict[str, Any]] = {path: body | {"model": MODEL} for path, body in mistakes.RIGHT.items()}
# What else of a request makes a field matter.
BESIDE = ({}, {"tools": [mistakes.TOOL]}, {"tools": [{}]}, {"stream": True}, {"logprobs": True})
DEPENDENT = ("tool_choice", "stop_token_ids", "stream_options", "structured_outputs", "top_logprobs")


def _nested(depth: int) -> Any:
    value: Any = None
    for _ in range(depth):
        value = [value]
    return value


IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**63, 2**64, -(2**70), 10**40, 1.5, 1e308, "", "a", "\ud800", "\0", "auto", "required"),
    *([], [-1], [2**70], ["a"], [[]], [None], [{}], [[5]], {}, {"a": 1}, {"-1": 1}, {"5": 1e308}),
    *map(_nested, (100, 200, 450, 900)),
    *({"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, {"type": "structural_tag"}),
    *({"type": "function", "function": {"name": "x"}}, {"json": "{"}, {"regex": "("}, {"choice": []}, {"json": 5}),
    *([{"role": "user"}], [{"role": "assistant", "tool_calls": [{}]}], [{"role": "user", "content": 5}]),
    *([{"role": "user", "content": [IMAGE]}], {"json": {"minimum": 2**70}}, "{{ 1/0 }}", "{{ x.y.z }}", "{% if %}"),
    *({"rope_factor_set": 5}, {"max_pattern_size": 2, "min_count": 2}),
)


def bodies(path: str, fields: set[str]) -> list[bytes]:
    """The right request to a route with each of its fields replaced by each odd value in turn."""
    return [
        json.dumps(RIGHT[path] | more | {field: value}).encode()
        for field in sorted(fields | {"vllm_xargs", "tools"})
        for more in (BESIDE if field in DEPENDENT else BESIDE[:1])
        for value in ODD
    ]


def fields_of(description: dict[str, Any], path: str) -> set[str]:
    """The fields that a route's body has, as the server describes it."""
    if path == "/invocations":  # which describes none
        path = "/v1/chat/completions"
    left = [description["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]]
    found: set[str] = set()
    while left:
        schema = left.pop()
        if "$ref" in schema:
            schema = description["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]
        found |= set(schema.get("properties", {}))
        left += [each for kind in ("anyOf", "oneOf", "allOf") for each in schema.get(kind, [])]
    return found
