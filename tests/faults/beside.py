"""Other clients: they ask all the while, and must get what they get when they are alone."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.faults.conftest import MODEL
from tests.server.running import Server


def asked(step: int, length: int, tokens: int) -> dict[str, Any]:
    greedy = {"model": MODEL, "temperature": 0, "ignore_eos": True, "return_token_ids": True, "max_tokens": tokens}
    return greedy | {"prompt": [5 + (step * 7 + i) % 90 for i in range(length)]}


# Into the next factor set, within the first, and from a long prompt.
ASKED = (asked(1, 250, 12), asked(3, 40, 8), asked(7, 600, 8))


class Beside(threading.Thread):
    """Asks for the same answers again and again.

    Attributes:
        answers: How many came.
        wrong: What came that was not as it is alone.
    """

    def __init__(self, server: Server, bodies: tuple[dict[str, Any], ...]) -> None:
        super().__init__(daemon=True)
        self.server, self.bodies = server, bodies
        self.alone = [self.tokens_of(body) for body in bodies]
        self.answers = 0
        self.wrong: list[Any] = []
        self.over = threading.Event()

    def tokens_of(self, body: dict[str, Any]) -> list[int]:
        answer = self.server.post("/v1/completions", body)
        assert answer.status == 200, answer.text
        return list(json.loads(answer.text)["choices"][0]["token_ids"])

    def run(self) -> None:
        while not self.over.is_set() or not self.answers:
            at = self.answers % len(self.bodies)
            try:
                found = self.tokens_of(self.bodies[at])
            except (AssertionError, OSError) as error:
                self.wrong.append(error)
                return
            self.answers += 1
            if found != self.alone[at]:
                self.wrong.append((self.bodies[at], found, self.alone[at]))


@contextmanager
def unharmed(server: Server, bodies: tuple[dict[str, Any], ...] = ASKED, clients: int = 1) -> Iterator[list[Beside]]:
    """During the block other clients ask; after it, all of their answers were right and none was late for ever."""
    others = [Beside(server, bodies[at % len(bodies) :] + bodies[: at % len(bodies)]) for at in range(clients)]
    for each in others:
        each.start()
    try:
        yield others
    finally:
        for each in others:
            each.over.set()
        for each in others:
            each.join(120)
    for each in others:
        assert not each.is_alive(), "another client still waits"
        assert not each.wrong, each.wrong[:1]
