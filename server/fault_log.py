"""The server's own faults, told in its log where vLLM answers an error with 500 and says nobody why.

What a handler raises and vLLM has no answer to goes through to uvicorn, which logs it.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from starlette.responses import Response

from ropeswitch.server import vllm_adapter

logger = logging.getLogger(__name__)

_FAULT = 500
Handler = Callable[[Request, Any], Awaitable[Response]]


def tell_faults(app: FastAPI) -> None:
    """Have the app's handlers of errors log those that they answer with 500, once each, with their tracebacks.

    Args:
        app: With all of its handlers, before it has answered anything. The one for ``Exception`` is left: it sees errors
            that are raised again, and logged, behind it.
    """
    for kind, handler in list(app.exception_handlers.items()):
        if kind is not Exception:
            app.exception_handlers[kind] = _telling(handler)
    # SageMaker's standards have had it built with the others.
    app.middleware_stack = app.build_middleware_stack()


def _telling(handler: Any) -> Handler:
    async def tell(request: Request, error: Exception) -> Response:
        response: Response = await handler(request, error)
        # A dead engine has told why by itself, and every request in hand ends with it.
        if response.status_code == _FAULT and not vllm_adapter.is_dead_engine(error):
            logger.error("%s %s failed", request.method, request.url.path, exc_info=error)
        return response

    return tell
