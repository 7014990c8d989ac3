"""A proxy that speaks the protocol of vLLM's example for disaggregated prefill: two requests for each of a client's.

The first has the prefill server compute the prompt and one token. The ``kv_transfer_params`` of its answer go unchanged into
the second, which the decode server answers.
"""

import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse

from tests.server.running import free_port

ASK_PREFILL: dict[str, Any] = {"do_remote_decode": True, "do_remote_prefill": False}
ASK_PREFILL |= dict.fromkeys(("remote_engine_id", "remote_block_ids", "remote_host", "remote_port"))
PASSED = ("content-type", "x-rope-factor-set")


def prefill_body(body: dict[str, Any], **params: Any) -> dict[str, Any]:
    """The request to the prefill server for a client's request; ``params`` go into its ``kv_transfer_params``."""
    changes: dict[str, Any] = {"kv_transfer_params": ASK_PREFILL | params, "stream": False, "max_tokens": 1}
    if "max_completion_tokens" in body:
        changes["max_completion_tokens"] = 1
    return {name: value for name, value in body.items() if name not in ("stream_options", "min_tokens")} | changes


@contextmanager
def proxying(prefill: str, decode: str) -> Iterator[str]:
    """Run the proxy in a thread before two servers, and give its URL.

    A client's request that the prefill server cannot take goes to the decode server alone.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        async with httpx.AsyncClient(timeout=None, limits=httpx.Limits(max_connections=None)) as client:
            app.state.client = client
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/{path:path}")
    async def answer(path: str, request: Request) -> StreamingResponse:
        body, client = await request.json(), app.state.client
        headers = {"x-request-id": str(uuid.uuid4())}
        try:
            first = await client.post(f"{prefill}/{path}", json=prefill_body(body), headers=headers)
            if first.status_code == 200 and (params := first.json().get("kv_transfer_params")):
                body["kv_transfer_params"] = params
        except httpx.TransportError:
            pass
        sent = client.build_request("POST", f"{decode}/{path}", json=body, headers=headers)
        second = await client.send(sent, stream=True)
        passed = {name: second.headers[name] for name in PASSED if name in second.headers}
        return StreamingResponse(_body(second), second.status_code, passed)

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, "127.0.0.1", port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            thread.join(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


async def _body(response: httpx.Response) -> AsyncIterator[bytes]:
    try:
        async for piece in response.aiter_raw():
            yield piece
    finally:
        await response.aclose()
