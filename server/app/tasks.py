"""Background tasks that run for the life of the server."""

import asyncio
from collections.abc import Coroutine
from typing import Any


def start_tasks(*coroutines: Coroutine[Any, Any, None]) -> list[asyncio.Task[None]]:
    """Start tasks on the running loop; a failure is logged at once, not only when the task is garbage collected."""
    loop = asyncio.get_running_loop()
    tasks = [loop.create_task(each) for each in coroutines]
    for task in tasks:
        task.add_done_callback(_report)
    return tasks


def _report(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        context = {"message": "a background task has failed", "exception": error, "task": task}
        task.get_loop().call_exception_handler(context)
