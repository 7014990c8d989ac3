"""The inner of our two ASGI middlewares: adds the header of factor sets, and ends failed event streams with an error.

It is innermost so that vLLM's middlewares and those of ``--middleware`` see both: one that encodes bodies must also
encode the error event.
"""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.factors.factor_set import SET_HEADER
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.answer import is_event_stream
from ropeswitch.server.front.context import RequestContext, current


class Inner:
    """Adds ``x-rope-factor-set: short, long`` to the responses of requests that run prompts, not to errors.

    Handlers give every prompt to the engine before they start the response, streams included, so the sets are known when the
    headers are sent; only streams of the Responses API begin before, and have no such header.

    An event stream whose handler raises ends with an error event, as with most of vLLM's handlers; a fault of the server is
    re-raised.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (context := current.get()) is None:
            await self.app(scope, receive, send)
            return
        open_stream = False

        async def headed(message: Message) -> None:
            nonlocal open_stream
            if message["type"] == "http.response.start":
                open_stream = is_event_stream(message)
                message = _headed(message, context)
            elif message["type"] == "http.response.body":
                open_stream = open_stream and message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, headed)
        except Exception as error:
            if not open_stream:
                raise
            # In the shape of the handlers' own events, which the front converts to OpenAI's.
            blame = vllm_adapter.blames_client(error)
            shown = {"message": blame or "", "param": None, "code": 400 if blame else 500}
            event = b"data: " + json.dumps({"error": shown}).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": False})
            if not blame:
                raise


def _headed(message: Message, context: RequestContext) -> Message:
    if message["status"] >= 400 or not context.entered.placements:
        return message
    names = ", ".join(each.name for each in context.entered.placements)
    return {**message, "headers": [*message.get("headers", ()), (SET_HEADER.encode(), names.encode())]}
