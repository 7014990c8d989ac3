"""Streams that keep a server busy while something is looked at."""

import json
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager

from tests.server.running import Server

# Tokens that passkey-tiny takes.
LONGEST = 1024


@contextmanager
def streaming(server: Server, key: str, *prompts: int) -> Iterator[None]:
    """A client for each of ``prompts``, lengths in tokens, that streams one longest answer after the other."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def stream(prompt: int) -> None:
        try:
            while not stop.is_set():
                for _ in lines(server, key, prompt, LONGEST - prompt):
                    if stop.is_set():
                        break
        except OSError as error:
            failed.append(error)

    clients = [threading.Thread(target=stream, args=(prompt,)) for prompt in prompts]
    for client in clients:
        client.start()
    try:
        yield
    finally:
        stop.set()
        for client in clients:
            client.join(timeout=60)
    assert failed == []


def lines(server: Server, key: str, prompt: int, tokens: int, first: int = 5) -> Iterator[bytes]:
    """The events of one stream; prompts that begin with the same token share their keys."""
    body = {
        "prompt": [first + i % 200 for i in range(prompt)],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": True,
    }
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(f"{server.url}/v1/completions", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=120) as response:
        yield from (line for line in response if line.startswith(b"data: {"))
