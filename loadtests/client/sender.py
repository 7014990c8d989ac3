"""Sends one request and records its outcome."""

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any

import aiohttp

from ropeswitch.factors.evaluate.endpoint import Endpoint, error_message
from ropeswitch.factors.factor_set import SET_HEADER
from ropeswitch.loadtests.client.pieces import Text
from ropeswitch.loadtests.client.plan import Planned
from ropeswitch.loadtests.client.progress import Progress
from ropeswitch.loadtests.client.prompts import Prompts
from ropeswitch.loadtests.client.records import Exchange, Status
from ropeswitch.loadtests.client.stream import Events, Reply, read_events, read_whole, writable
from ropeswitch.loadtests.client.workload import Workload

# Bodies are sent in parts of this size, so that one of several megabytes does not delay other requests.
PART_BYTES = 1 << 18


@dataclass(frozen=True)
class Client:
    """How to send requests: ``timeout`` is for a complete answer, in seconds."""

    workload: Workload
    text: Text
    keys: tuple[str, ...]
    timeout: float
    most_failures: int
    shown: bool


@dataclass(frozen=True)
class Sender:
    """Sends a plan's requests to one server.

    ``salt`` is vLLM's ``cache_salt``, which keeps this run from hitting other runs' prefix cache.
    """

    session: aiohttp.ClientSession
    endpoint: Endpoint
    client: Client
    prompts: Prompts
    salt: str
    progress: Progress

    async def send(self, planned: Planned, due: float, start: float) -> Exchange:
        """Send a request now and return its outcome, failures included; ``interrupted`` if the task is cancelled.

        Args:
            planned: The request.
            due: When it was due, in seconds since ``start``.
            start: The run's start, by ``time.perf_counter()``.
        """
        key = self.client.keys[planned.key]
        chunks = self._chunks(planned)
        size = sum(map(len, chunks))
        headers = self.endpoint.headers | {"Content-Length": str(size)}
        data: Any = b"".join(chunks) if size <= PART_BYTES else _parts(chunks)
        events = Events()
        sent = time.perf_counter()
        same = {
            name: getattr(planned, name) for name in ("index", "kind", "prompt_tokens", "max_tokens", "form", "turn")
        }
        session = planned.conversation if planned.turns > 1 else None
        blank = Exchange(
            **same, due=due, sent=sent - start, latency=0.0, status="failed", streamed=planned.stream, key=key,
            session=session,
        )  # fmt: skip
        self.progress.began(blank)
        found = blank
        try:
            async with asyncio.timeout(self.client.timeout):
                found = await self._exchange(planned, blank, sent, headers, data, events)
        except TimeoutError:
            found = replace(blank, error=f"no complete answer within {self.client.timeout:g} s")
        except asyncio.CancelledError:
            found = replace(blank, status="interrupted", error="the run ended before the answer")
        except (aiohttp.ClientError, OSError, ValueError) as error:
            found = replace(blank, error=f"{type(error).__name__}: {error}")
        ended = time.perf_counter() - sent
        if found.status in ("completed", "cancelled"):
            done = found
        else:
            done = replace(found, latency=ended, ttft=events.events[0][0] - sent if events.tokens else None)
        done = replace(done, error=writable(done.error), answer=writable(done.answer))
        self.progress.ended(done)
        return done

    async def _exchange(
        self, planned: Planned, blank: Exchange, sent: float, headers: dict[str, str], data: Any, events: Events
    ) -> Exchange:
        path = "/v1/chat/completions" if self.client.workload.endpoint == "chat" else "/v1/completions"
        # A redirect would lead to another server, and a body sent in parts cannot be sent twice.
        asked = self.session.post(self.endpoint.url + path, data=data, headers=headers, allow_redirects=False)
        async with asked as response:
            answered = replace(blank, http_status=response.status, factor_set=response.headers.get(SET_HEADER))
            if response.status != 200:
                return replace(answered, error=error_message(await response.read()) or str(response.reason))
            if planned.cancel_after == 0:
                return replace(answered, status="cancelled", latency=time.perf_counter() - sent)
            if not planned.stream:
                return self._ended(answered, read_whole(await response.read()), sent, "completed")
            async for data_ in response.content.iter_any():
                if events.add(time.perf_counter(), data_):
                    self.progress.first(events.events[-1][0] - sent)
                if planned.cancel_after is not None and events.tokens >= planned.cancel_after:
                    break
            else:
                events.end(time.perf_counter())
        reply = await read_events(events.events)
        reached = planned.cancel_after is not None and events.tokens >= planned.cancel_after
        if reached and reply.times and reply.finish_reason is None and not reply.error:
            return self._ended(answered, reply, sent, "cancelled")
        if reply.error or not reply.times:
            return replace(answered, error=reply.error or "the stream ended without a token")
        return self._ended(answered, reply, sent, "completed")

    def _ended(self, exchange: Exchange, reply: Reply, sent: float, status: Status) -> Exchange:
        """Return an exchange with its reply; a completed one is judged, if it may have room for the key."""
        assert exchange.key is not None, "every request has a pass key"
        times, text, correct = reply.times, self.client.text, None
        if status == "completed" and exchange.max_tokens >= text.answer:
            correct = text.has_key(reply.text, exchange.key, not self.client.workload.ignore_eos)
        return replace(
            exchange,
            status=status,
            ttft=times[0] - sent if times else None,
            itl=tuple(after - before for before, after in itertools.pairwise(times)),
            latency=(times[-1] if times else time.perf_counter()) - sent,
            output_tokens=reply.output_tokens or len(times) or 1,
            counted_prompt_tokens=reply.prompt_tokens,
            finish_reason=reply.finish_reason,
            answer=reply.text,
            correct=correct,
        )

    def _chunks(self, planned: Planned) -> list[memoryview | bytes]:
        """Return the request's body in parts; all but the prompt is built now."""
        chat = self.client.workload.endpoint == "chat"
        fields: dict[str, Any] = {
            "model": self.endpoint.model,
            "max_completion_tokens" if chat else "max_tokens": planned.max_tokens,
            "temperature": 0.0,
            "stream": planned.stream,
        }
        if planned.stream:
            fields["stream_options"] = {"include_usage": True}
        if self.client.workload.ignore_eos:
            fields["ignore_eos"] = True
        if self.endpoint.is_vllm:
            fields["cache_salt"] = self.salt
        return [json.dumps(fields)[:-1].encode() + b",", self.prompts.prompt(planned.index), b"}"]


async def _parts(chunks: list[memoryview | bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        for start in range(0, len(chunk), PART_BYTES):
            yield bytes(chunk[start : start + PART_BYTES])
