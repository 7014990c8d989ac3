"""Streams that fail after they have begun end with an event that says so."""

from collections.abc import AsyncIterator
from pathlib import Path

from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.responses import StreamingResponse
from vllm.exceptions import VLLMValidationError

from ropeswitch.server.front.answer import Inner
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import FAULT
from tests.server.front.parts import parts, server_parts


def test_a_stream_that_fails_ends_with_an_event(tmp_path: Path) -> None:
    app = FastAPI()
    app.add_middleware(Inner)
    app.add_middleware(Front)
    app.state.ropeswitch = server_parts(parts(tmp_path)[0])

    @app.post("/{kind}")
    async def stream(kind: str) -> StreamingResponse:
        async def events() -> AsyncIterator[str]:
            yield "data: 1\n\n"
            raise VLLMValidationError("wrong", parameter="prompt") if kind == "wrong" else RuntimeError("a secret")

        return StreamingResponse(events(), media_type="text/event-stream" if kind != "plain" else "text/plain")

    client = TestClient(app, raise_server_exceptions=False)
    wrong, fault, plain = (client.post(f"/{kind}").text for kind in ("wrong", "fault", "plain"))
    assert wrong.startswith("data: 1\n\n") and '"message": "wrong' in wrong and '"invalid_request_error"' in wrong
    assert FAULT in fault and '"server_error"' in fault and "secret" not in fault
    assert plain == "data: 1\n\n"
