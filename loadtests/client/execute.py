"""Executes one run: warms the server up, sends the requests of a plan and scrapes the server's metrics."""

import asyncio
import gc
import resource
import signal
import sys
import time
import uuid
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

import aiohttp

from ropeswitch.factors.evaluate.endpoint import Endpoint
from ropeswitch.loadtests.client.arrivals import due_times
from ropeswitch.loadtests.client.driver import Driver
from ropeswitch.loadtests.client.pack import Pack
from ropeswitch.loadtests.client.plan import Planned
from ropeswitch.loadtests.client.progress import Progress
from ropeswitch.loadtests.client.records import Exchange, Run
from ropeswitch.loadtests.client.scraper import Scraper
from ropeswitch.loadtests.client.sender import Client, Sender
from ropeswitch.loadtests.client.store import Store, keep

WARMUP_CLIENTS = 4
INTERRUPTED = "stopped by Ctrl-C"
TERMINATED = "stopped by SIGTERM"


@dataclass(frozen=True)
class Prompts:
    """A plan and its prompts."""

    planned: Sequence[Planned]
    pack: Pack

    def conversations(self) -> list[list[Planned]]:
        """Group the requests by conversation."""
        return [list(turns) for _, turns in groupby(self.planned, key=lambda each: each.conversation)]


def execute(
    client: Client, endpoint: Endpoint, run: Run, prompts: Prompts, warmup: Prompts | None, seed: int, store: Store
) -> Run:
    """Execute a run and write its results.

    Args:
        client: How to send requests.
        endpoint: The server.
        run: The run to execute: its name, and its rate or concurrency.
        prompts: What to send.
        warmup: What to send first without recording it; None for no warm-up.
        seed: Random seed of the arrivals.
        store: Where to write.

    Returns:
        The finished run; incomplete if it was interrupted or too many consecutive requests failed.
    """
    return asyncio.run(_execute(client, endpoint, run, prompts, warmup, seed, store))


async def _execute(
    client: Client, endpoint: Endpoint, run: Run, prompts: Prompts, warmup: Prompts | None, seed: int, store: Store
) -> Run:
    exchanges: list[Exchange] = []
    ssl = endpoint.tls if endpoint.tls is not None else True
    # A connection for every request in flight; neither a proxy nor a session timeout.
    connector = aiohttp.TCPConnector(limit=0, ttl_dns_cache=300, keepalive_timeout=60, ssl=ssl)
    timeout, scrape = aiohttp.ClientTimeout(total=None), aiohttp.ClientTimeout(total=30)
    # Each request in flight needs a file descriptor, and shells often allow only about a thousand.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    async with (
        aiohttp.ClientSession(connector=connector, timeout=timeout) as session,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=ssl), timeout=scrape) as watching,
    ):
        progress = Progress(run.name, len(prompts.planned), client.shown)
        sender = Sender(session, endpoint, client, prompts.pack, uuid.uuid4().hex, progress)
        driver = Driver(sender, progress, exchanges.append, client.most_failures)
        reasons = _stop_on_signals(driver)
        if warmup is not None:
            await _warm_up(client, driver, sender, warmup)
        scraper = Scraper(watching, endpoint, client.metrics_seconds, client.metrics_key)
        started, duration = time.time(), 0.0
        if not driver.stop.is_set():
            # Only now, after the warm-up, is the data of an earlier interrupted run discarded.
            with store.begin(run.name) as file:

                def kept(exchange: Exchange) -> None:
                    keep(file, exchange)
                    exchanges.append(exchange)

                driver.keep = kept
                # As upstream does, spare the collector from scanning existing objects while requests are timed.
                gc.collect()
                gc.freeze()
                duration = await _scraped(scraper, _drive(client, driver, run, prompts, seed))
                gc.unfreeze()
        progress.close()
    samples = scraper.samples(driver.start)
    if scraper.problem and client.metrics_seconds and client.shown:
        print(f"loadtest: {run.name}: {scraper.problem}", file=sys.stderr, flush=True)
    stopped = driver.stopped or "".join(reasons)
    ended = replace(
        run,
        started=started,
        duration=duration,
        complete=not stopped,
        stopped=stopped,
        exchanges=tuple(exchanges),
        samples=samples,
    )
    if duration:
        store.end(ended)
    return ended


def _stop_on_signals(driver: Driver) -> list[str]:
    """End the run at the first SIGINT or SIGTERM; return the list that receives the reason.

    A second signal has its default effect.
    """
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

    def forgotten(exchange: Exchange) -> None:
        pass

    first = Driver(
        replace(sender, pack=warmup.pack, progress=progress), progress, forgotten, client.most_failures, driver.stop
    )
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
    due: Iterable[float]
    if arrival.trace:
        due = [each[0].due or 0.0 for each in conversations]
    else:
        assert run.rate is not None, "a run with a rate-driven arrival process has a rate"
        due = due_times(arrival, run.rate, len(conversations), seed).tolist()
    sent = [
        (each, at) for each, at in zip(conversations, due, strict=True) if seconds is None or at <= seconds * (1 + 1e-9)
    ]
    return await driver.open_loop([each for each, _ in sent], [at for _, at in sent], seconds)


async def _scraped(scraper: Scraper, driving: Coroutine[None, None, float]) -> float:
    if not scraper.seconds:
        scraper.problem = "scraping is disabled"
        return await driving
    # A scrape costs the server as much time as many tokens, so the first one precedes the first request.
    if not await scraper.scrape():
        return await driving
    scraping = asyncio.create_task(scraper.run())
    try:
        return await driving
    finally:
        scraping.cancel()
        await scraper.scrape()
