"""Streamed answers as they come in pieces, and the times that are made of them."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.loadtests.client.stream import Events, Reply, read_events, read_whole


def read(events: list[tuple[float, bytes]]) -> Reply:
    return asyncio.run(read_events(events))


def event(content: Any) -> bytes:
    return b"data: " + json.dumps(content, ensure_ascii=False).encode() + b"\n\n"


TEXTS = ["", "a", "ü\n\n", "\u2028", 'with "choices":[{ in it', "🐀"]
STREAM = b": ping\n\n" + b"".join(event({"choices": [{"text": text, "finish_reason": None}]}) for text in TEXTS)
STREAM += event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 9}}) + b"data: [DONE]\n\n"


@given(st.lists(st.integers(1, len(STREAM) - 1), max_size=20).map(sorted), st.booleans())
def test_answers_are_the_same_however_they_come_in_pieces(cuts: list[int], is_crlf: bool) -> None:
    # Lines may end as on Windows.
    end_of_line = b"\r\n" if is_crlf else b"\n"
    stream = STREAM.replace(b"\n", end_of_line)
    events = Events()
    first: list[int] = []
    for number, (start, end) in enumerate(zip([0, *cuts], [*cuts, len(stream)], strict=True)):
        if events.add(float(number), stream[start:end]):
            first.append(number)
    reply = read(events.events)
    assert reply.text == "".join(TEXTS)
    assert (reply.prompt_tokens, reply.output_tokens, reply.finish_reason, reply.error) == (7, 9, None, "")
    assert len(reply.times) == events.tokens == len(TEXTS)
    assert list(reply.times) == sorted(reply.times) and first == [reply.times[0]]
    # An event's time is that of its last byte.
    end = stream.find(2 * end_of_line, stream.find(b'"a"')) + 2 * len(end_of_line)
    assert reply.times[1] == sum(cut < end for cut in cuts)


def test_chats_and_their_reasons() -> None:
    events = Events()
    events.add(1.0, event({"choices": [{"delta": {"role": "assistant", "content": ""}}]}))
    events.add(2.0, event({"choices": [{"delta": {"content": "a"}}]}))
    events.add(3.0, event({"choices": [{"delta": {"content": None}, "finish_reason": "stop"}]}))
    reply = read(events.events)
    assert (reply.text, reply.finish_reason, reply.times, reply.output_tokens) == ("a", "stop", (1.0, 2.0, 3.0), None)


def test_errors_in_streams_are_told() -> None:
    events = Events()
    events.add(1.0, event({"error": {"message": "out of memory", "code": 500}}))
    assert read(events.events).error == "out of memory"
    events.add(1.0, b"data: {\n\n")
    with pytest.raises(ValueError):
        read(events.events)


def test_an_event_that_does_not_end_is_refused() -> None:
    events = Events()
    with pytest.raises(ValueError, match="an event of more than 1048576 bytes: b'xxx"):
        for _ in range(100):
            events.add(1.0, b"x" * 65536)
    assert len(events._rest) < 2 << 20


def test_whole_answers() -> None:
    body = {
        "choices": [{"message": {"content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 4},
    }
    reply = read_whole(json.dumps(body).encode())
    assert (reply.text, reply.prompt_tokens, reply.output_tokens, reply.times) == ("a", 3, 4, ())
    for wrong in (b"{}", b"[]", b"x", b'{"choices": []}'):
        with pytest.raises(ValueError):
            read_whole(wrong)


def test_named_events_and_a_last_one_without_its_end_count() -> None:
    events = Events()
    events.add(1.0, b"event: token\nid: 1\n" + event({"choices": [{"text": "a"}]}) + b": comment\n\n")
    assert not events.add(2.0, event({"choices": [{"text": "b"}]}).strip())
    events.end(3.0)
    reply = read(events.events)
    assert (reply.text, reply.times) == ("ab", (1.0, 3.0))


def test_long_answers_are_read_in_parts() -> None:
    events = Events()
    for _ in range(1000):
        events.add(1.0, event({"choices": [{"text": "a"}]}))

    async def turns() -> int:
        reading, count = asyncio.ensure_future(read_events(events.events)), 0
        while not reading.done():
            count += 1
            await asyncio.sleep(0)
        return count

    assert asyncio.run(turns()) >= 5
