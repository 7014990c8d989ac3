"""vLLM plugin that records how late a server's loops are, and when its engine queues a request.

``ingest.py`` loads it into every process of a server, stock or ours. Each process writes JSON lines into its own file in
the folder named by ``INGEST_PROBE``: ``{"loop": "server" or "engine", "at": seconds, "late": seconds}`` for every late
sample, by the system clock, and ``{"queued": request ID, "at": seconds}`` for every queued request.
"""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "INGEST_PROBE"
# Seconds between samples.
EVERY = 0.002
# Minimum delay of a recorded sample, in seconds.
WORTH = 0.005


class _Record:
    """This process's file."""

    def __init__(self) -> None:
        self._path = Path(os.environ[VARIABLE], f"{os.getpid()}.jsonl")

    def write(self, **values: Any) -> None:
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def sample(self, loop: str, started: float, by: str = "") -> None:
        late = time.time() - started - EVERY
        if late > WORTH:
            self.write(loop=loop, at=started, late=late, by=by)


def install() -> None:
    """Wrap the start of a server's event loop, and the start and request handling of an engine's loop."""
    import uvicorn
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core import EngineCoreProc

    startup, add_request, run, handle = (
        uvicorn.Server.startup,
        Scheduler.add_request,
        EngineCoreProc.run_busy_loop,
        EngineCoreProc._handle_client_request,
    )
    record = _Record()

    async def probed_startup(self: Any, *args: Any, **kwargs: Any) -> None:
        await startup(self, *args, **kwargs)
        self.ingest_probe = asyncio.create_task(_watch_loop(record))

    def probed_run(self: Any) -> Any:
        threading.Thread(target=_watch_lock, args=(record,), daemon=True).start()
        return run(self)

    def probed_add_request(self: Any, request: Any) -> Any:
        result = add_request(self, request)
        record.write(queued=request.request_id, at=time.time())
        return result

    def probed_handle(self: Any, *args: Any) -> Any:
        started = time.time()
        result = handle(self, *args)
        record.sample("engine", started - EVERY, "handle")
        return result

    # Checks that compare methods with upstream's published ones unwrap them.
    probed_startup.__wrapped__, probed_add_request.__wrapped__ = startup, add_request  # type: ignore[attr-defined]
    probed_run.__wrapped__, probed_handle.__wrapped__ = run, handle  # type: ignore[attr-defined]
    uvicorn.Server.startup, Scheduler.add_request = probed_startup, probed_add_request  # type: ignore[method-assign]
    EngineCoreProc.run_busy_loop, EngineCoreProc._handle_client_request = probed_run, probed_handle


async def _watch_loop(record: _Record) -> None:
    while True:
        started = time.time()
        await asyncio.sleep(EVERY)
        record.sample("server", started)


def _watch_lock(record: _Record) -> None:
    """Sample how long a thread waits for the interpreter lock, as the engine's loop would."""
    while True:
        started = time.time()
        time.sleep(EVERY)
        record.sample("engine", started)
