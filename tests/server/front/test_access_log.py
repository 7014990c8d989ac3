"""The access log: every HTTP request is logged once, when it is over, also by a front that refuses it."""

import asyncio
import json
from collections.abc import Callable
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect

from ropeswitch.model_patches.switch.placement import place
from ropeswitch.server.front.access_log import AccessLog
from ropeswitch.server.front.context import Entered, RequestContext, current
from ropeswitch.server.front.flags import paths_left_out
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import Refusal, RefusedError
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.track import Track
from tests.server.front.parts import bearer, client_of, parts, server_parts, taking
from tests.server.metrics.ladders import ladder
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20, 64)
TOO_LONG = Refusal("prompt_tokens", 400, "context_length_exceeded", "too long")
POSTED = "/v1/completions"
SCOPE = {
    "method": "POST",
    "query_string": b"api_key=sk-123",
    "headers": [(b"authorization", b"Bearer sk-123"), (b"x-request-id", b"mine")],
    "client": ("10.0.0.1", 1234),
}

Lines = Callable[[], list[dict[str, Any]]]


@pytest.fixture
def lines(capfd: pytest.CaptureFixture[str]) -> Lines:
    """Reads the lines that were logged since it last did."""
    return lambda: [json.loads(line) for line in capfd.readouterr().out.splitlines()]


def track(prompt: int = 5, tokens: int = 3, outcome: str | None = "stop", name: str = "a") -> Track:
    stats = SimpleNamespace(num_generation_tokens=tokens)
    state = SimpleNamespace(external_req_id=name, prompt_len=prompt, lora_name=None, stats=stats)
    made = Track(place(engine_ladder(LADDER), prompt), state)
    made.first = made.band_set = (Bands(LADDER).index(prompt), LADDER.index_for(prompt))
    made.outcome = outcome
    return made


@pytest.fixture
def line(lines: Lines) -> Callable[..., dict[str, Any]]:
    """The line of a request with such sequences."""

    def write(*tracks: Track, path: str = POSTED, scope: Any = SCOPE, measured: bool = True, **more: Any) -> Any:
        context = RequestContext(came=1_700_000_000.25, entered=Entered(sequences=list(tracks)))
        context.sent.status = 200
        for name, value in more.items():
            setattr(context.sent if hasattr(context.sent, name) else context, name, value)
        AccessLog(frozenset(), LADDER, "m", measured).write(scope, path, context, 2.5)
        [logged] = lines()
        return logged

    return write


def test_an_answer_that_switched(line: Any) -> None:
    sequence = track(prompt=9, tokens=14, outcome="length")
    sequence.waited, sequence.later, sequence.recomputed = 0.125, [1, 2], 25
    assert line(sequence) == {
        "time": "2023-11-14T22:13:20.250Z",
        "method": "POST",
        "path": "/v1/completions",
        "status": 200,
        "client": "10.0.0.1:1234",
        "key": None,
        "request_id": "mine",
        "model": "m",
        "prompt_tokens": 9,
        "generated_tokens": 14,
        "length_band": "1-10",
        "factor_set": "set0",
        "ladder_policy": "length",
        "later_factor_sets": ["set1", "set2"],
        "switches": 2,
        "recomputed_tokens": 25,
        "seconds_to_first_token": 0.125,
        "seconds": 2.5,
        "outcome": "length",
        "reason": None,
    }


def test_a_request_without_prompts_has_no_fields_of_theirs(line: Any) -> None:
    logged = line(path="/v1/models")
    assert list(logged) == "time method path status client key request_id seconds outcome reason".split()
    logged = line(measured=False)
    assert logged["generated_tokens"] is None and logged["switches"] is None and logged["outcome"] == "answered"


def test_prompts_that_are_several_or_refused(line: Any) -> None:
    """Of two answers to one prompt, and a longer prompt, the longer one decides the band and the set."""
    names = ("prompt_tokens", "generated_tokens", "length_band", "factor_set", "outcome")
    several = line(track(name="a"), track(name="a"), track(prompt=15, name="b", outcome="length"))
    refused = line(status=400, refusal=TOO_LONG, refused_tokens=15)
    assert [several[name] for name in names] == [20, 9, "11-20", "set1", "length"]
    assert [refused[name] for name in names] == [15, 0, "11-20", None, "rejected"]


@pytest.mark.parametrize(
    ("tracks", "more", "expected"),
    [
        ([], {"left": True}, ("disconnect", None)),
        ([track(outcome=None)], {"left": True}, ("disconnect", None)),
        # It had its last token, and did not wait for the end of the stream.
        ([track(outcome="stop")], {"left": True}, ("stop", None)),
        ([track(outcome="abort"), track()], {}, ("abort", None)),
        ([track(outcome="error")], {"status": 500}, ("error", None)),
        ([track(outcome="abort")], {"status": 503}, ("abort", None)),
        # One of a list of prompts was too long.
        ([track(outcome="disconnect")], {"status": 400}, ("rejected", "invalid")),
        # Answered while an engine still runs it, as in the background.
        ([track(outcome=None)], {}, ("answered", None)),
    ],
)
def test_outcomes(line: Any, tracks: list[Track], more: dict[str, Any], expected: tuple[str, str | None]) -> None:
    logged = line(*tracks, **more)
    assert (logged["outcome"], logged["reason"]) == expected


def test_ids_and_paths_are_cut(line: Any) -> None:
    scope: dict[str, Any] = SCOPE | {"headers": [(b"x-request-id", b"x" * 8000)]}
    logged = line(scope=scope, path="/" * 8000)
    assert len(logged["request_id"]) == len(logged["path"]) == 256
    scope["state"] = {"request_metadata": SimpleNamespace(request_id="cmpl-1")}
    assert line(scope=scope)["request_id"] == "cmpl-1"


def logging(left_out: frozenset[str] = frozenset(), **changes: Any) -> TestClient:
    """A tiny app behind the log."""
    app = FastAPI()
    log = AccessLog(left_out, LADDER, "m", True)
    app.state.ropeswitch = server_parts(parts(**changes), access_log=log)
    app.add_middleware(Front)
    app.post(POSTED)(complete)
    for path in ("/health/live", "/metrics", "/v1/models", "/v1/status"):
        app.get(path)(lambda: "answer")
    return TestClient(app, raise_server_exceptions=False)


async def complete(what: str = "") -> str:
    if what == "fault":
        raise RuntimeError("fault")
    if what == "leave":
        raise ClientDisconnect
    if what == "wait":
        await asyncio.sleep(60)
    context = current.get()
    assert context is not None
    if what == "refuse":
        raise context.refuse(RefusedError(Refusal("queue_tokens", 503, "queue_full", "full")), 15)
    context.entered.sequences.append(track())
    return "answer"


def test_one_line_for_each_request(lines: Lines) -> None:
    client = logging()
    for what in ("", "fault", "leave", "refuse"):
        client.post(POSTED, params={"what": what})
    client.get("/v1/models", params={"key": "sk-1"})
    client.get("/nothing")
    logged = lines()
    assert [(line["path"], line["status"], line["outcome"], line["reason"]) for line in logged] == [
        (POSTED, 200, "stop", None),
        (POSTED, 500, "error", None),
        (POSTED, None, "disconnect", None),
        (POSTED, 503, "rejected", "queue_tokens"),
        ("/v1/models", 200, "answered", None),
        ("/nothing", 404, "rejected", "invalid"),
    ]
    assert current.get() is None and "sk-1" not in str(logged)


def test_a_request_that_the_server_stops_is_an_abort(lines: Lines) -> None:
    async def stop() -> None:
        async with client_of(logging().app) as client:
            request = asyncio.create_task(client.post(POSTED, params={"what": "wait"}))
            await asyncio.sleep(0.1)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(stop())
    assert [(line["status"], line["outcome"]) for line in lines()] == [(None, "abort")]


def test_a_line_names_its_key_by_the_start_of_its_digest(lines: Lines) -> None:
    client = logging(keys=["sk-1", "sk-2"])
    for key in ("sk-1", "sk-2", "sk-3"):
        client.get("/v1/models", headers=bearer(key))
    logged = lines()
    assert [line["key"] for line in logged] == [*(sha256(key).hexdigest()[:8] for key in (b"sk-1", b"sk-2")), None]
    assert "sk-" not in str(logged)


def test_probes_and_named_paths_are_left_out(lines: Lines) -> None:
    args = taking(disable_access_log_for_endpoints="/v1/rope, /v1/status")
    left_out = paths_left_out(args)
    assert left_out is not None and args.disable_uvicorn_access_log
    client = logging(left_out)
    for path in ("/v1/models", "/metrics", "/health/live", "/v1/status"):
        assert client.get(path).status_code == 200
    assert [line["path"] for line in lines()] == ["/v1/models"]


def test_without_our_log_uvicorn_keeps_its_own() -> None:
    args = taking("--access-log", "off")
    assert paths_left_out(args) is None and not hasattr(args, "disable_uvicorn_access_log")
