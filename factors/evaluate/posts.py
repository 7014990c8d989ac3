"""Sends requests to an OpenAI-compatible server, several at a time."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from ropeswitch.factors.evaluate.endpoint import Endpoint, error_message
from ropeswitch.factors.factor_set import FactorError


@dataclass(frozen=True)
class Posts:
    """An open connection to a server."""

    endpoint: Endpoint
    timeout: int  # Of one request, in seconds.
    _session: aiohttp.ClientSession
    _gate: asyncio.Semaphore

    async def send(self, path: str, body: Mapping[str, Any]) -> tuple[Mapping[str, str], Any]:
        """Send a body, and retry after ``Retry-After``; return the answer's headers and JSON, or a stream's events.

        Raises:
            FactorError: when the server does not answer, refuses, or answers what is not JSON.
        """
        url, ends = self.endpoint.url + path, time.monotonic() + self.timeout
        try:
            while True:
                async with self._gate, self._session.post(url, json=body, allow_redirects=False) as response:
                    content = await response.read()
                wait = response.headers.get("retry-after", "")
                # Full queues and limits of a key, which these requests may fill themselves.
                if response.status not in (429, 503) or not wait.isdigit() or time.monotonic() + int(wait) > ends:
                    break
                await asyncio.sleep(int(wait))
        except TimeoutError as error:
            raise FactorError(f"{url} did not answer within {self.timeout} s (--timeout)") from error
        except (aiohttp.ClientError, OSError) as error:
            raise FactorError(f"{url} does not answer: {str(error) or type(error).__name__}") from error
        if response.status != 200:
            raise FactorError(f"{url} answered {response.status}: {error_message(content) or 'no message'}")
        try:
            if body.get("stream"):
                events = [line[6:].strip() for line in content.split(b"\n") if line.startswith(b"data: ")]
                return response.headers, [json.loads(each) for each in events if each != b"[DONE]"]
            return response.headers, json.loads(content)
        except (ValueError, RecursionError) as error:
            raise nonsense(url, content) from error


@asynccontextmanager
async def posting(endpoint: Endpoint, timeout: int, concurrency: int) -> AsyncIterator[Posts]:
    """Open a connection on which at most ``concurrency`` requests are in flight, each for ``timeout`` seconds."""
    limits = aiohttp.ClientTimeout(total=None, sock_connect=60, sock_read=timeout)
    # A caller may compute for longer than servers keep idle connections.
    connector = aiohttp.TCPConnector(limit=0, force_close=True, ssl=endpoint.tls or True)
    async with aiohttp.ClientSession(timeout=limits, connector=connector, headers=endpoint.headers) as session:
        yield Posts(endpoint, timeout, session, asyncio.Semaphore(concurrency))


def nonsense(url: str, content: bytes) -> FactorError:
    """Return the error for an answer that no OpenAI-compatible server gives."""
    return FactorError(f"{url} answered {content[:100]!r}, which is not a response of an OpenAI-compatible server")
