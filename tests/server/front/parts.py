"""A tiny app behind the front, without an engine."""

import argparse
import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any

import httpx
from fastapi import FastAPI, Request

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.app.aliases import Aliases
from ropeswitch.server.app.health import EngineWatch
from ropeswitch.server.app.parts import ServerParts
from ropeswitch.server.front import flags
from ropeswitch.server.front.flags import FrontConfig
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.limits.keys import AT_ONCE, digest
from ropeswitch.server.front.refusal import RefusedError
from ropeswitch.server.front.state import FrontState, build

LADDER = FactorLadder.checked(
    [
        {"name": "short", "max_length": 8, "factors": [1.0, 2.0]},
        {"name": "long", "max_length": 16, "factors": [1.5, 3.0]},
    ]
)
# vLLM's own flags, as it leaves them by default.
UPSTREAM: dict[str, Any] = dict.fromkeys(("api_key", "ssl_certfile", "ssl_keyfile", "ssl_ca_certs"))
UPSTREAM |= {"ssl_cert_reqs": 0, "enable_ssl_refresh": False, "enable_prompt_tokens_details": None}


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> Any:
        raise UsageError(message)


def taking(*argv: str, environment: dict[str, str] | None = None, **upstream: Any) -> argparse.Namespace:
    """What ``ropeswitch serve`` makes of its flags, with vLLM's own in ``upstream``."""
    parser = Parser()
    flags.add(parser)
    args = parser.parse_args(argv, argparse.Namespace(h11_max_header_count=256, **UPSTREAM | upstream))
    args.ropeswitch_front = flags.take(args, environment if environment is not None else {}, LADDER.names)
    assert args.api_key is None and args.metrics_key is None
    return args


class Engine:
    """Knows the requests that a test puts into it: whether each still waits for its first token."""

    def __init__(self) -> None:
        self.requests: dict[str, bool] = {}

    def waits(self, request_id: str) -> bool | None:
        return self.requests.get(request_id)


def parts(engine: Any = None, **changes: Any) -> FrontState:
    """The front's parts; ``keys`` and ``metrics_key`` are given as they are, other changes as the flags' values."""
    args, config = taking(), {}
    for name, field in (("keys", "key_digests"), ("metrics_key", "metrics_digests")):
        if (keys := changes.pop(name, None)) is not None:
            config[field] = tuple(digest(key.encode()) for key in ([keys] if isinstance(keys, str) else keys))
    config |= {each.name: changes.pop(each.name) for each in fields(FrontConfig) if each.name in changes}
    args.ropeswitch_front = replace(args.ropeswitch_front, **config)
    vars(args).update(changes)
    return build(args, LADDER, LADDER.max_length, (engine or Engine()).waits, RefusedError)


def server_parts(front: FrontState, **more: Any) -> ServerParts:
    """A process's parts, of which a test brings those that it looks at."""
    absent: Any = None
    parts = ServerParts(
        front=front,
        engine_watch=EngineWatch({}, lambda: 0, None),
        rope_info=absent,
        aliases=Aliases(SimpleNamespace(lora_requests={}, is_base_model=lambda name: name == "m"), LADDER.names),
        status=absent,
        scheduling_metrics=None,
        length_metrics=None,
        access_log=None,
        prefill_progress=absent,
    )
    return replace(parts, **more)


def app_behind(state: FrontState) -> FastAPI:
    """An app with the front outside it, and a route that answers with the length of its body."""
    app = FastAPI()
    app.state.ropeswitch = server_parts(state)
    app.add_middleware(Front)

    @app.post("/v1/length")
    async def length(request: Request) -> int:
        return len(await request.body())

    return app


def client_of(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app, raise_app_exceptions=False), base_url="http://test")


def ask(app: Any, method: str, path: str, **arguments: Any) -> httpx.Response:
    """One request to the app."""

    async def send() -> httpx.Response:
        async with client_of(app) as client:
            return await client.request(method, path, **arguments)

    return asyncio.run(send())


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def error_of(response: httpx.Response) -> dict[str, Any]:
    """The error in a response, which must be whole and in OpenAI's shape."""
    assert response.headers["content-type"] == "application/json"
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert isinstance(error["message"], str) and error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert error["code"] is None or isinstance(error["code"], str)
    return dict(error)


def run_raw(
    app: Any,
    received: list[dict[str, Any]],
    headers: Sequence[tuple[bytes, bytes]] = (),
    pause: float = 0,
    path: str = "/v1/length",
) -> list[dict[str, Any]]:
    """Call the app as a server would; return what it sent.

    Of the messages ``received``, which come after a pause each, those are left that the app does not take.
    """
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        if not received:
            await asyncio.Event().wait()
        return received.pop(0)

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": path, "query_string": b"", "headers": list(headers)}
    asyncio.run(app(scope, receive, send))
    return sent


async def leaves_turns(ask: Callable[[str], Awaitable[Any]], begun: Sequence[str]) -> None:
    """Check that of client a's hundred requests few begin in a turn of the event loop, and b's is not behind them."""
    tasks = [asyncio.ensure_future(ask(client)) for client in ["a"] * 100 + ["b"]]
    while not all(task.done() for task in tasks):
        before = len(begun)
        await asyncio.sleep(0)
        assert len(begun) - before <= AT_ONCE + 1
    assert begun.index("b") <= AT_ONCE


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now
