"""The events of a streamed answer: stored with their arrival times, parsed when it has ended.

The definitions are upstream's (``vllm.benchmarks.lib.endpoint_request_func``): every event with a choice counts as a token,
regardless of its text. The first one sets the time to first token, and the time between two is an inter-token latency.
"""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

# Maximum size of one event, which has one token or a few.
MOST_BYTES = 1 << 20
# Events to parse without a pause, which takes a few milliseconds.
PART_EVENTS = 200


@dataclass
class Events:
    """Collects server-sent events as they arrive; :meth:`add` does little, so that it does not delay other requests.

    Raises a ValueError for an event that does not end within :data:`MOST_BYTES`.
    """

    events: list[tuple[float, bytes]] = field(default_factory=list)
    tokens: int = 0
    _rest: bytes = b""

    def add(self, at: float, data: bytes) -> bool:
        """Add bytes that arrived at a time; return whether they include the first token."""
        before = self.tokens
        self._rest = (self._rest + data).replace(b"\r\n", b"\n")
        while (end := self._rest.find(b"\n\n")) >= 0:
            event, self._rest = self._rest[:end], self._rest[end + 2 :]
            self._take(at, event)
        if len(self._rest) > MOST_BYTES:
            raise ValueError(f"an event of more than {MOST_BYTES} bytes: {self._rest[:100]!r}")
        return not before and bool(self.tokens)

    def end(self, at: float) -> None:
        """End the stream; as in upstream, remaining bytes are an event too."""
        self._take(at, self._rest)
        self._rest = b""

    def _take(self, at: float, event: bytes) -> None:
        # Servers may also send event names and comments.
        data = b"".join(line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:"))
        if data:
            self.events.append((at, data))
            # Events without choices are the usage and the final [DONE].
            self.tokens += b'"choices":[{' in data or b'"choices": [{' in data


@dataclass(frozen=True)
class Reply:
    """A parsed answer: each chunk's arrival time, counts and reason by the server, and its error after the beginning."""

    times: tuple[float, ...]
    text: str
    prompt_tokens: int | None
    output_tokens: int | None
    finish_reason: str | None
    error: str


async def read_events(events: list[tuple[float, bytes]]) -> Reply:
    """Parse a streamed answer. Long ones are parsed in parts, so that other requests run in between.

    Raises ValueError if an event is not a JSON object.
    """
    times: list[float] = []
    texts: list[str] = []
    usage: dict[str, Any] = {}
    reason, error = None, ""
    for number, (at, content) in enumerate(events, 1):
        if number % PART_EVENTS == 0:
            await asyncio.sleep(0)
        if content == b"[DONE]":
            continue
        chunk = _object(_json(content), "an event", content)
        if problem := chunk.get("error"):
            error = str(problem.get("message") if isinstance(problem, dict) else problem)
        if choice := _choice(chunk, content):
            times.append(at)
            texts.append(_text(choice, content))
            reason = choice.get("finish_reason") or reason
        if counts := chunk.get("usage"):
            usage = _object(counts, "usage", content)
    counted = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return Reply(tuple(times), "".join(texts), *counted, reason, error)


def read_whole(body: bytes) -> Reply:
    """Parse an answer that was not streamed; raises ValueError if it is not a completion."""
    content = _object(_json(body), "the answer", body)
    choice = _choice(content, body)
    if not choice:
        raise ValueError(f"the answer has no choices: {body[:100]!r}")
    usage = _object(content.get("usage") or {}, "usage", body)
    counted = _count(usage, "prompt_tokens"), _count(usage, "completion_tokens")
    return Reply((), _text(choice, body), *counted, choice.get("finish_reason"), "")


def writable(text: str) -> str:
    """Replace lone surrogates in a server's text, which cannot be written to a file."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except RecursionError as error:
        raise ValueError(f"JSON is nested too deeply: {content[:100]!r}") from error


def _object(value: Any, what: str, content: bytes) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{what} is not a JSON object: {content[:100]!r}")
    return value


def _choice(chunk: dict[str, Any], content: bytes) -> dict[str, Any] | None:
    choices = chunk.get("choices")
    if not choices:
        return None
    return _object(choices[0] if isinstance(choices, list) else None, "a choice", content)


def _count(usage: dict[str, Any], name: str) -> int | None:
    found = usage.get(name)
    if found is not None and (type(found) is not int or found < 0):
        raise ValueError(f"usage.{name}: {str(found)[:100]} must be a number of tokens")
    return found


def _text(choice: dict[str, Any], content: bytes) -> str:
    part = _object(choice.get("delta") or choice.get("message") or choice, "a choice's message", content)
    return str(part.get("content") or part.get("text") or "")
