"""Right requests with one field made odd are answered or refused, and never a fault of the server."""

import json
from collections import Counter
from typing import Any

import httpx2
import pytest

from tests.faults.conftest import MODEL
from tests.faults.state import metrics, settle
from tests.server import mistakes
from tests.server.running import Server

# What else of a request makes a field matter.
BESIDE: tuple[dict[str, Any], ...] = (
    {},
    {"tools": [mistakes.TOOL]},
    {"tools": [{}]},
    {"stream": True},
    {"logprobs": True},
)
DEPENDENT = ("tool_choice", "stop_token_ids", "stream_options", "structured_outputs", "top_logprobs")
NESTED = [json.loads("[" * depth + "null" + "]" * depth) for depth in (100, 200, 450, 900)]
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
# Wrong types, ends of ranges, halves of things, and programs.
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**63, 2**64, -(2**70), 10**40, 1.5, 1e308, "", "a", "\ud800", "\0", "auto", "required"),
    *([], [-1], [2**70], ["a"], [[]], [None], [{}], [[5]], {}, {"a": 1}, {"-1": 1}, {"5": 1e308}),
    *NESTED,
    *({"type": "json_schema"}, {"type": "json_schema", "json_schema": {}}, {"type": "structural_tag"}),
    *({"type": "function", "function": {"name": "x"}}, {"json": "{"}, {"regex": "("}, {"choice": []}, {"json": 5}),
    *([{"role": "user"}], [{"role": "assistant", "tool_calls": [{}]}], [{"role": "user", "content": 5}]),
    *([{"role": "user", "content": [IMAGE]}], {"json": {"minimum": 2**70}}, "{{ 1/0 }}", "{{ x.y.z }}", "{% if %}"),
    *({"rope_factor_set": 5}, {"max_pattern_size": 2, "min_count": 2}, str(2**70), {"structural_tag": "{"}),
)


def bodies(path: str, fields: set[str]) -> list[bytes]:
    """The right request to a route with each of its fields replaced by each odd value in turn."""
    return [
        json.dumps(mistakes.RIGHT[path] | {"model": MODEL} | more | {field: value}).encode()
        for field in sorted(fields | {"vllm_xargs", "tools"})
        for more in (BESIDE if field in DEPENDENT else BESIDE[:1])
        # The last two routes read their bodies as the chat's does.
        for value in (ODD[::3] if path in ("/invocations", "/v1/chat/completions/batch") else ODD)
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


@pytest.mark.full
@pytest.mark.parametrize("path", mistakes.RIGHT)
def test_no_value_of_a_field_is_a_fault_of_the_server(server: Server, path: str) -> None:
    settle(server)
    before = metrics(server)["ropeswitch_requests_total{error}"]
    faults: list[Any] = []
    statuses: Counter[int] = Counter()
    with httpx2.Client(base_url=server.url, timeout=60, headers={"content-type": "application/json"}) as client:
        for body in bodies(path, fields_of(server.get("/openapi.json").json, path)):
            answer = client.post(path, content=body)
            statuses[answer.status_code] += 1
            failed = '"server_error"' in answer.text and 'data: {"error"' in answer.text
            if answer.status_code >= 500 or failed:
                faults.append((body[:500], answer.status_code, answer.text[-300:]))
            elif answer.status_code >= 400:
                assert len(answer.json()["error"]["message"]) > 10, (body[:500], answer.text)
    assert not faults, (len(faults), faults[:5])
    assert statuses[200] and statuses[400]
    settle(server)
    assert metrics(server)["ropeswitch_requests_total{error}"] == before
