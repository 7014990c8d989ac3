"""What one client may send to take a server from the others; a program, so that it runs beside the tests' own client.

``python -m tests.server.attacks NAME URL KEY SECONDS`` attacks for so long, and prints the statuses that it got as JSON.
"""

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
STREAMS = 60
ASKED = [{"role": "user", "content": "Go on."}]
VERBOSE = {"logprobs": True, "top_logprobs": 20, "max_tokens": 20_000, "ignore_eos": True, "stream": True}


class Attacker:
    """Sends one client's requests, and counts their statuses; 0 is a connection that the server closed."""

    def __init__(self, url: str, key: str, model: str) -> None:
        self.client = httpx.AsyncClient(
            base_url=url,
            headers={"authorization": f"Bearer {key}"},
            timeout=None,
            limits=httpx.Limits(max_connections=None),
        )
        self.host, self.port = url.partition("://")[2].split(":")
        self.key, self.model, self.statuses = key, model, Counter[int]()

    async def post(self, path: str, **body: Any) -> None:
        try:
            answer = await self.client.post(path, json={"model": self.model, **body})
            self.statuses[answer.status_code] += 1
        except httpx.HTTPError:
            self.statuses[0] += 1

    async def chat(self, **body: Any) -> None:
        await self.post(CHAT, messages=ASKED, **body)

    async def raw(self, lines: list[str], body: bytes, pause: Callable[[Any], Awaitable[None]]) -> None:
        """Send a request as it is, then ``pause`` with the writer; nothing of the response is read before."""
        reader, writer = await asyncio.open_connection(self.host, int(self.port), limit=1 << 10)
        try:
            head = [*lines, f"host: {self.host}", f"authorization: Bearer {self.key}", "content-type: application/json"]
            writer.write("\r\n".join([*head, "", ""]).encode() + body)
            with suppress(OSError):
                await writer.drain()
                await pause(writer)
            start = await asyncio.wait_for(reader.read(64), 1)
            self.statuses[int(start.split()[1]) if start else 0] += 1
        except (OSError, TimeoutError):
            self.statuses[0] += 1
        finally:
            writer.close()


async def many_sequences(attacker: Attacker) -> None:
    """Ask for 16.7 million sequences in 5 KB, then for as many as one request may have."""
    await attacker.post(COMPLETIONS, prompt=["a"] * 1024, n=16384, max_tokens=1)
    await attacker.post(COMPLETIONS, prompt=["a"] * 1024, n=1, max_tokens=1)
    await attacker.chat(n=2048, max_tokens=1)


async def large_schema(attacker: Attacker) -> None:
    """Ask for schemas that take minutes to compile."""
    for count in (20_000, 3_000):
        schema = {"type": "object", "properties": {f"property_{index}": {"type": "string"} for index in range(count)}}
        form = {"type": "json_schema", "json_schema": {"name": "large", "schema": schema}}
        await attacker.chat(response_format=form, max_tokens=1)
    await attacker.chat(structured_outputs={"regex": "((a|b|c){1,1000}){1,1000}"}, max_tokens=1)


async def bad_words(attacker: Attacker) -> None:
    """Send 30 MB of words that a tokenizer would read on the event loop."""
    await attacker.chat(bad_words=["word " * 1000] * 6000, max_tokens=1)


async def log_probabilities(attacker: Attacker) -> None:
    """Read streams with 20 log-probabilities for each token."""
    await asyncio.gather(*(attacker.chat(**VERBOSE) for _ in range(STREAMS)))


async def stopped_readers(attacker: Attacker) -> None:
    """Ask for the same streams, and read nothing of them."""
    body = json.dumps({"model": attacker.model, "messages": ASKED, **VERBOSE}).encode()
    lines = [f"POST {CHAT} HTTP/1.1", f"content-length: {len(body)}"]
    await asyncio.gather(*(attacker.raw(lines, body, lambda _: asyncio.sleep(3600)) for _ in range(STREAMS)))


async def slow_bodies(attacker: Attacker) -> None:
    """Send nearly all of the largest bodies, and then a byte each 20 s."""
    size = (64 << 20) - 8

    async def trickle(writer: Any) -> None:
        for _ in range(1000):
            await asyncio.sleep(20)
            writer.write(b" ")
            await writer.drain()

    lines = [f"POST {CHAT} HTTP/1.1", f"content-length: {size + 7}"]
    await asyncio.gather(*(attacker.raw(lines, b"{" + b" " * (size - 1), trickle) for _ in range(10)))


async def long_lists(attacker: Attacker) -> None:
    """Keep lists of prompts in flight that generate for minutes."""
    asked = {"max_tokens": 500, "ignore_eos": True}
    await asyncio.gather(
        *(attacker.post(COMPLETIONS, prompt=["Go on."] * 1024, **asked) for _ in range(4)),
        *(attacker.chat(n=1000, **asked) for _ in range(4)),
    )


async def unfinished_heads(attacker: Attacker) -> None:
    """Send 250 heads of nearly 4 MB, without their ends and without a key."""
    line = "x: " + "x" * ((4 << 20) - 4096)
    attacker.key = ""
    await asyncio.gather(
        *(attacker.raw([f"POST {CHAT} HTTP/1.1", line, "y: "], b"", lambda _: asyncio.sleep(60)) for _ in range(250))
    )


ATTACKS = {
    each.__name__: each
    for each in (
        many_sequences, large_schema, bad_words, log_probabilities, stopped_readers, slow_bodies, long_lists,
        unfinished_heads,
    )
}  # fmt: skip


async def _attack(name: str, url: str, key: str, model: str, seconds: float) -> None:
    attacker = Attacker(url, key, model)
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            while True:
                await ATTACKS[name](attacker)
    print(json.dumps(attacker.statuses), flush=True)


if __name__ == "__main__":
    asyncio.run(_attack(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], float(sys.argv[5])))
