"""Executes one run: warms the server up, sends each request of a plan in time, and decides when the run ends."""

import asyncio
import gc
import resource
import signal
import time
import uuid
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass, field, replace

import aiohttp

from ropeswitch.factors.evaluate.endpoint import Endpoint
from ropeswitch.loadtests.client.plan import Planned, due_times
from ropeswitch.loadtests.client.progress import SECONDS, Progress
from ropeswitch.loadtests.client.prompts import Prompts
from ropeswitch.loadtests.client.records import Exchange, Run, Store
from ropeswitch.loadtests.client.sender import Client, Sender

WARMUP_CLIENTS = 4
INTERRUPTED = "stopped by Ctrl-C"
TERMINATED = "stopped by SIGTERM"


@dataclass
class Driver:
    """Sends conversations of one or more requests each.

    Attributes:
        keep: Called with each exchange as soon as it ends.
        stop: Set from outside to end the run early; cancels the requests in flight.
        stopped: Why the run ended early by itself, such as ``most_failures`` in a row.
    """

    sender: Sender
    progress: Progress
    keep: Callable[[Exchange], None]
    most_failures: int
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    stopped: str = ""
    start: float = 0.0

    async def open_loop(self, due: Sequence[tuple[float, Sequence[Planned]]], seconds: float | None) -> float:
        """Send each conversation when due, and no later turn after ``seconds``; return the time until the last answer."""

        async def send_all() -> None:
            async with asyncio.TaskGroup() as tasks:
                for at, conversation in sorted(due, key=lambda pair: pair[0]):
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
        """Let each of ``clients`` send one conversation after the other, until ``seconds``; return as ``open_loop``."""
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
            await asyncio.sleep(SECONDS)
            self.progress.show()


async def execute(
    client: Client, endpoint: Endpoint, run: Run, prompts: Prompts, warmup: Prompts | None, seed: int, store: Store
) -> Run:
    """Send the warm-up, which is not recorded, and then the prompts, at times that ``seed`` draws.

    Returns:
        The finished run; incomplete if it was interrupted or too many consecutive requests failed.
    """
    exchanges: list[Exchange] = []

    def kept(exchange: Exchange) -> None:
        store.keep(run, exchange)
        exchanges.append(exchange)

    ssl = endpoint.tls if endpoint.tls is not None else True
    # A connection for every request in flight; neither a proxy nor a session timeout.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=60, ssl=ssl)
    # Each request in flight needs a file descriptor, and shells often allow only about a thousand.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(total=None)) as session:
        progress = Progress(run.name, len(prompts.planned), client.shown)
        sender = Sender(session, endpoint, client, prompts, uuid.uuid4().hex, progress)
        driver = Driver(sender, progress, kept, client.most_failures)
        reasons = _stop_on_signals(driver)
        if warmup is not None:
            await _warm_up(client, driver, sender, warmup)
        duration = 0.0
        if not driver.stop.is_set():
            # As upstream does, spare the collector from scanning existing objects while requests are timed.
            gc.collect()
            gc.freeze()
            duration = await _drive(client, driver, run, prompts, seed)
            gc.unfreeze()
        progress.show()
    stopped = driver.stopped or "".join(reasons)
    return replace(run, duration=duration, complete=not stopped, stopped=stopped, exchanges=tuple(exchanges))


def _stop_on_signals(driver: Driver) -> list[str]:
    """End the run at the first SIGINT or SIGTERM, whose reason the returned list receives; a second one kills."""
    reasons: list[str] = []
    loop = asyncio.get_running_loop()

    def stop(reason: str) -> None:
        reasons.append(reason)
        driver.stop.set()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    loop.add_signal_handler(signal.SIGINT, stop, INTERRUPTED)
    loop.add_signal_handler(signal.SIGTERM, stop, TERMINATED)
    return reasons


async def _warm_up(client: Client, driver: Driver, sender: Sender, warmup: Prompts) -> None:
    progress = Progress("warm-up", len(warmup.planned), shown=False)
    sender = replace(sender, prompts=warmup, progress=progress)
    first = Driver(sender, progress, lambda exchange: None, client.most_failures, driver.stop)
    await first.closed_loop(warmup.conversations(), WARMUP_CLIENTS, None)
    if first.stopped:
        driver.stopped = f"during the warm-up, {first.stopped}"
    elif progress.failed == len(warmup.planned):
        driver.stopped = f"all {progress.failed} warm-up requests failed; last error: {progress.last_error}"
        driver.stop.set()


async def _drive(client: Client, driver: Driver, run: Run, prompts: Prompts, seed: int) -> float:
    conversations = prompts.conversations()
    arrival, seconds = client.workload.arrival, client.workload.seconds
    if arrival.closed:
        assert run.concurrency is not None, "a closed loop's run has a concurrency"
        return await driver.closed_loop(conversations, run.concurrency, seconds)
    if arrival.trace:
        times = [each[0].due or 0.0 for each in conversations]
    else:
        assert run.rate is not None, "a run with a rate-driven arrival process has a rate"
        times = due_times(arrival, run.rate, len(conversations), seed).tolist()
    due = [
        pair for pair in zip(times, conversations, strict=True) if seconds is None or pair[0] <= seconds * (1 + 1e-9)
    ]
    return await driver.open_loop(due, seconds)
