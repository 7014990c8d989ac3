"""Named checks of one client library: each runs by itself, and its result is one line of JSON on standard output.

A program beside this file imports one client library, registers its checks and calls :func:`main`. It runs in the
environment that has the library, which need not be the engine's, so this file needs the standard library only.
"""

import json
import os
import time
import traceback
import urllib.request
from collections.abc import Callable
from typing import Any, TypeVar

URL = os.environ["CLIENT_URL"]
"""The server's address, without ``/v1``."""
MODEL = os.environ["CLIENT_MODEL"]
KEY = os.environ["CLIENT_KEY"]
LIMITED_KEY = os.environ["CLIENT_LIMITED_KEY"]
"""A key that only the check of the rate limit uses, so that no other check is refused."""
CONCURRENT = int(os.environ["CLIENT_CONCURRENT"])
"""Requests in flight that a key may have."""

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
# Longer than one block of the prefix cache, which is 128 tokens on a CPU.
LONG = [{"role": "user", "content": "The grass is green. The sky is blue. The sun is yellow. " * 40}]
TOO_LONG = [{"role": "user", "content": "one two three " * int(os.environ["CLIENT_PROMPT_LIMIT"])}]
TOO_MANY_TOKENS = 100_000_000
# Answers to it do not end before they are cancelled.
ENDLESS = {"max_tokens": 4000, "extra_body": {"ignore_eos": True}}
CITY = {"enum": ["Oslo", "Rome"]}


def closed(**properties: object) -> dict[str, object]:
    """The schema of an object that has these properties, all of them, and no others."""
    return {"type": "object", "properties": properties, "required": [*properties], "additionalProperties": False}


ARGUMENTS = closed(city=CITY, celsius={"type": "boolean"})
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": ARGUMENTS}}
# The choice of it, in OpenAI's form.
FORCED = {"type": "function", "function": {"name": "weather"}}
SCHEMA = closed(city=CITY, people={"type": "integer", "minimum": 1, "maximum": 9})

Error = TypeVar("Error", bound=Exception)

_checks: dict[str, Callable[[], None]] = {}


def check(name: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    """Register a function as the check ``name``, which the table of docs/clients.md lists."""

    def register(function: Callable[[], None]) -> Callable[[], None]:
        assert name not in _checks, name
        _checks[name] = function
        return function

    return register


def main() -> None:
    """Run every check; print its name, its error or null, as one line of JSON."""
    for name, function in _checks.items():
        error = None
        try:
            function()
        except Exception:
            error = traceback.format_exc()
        print(json.dumps({"check": name, "error": error}), flush=True)


def raised(kind: type[Error], call: Callable[[], object]) -> Error:
    """The error of this type that a call raises.

    Raises:
        AssertionError: when the call raises nothing; errors of other types pass through.
    """
    try:
        answer = call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}, but {answer!r}")


def rate_limited(create: Callable[..., Any], kind: type[Error], endless: dict[str, Any]) -> Error:
    """The error of a request beside as many streams as the key may have; these are cancelled then."""
    streams = [create(stream=True, **endless) for _ in range(CONCURRENT)]
    error = raised(kind, lambda: create(max_tokens=1))
    for each in streams:
        each.close()
    wait_until_idle()
    return error


def cancelled(create: Callable[..., Any], endless: dict[str, Any]) -> None:
    """Leave a stream after its first event."""
    stream = create(stream=True, **endless)
    next(iter(stream))
    stream.close()
    wait_until_idle()


def city(text: str | None) -> str:
    """The city in a text that must be JSON of :data:`SCHEMA`."""
    value = json.loads(text or "")
    assert value.keys() == {"city", "people"} and 1 <= value["people"] <= 9, value
    assert value["city"] in ("Oslo", "Rome"), value
    return str(value["city"])


def weather(arguments: str) -> None:
    """Check the arguments of a call of :data:`TOOL`."""
    value = json.loads(arguments)
    assert value.keys() == {"city", "celsius"} and value["city"] in ("Oslo", "Rome"), value
    assert isinstance(value["celsius"], bool), value


def wait_until_idle(seconds: float = 60) -> None:
    """Wait until the engine runs no request: what a client has given up is not computed to its end.

    Raises:
        AssertionError: when requests are still running after ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while (running := _running()) > 0:
        assert time.monotonic() < deadline, f"{running:g} requests still run after {seconds:g} s"
        time.sleep(0.1)


def _running() -> float:
    request = urllib.request.Request(f"{URL}/metrics", headers={"Authorization": f"Bearer {KEY}"})
    with urllib.request.urlopen(request, timeout=30) as response:
        lines = response.read().decode().splitlines()
    return sum(
        float(line.rsplit(" ", 1)[1])
        for line in lines
        if line.startswith(("vllm:num_requests_running{", "vllm:num_requests_waiting{"))
    )
