"""Other clients: they ask all the while, and must get what they get when they are alone."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event
from typing import Any

from tests.faults.conftest import MODEL
from tests.server.running import Server


def asked(step: int, length: int, tokens: int) -> dict[str, Any]:
    greedy = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": tokens}
    return greedy | {"prompt": [5 + (step * 7 + i) % 90 for i in range(length)]}


# Into the next factor set, within the first, and from a long prompt.
ASKED = (asked(1, 250, 12), asked(3, 40, 8), asked(7, 600, 8))


def tokens_of(server: Server, body: dict[str, Any]) -> list[int]:
    answer = server.post("/v1/completions", body)
    assert answer.status == 200, answer.text
    return list(answer.json["choices"][0]["token_ids"])


@contextmanager
def unharmed(server: Server, bodies: tuple[dict[str, Any], ...] = ASKED, clients: int = 1) -> Iterator[None]:
    """During the block other clients ask; after it, all of their answers were right and none was late for ever."""
    alone = [tokens_of(server, body) for body in bodies]
    over = Event()

    def ask(at: int) -> None:
        once = False
        while not (once and over.is_set()):
            assert tokens_of(server, bodies[at % len(bodies)]) == alone[at % len(bodies)], bodies[at % len(bodies)]
            once, at = True, at + 1

    with ThreadPoolExecutor(clients) as pool:
        others = [pool.submit(ask, at) for at in range(clients)]
        try:
            yield
        finally:
            over.set()
        for each in others:
            each.result(120)
