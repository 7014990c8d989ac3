"""The ASGI middleware that names the factor sets of a request's prompts in its response's headers."""

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ropeswitch.factors.factor_set import SET_HEADER
from ropeswitch.model_patches.switch.settings import FORCED_SET
from ropeswitch.server.prompt_log import PromptLog, current_log


class FactorSetHeader:
    """Adds ``x-rope-factor-set: short, long`` to the responses of requests that run prompts, not to errors.

    The handlers give every prompt to the engine before they start the response, streams included (``engine_prompts.py``
    sees to the few that would not), so the sets are known when the headers are sent.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        log = PromptLog()
        token = current_log.set(log)
        try:
            await self.app(scope, receive, _heading(send, log))
        finally:
            current_log.reset(token)


def _heading(send: Send, log: PromptLog) -> Send:
    async def send_with_header(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] < 400 and log.sets:
            header = (SET_HEADER.encode(), ", ".join(log.sets).encode())
            message = {**message, "headers": [*message.get("headers", ()), header]}
        await send(message)

    return send_with_header


def asked_set(body: object) -> object:
    """The value of ``vllm_xargs.rope_factor_set`` in the values of a request's JSON body, or None.

    Whether it has the right type is for the route's own validation to say.
    """
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values.get(FORCED_SET) if isinstance(values, dict) else None
