"""A plugin of vLLM's that writes down how late the loops of a server are, and when its engine queues a request.

``ingest.py`` has every process of a server load it, stock or ours. Each writes lines of JSON into a file of its own in
the folder that ``INGEST_PROBE`` names: ``{"loop": "server" or "engine", "at": seconds, "late": seconds}`` for every sample
that is late, by the system's clock, and ``{"queued": ID of the request, "at": seconds}``.
"""

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

VARIABLE = "INGEST_PROBE"
# Seconds between two samples.
EVERY = 0.002
# Seconds that a sample must be late to be written.
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
    """Wrap where a server's event loop starts, and where an engine's loop starts and takes requests."""
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

    # Whoever compares methods with what upstream published unwraps them.
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
    """Sample how long a thread waits for the interpreter, as the engine's loop would."""
    while True:
        started = time.time()
        time.sleep(EVERY)
        record.sample("engine", started)
