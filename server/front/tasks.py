"""Tasks that go on as long as the server does."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def go_on(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start tasks on the running loop; one that fails is told at once, which asyncio does only when nothing holds it."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(each) for each in coroutines]
    for task in tasks:
        task.add_done_callback(_tell)
    return tasks


def _tell(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        told = {"message": "a task that was to go on has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(told)
