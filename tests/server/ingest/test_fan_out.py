"""Limits on what one body starts."""

from typing import Any

import pytest

from ropeswitch.server.front.bodies.parse import TokenIds
from ropeswitch.server.front.flags import CONSTRAINTS, CostLimits
from ropeswitch.server.front.limits.cost import excess

IDS = TokenIds([list(range(5000))])


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": ["a"] * 1024, "n": 16384, "max_tokens": 1}, "n"),
        ({"prompt": ["a"] * 1025}, "prompt"),
        ({"prompt": [[1]] * 1025}, "prompt"),
        ({"prompt": "a", "n": "1025"}, "n"),
        ({"prompt": "a", "n": "1500.0"}, "n"),
        ({"prompt": ["a"] * 8, "n": "2_00.00"}, "n"),
        ({"prompt": "a", "n": 1025.0, "use_beam_search": True}, "n"),
        ({"messages": [{"role": "user", "content": "a"}], "n": 1025}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 33, "n": 32}, "n"),
        ({"messages": [[{"role": "user", "content": "a"}]] * 1025}, "messages"),
        ({"token_ids": [1], "sampling_params": {"n": 1025}}, "sampling_params.n"),
        ({"token_ids": [1], "n": 1, "sampling_params": {"n": 1025}}, "sampling_params.n"),
        ({"input": ["a"] * 1025}, "input"),
        ({"query": "a", "documents": ["a"] * 1025}, "documents"),
        ({"prompt": "a", "bad_words": ["a" * (CONSTRAINTS + 1)]}, "bad_words"),
        ({"prompt": "a", "bad_words": ["a" * CONSTRAINTS], "stop": "b"}, "stop"),
        ({"prompt": ["a"] * 1024, "logit_bias": {str(i): 1 for i in range(513)}}, "logit_bias"),
        ({"model": "/a" * 257, "prompt": "a"}, "model"),
        ({"prompt": "a", "n": 1024, "allowed_token_ids": list(range(513))}, "allowed_token_ids"),
        ({"prompt": "a", "stop": "é" * (CONSTRAINTS // 2 + 1)}, "stop"),
        ({"messages": [], "stop_sequences": ["a" * 1024] * 513}, "stop_sequences"),
        ({"token_ids": [1], "sampling_params": {"stop": ["a" * 1024] * 513}}, "sampling_params.stop"),
    ],
)
def test_more_is_refused(body: dict[str, Any], param: str) -> None:
    refusal = excess(body, CostLimits())
    assert refusal is not None and refusal.param == param
    assert refusal.message.startswith(f"{param}: ") and "at most" in refusal.message


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ["a"] * 1024},
        {"prompt": ["a"] * 32, "n": 32},
        {"prompt": IDS, "n": 1024},
        {"prompt": [IDS] * 1024},
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
def test_as_much_as_allowed_is_accepted(body: Any) -> None:
    assert excess(body, CostLimits()) is None
