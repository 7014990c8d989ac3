"""Streams that fail after they have begun end with an event that says so, as those of most of vLLM's handlers do."""

import json

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.server import vllm_adapter


class EndStreams:
    """The ASGI middleware that ends a stream of events whose handler raised; a fault of the server's is raised again."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        open_stream = False

        async def noting(message: Message) -> None:
            nonlocal open_stream
            if message["type"] == "http.response.start":
                headers = message.get("headers", ())
                open_stream = any(
                    name.lower() == b"content-type" and value.startswith(b"text/event-stream")
                    for name, value in headers
                )
            elif message["type"] == "http.response.body":
                open_stream = open_stream and message.get("more_body", False)
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except Exception as error:
            if not open_stream:
                raise
            # In the shape of the handlers' own events, from which the front makes OpenAI's.
            said = vllm_adapter.blames_client(error)
            told = {"message": said or "", "param": None, "code": 400 if said else 500}
            event = b"data: " + json.dumps({"error": told}).encode() + b"\n\n"
            await send({"type": "http.response.body", "body": event, "more_body": False})
            if not said:
                raise
