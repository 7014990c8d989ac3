"""Logs the faults that vLLM's error handlers answer with 500 without logging them, and drops logs of client errors.

uvicorn logs exceptions that no handler answers. Some of vLLM's routes log every error with its traceback, even one that
they answer with 400.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from ropeswitch.server import vllm_adapter

logger = logging.getLogger(__name__)

_FAULT = 500
# Modules that log client errors as if they were the server's.
_LOUD = (
    "vllm.entrypoints.anthropic.api_router",
    "vllm.entrypoints.anthropic.serving",
    "vllm.entrypoints.cohere.api_router",
    "vllm.entrypoints.generate.generative_scoring.serving",
    "vllm.entrypoints.openai.chat_completion.serving",
    "vllm.entrypoints.openai.completion.serving",
)
Handler = Callable[[Request, Any], Awaitable[Response]]


def log_faults(app: FastAPI) -> None:
    """Make the app's error handlers log each error that they answer with 500, once, with its traceback, and no others.

    Args:
        app: The app, with all of its handlers, before its first request. The handler of ``Exception`` stays unchanged:
            Starlette re-raises its errors, and uvicorn logs them.
    """
    for kind, handler in list(app.exception_handlers.items()):
        if kind is not Exception:
            app.exception_handlers[kind] = _logging(handler)
    for name in _LOUD:
        logging.getLogger(name).addFilter(is_fault)
    # SageMaker's integration has already built the stack with the old handlers.
    app.middleware_stack = app.build_middleware_stack()


def is_fault(record: logging.LogRecord) -> bool:
    """Whether a record has no error, or one that is answered with 500; any other error is the client's."""
    error = record.exc_info[1] if record.exc_info else None
    return error is None or vllm_adapter.error_status(error) == _FAULT


def _logging(handler: Any) -> Handler:
    async def log(request: Request, error: Exception) -> Response:
        response: Response = await handler(request, error)
        # A dead engine has logged its own error, and every request in flight ends with it.
        if response.status_code == _FAULT and not vllm_adapter.is_dead_engine(error):
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return response

    return log
