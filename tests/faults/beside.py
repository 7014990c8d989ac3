"""The other client: it asks all the while, and must get what it gets when it is alone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults.conftest import MODEL
from tests.server.running import Server

# Into the next factor set, within the first, and from a long prompt.
ASKED: tuple[dict[str, Any], ...] = tuple(
    {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": tokens}
    | {"prompt": [5 + (step + i) % 90 for i in range(length)]}
    for step, length, tokens in ((1, 250, 12), (3, 40, 8), (7, 600, 8))
)


def tokens_of(server: Server, body: dict[str, Any]) -> list[int]:
    """The tokens of an answer."""
    answer = server.post("/v1/completions", body)
    assert answer.status == 200, answer.text
    return list(json.loads(answer.text)["choices"][0]["token_ids"])


class Beside(threading.Thread):
    """Asks for the same answers again and again.

    Attributes:
        answers: How many came.
        wrong: What came that was not as it is alone.
    """

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.server = server
        self.alone = [tokens_of(server, body) for body in ASKED]
        self.answers = 0
        self.wrong: list[Any] = []
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.is_set() or self.answers < len(ASKED):
            at = self.answers % len(ASKED)
            try:
                found = tokens_of(self.server, ASKED[at])
            except (AssertionError, OSError) as error:
                self.wrong.append(error)
                return
            self.answers += 1
            if found != self.alone[at]:
                self.wrong.append((ASKED[at], found, self.alone[at]))


@contextmanager
def unharmed(server: Server) -> Iterator[Beside]:
    """During the block another client asks; after it, all of its answers were right and none was late for ever."""
    other = Beside(server)
    other.start()
    try:
        yield other
    finally:
        other.over.set()
        other.join(120)
    assert not other.is_alive(), "the other client still waits"
    assert not other.wrong, other.wrong[:1]
    assert other.answers >= len(ASKED)
