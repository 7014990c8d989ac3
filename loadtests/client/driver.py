"""Runs a plan against one server: sends each request in time and decides when the run ends."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field

from ropeswitch.loadtests.client.plan import Planned
from ropeswitch.loadtests.client.progress import Progress
from ropeswitch.loadtests.client.records import Exchange
from ropeswitch.loadtests.client.sender import Sender

Keep = Callable[[Exchange], None]


@dataclass
class Driver:
    """Sends conversations of one or more requests each.

    Attributes:
        sender: Sends single requests.
        progress: Shows the run's progress.
        keep: Called with each exchange as soon as it ends.
        most_failures: Consecutive failures that end the run.
        stop: Set from outside to end the run early; cancels the requests in flight.
    """

    sender: Sender
    progress: Progress
    keep: Keep
    most_failures: int
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: str = ""
    start: float = 0.0

    async def open_loop(
        self, conversations: Sequence[Sequence[Planned]], due: Sequence[float], seconds: float | None
    ) -> float:
        """Send each conversation when due, regardless of requests in flight; return the seconds until the last answer.

        No later turn of a conversation is sent after ``seconds``.
        """

        async def send_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for conversation, at in sorted(zip(conversations, due, strict=True), key=lambda pair: pair[1]):
                    delay = self.start + at - time.perf_counter()
                    if delay > 0:
                        await asyncio.sleep(delay)
                    if self.stop.is_set():
                        return
                    tasks.create_task(self._converse(conversation, at, seconds))

        return await self._run(send_all)

    async def closed_loop(
        self, conversations: Sequence[Sequence[Planned]], clients: int, seconds: float | None
    ) -> float:
        """Let each of ``clients`` send one conversation after the other; return the seconds until the last answer.

        No conversation starts after ``seconds``, and none goes on.
        """
        rest: Iterator[Sequence[Planned]] = iter(conversations)

        async def client() -> None:
            for conversation in rest:
                # An interrupted request returns like an answered one.
                if self.stop.is_set():
                    return
                now = time.perf_counter() - self.start
                if seconds is not None and now >= seconds:
                    return
                await self._converse(conversation, now, seconds)

        async def send_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(clients):
                    tasks.create_task(client())

        return await self._run(send_all)

    async def _run(self, send_all: Callable[[], Coroutine[None, None, None]]) -> float:
        self.start = time.perf_counter()
        sending = asyncio.create_task(send_all())
        showing = asyncio.create_task(self._show())
        stopping = asyncio.create_task(self.stop.wait())
        try:
            await asyncio.wait({sending, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if not sending.done():
                sending.cancel()
            try:
                await sending
            except asyncio.CancelledError:
                pass
            except ExceptionGroup as group:
                # An error of the run rather than of a request, such as a full disk.
                raise group.exceptions[0] from None
        finally:
            for task in (showing, stopping):
                task.cancel()
        return time.perf_counter() - self.start

    async def _converse(self, conversation: Sequence[Planned], due: float, seconds: float | None) -> None:
        for planned in conversation:
            later = time.perf_counter() - self.start + planned.think
            if planned.turn and seconds is not None and later >= seconds:
                return
            if planned.think:
                await asyncio.sleep(planned.think)
            if self.stop.is_set():
                return
            if planned.turn:
                due = time.perf_counter() - self.start
            exchange = await self.sender.send(planned, due, self.start)
            self.keep(exchange)
            if self.progress.failed_in_a_row >= self.most_failures and not self.stop.is_set():
                count, last = self.progress.failed_in_a_row, self.progress.last_error
                self.stopped = f"{count} requests in a row failed; last error: {last}"
                self.stop.set()
            if exchange.status not in ("completed", "cancelled"):
                return

    async def _show(self) -> None:
        while True:
            await asyncio.sleep(self.progress.seconds)
            self.progress.show()
