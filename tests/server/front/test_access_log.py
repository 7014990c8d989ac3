"""The access log: every HTTP request is logged once, when it is over, also by a front that refuses it."""

import asyncio
import io
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect

from ropeswitch.model_patches.switch.placement import place
from ropeswitch.server.cli import main
from ropeswitch.server.front.access_log import AccessLog, Names, fields
from ropeswitch.server.front.context import Asked, Entered, RequestContext, Sent, current
from ropeswitch.server.front.flags import AccessLogConfig, access_log
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import Refusal, RefusedError
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.track import Track
from tests.server.front.parts import bearer, client_of, parts, server_parts, taking
from tests.server.metrics.ladders import ladder
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20, 64)
NAMES = Names(Bands(LADDER), LADDER.names, "m")
TOO_LONG = Refusal("prompt_tokens", 400, "context_length_exceeded", "too long")
POSTED, SECRET = "/v1/completions", "the prompt that nobody may read"
SCOPE = {
    "method": "POST",
    "path": "/v1/completions",
    "query_string": b"api_key=sk-123",
    "headers": [(b"authorization", b"Bearer sk-123"), (b"x-request-id", b"mine")],
    "client": ("10.0.0.1", 1234),
}


def track(prompt: int = 5, tokens: int = 3, outcome: str | None = "stop", name: str = "a") -> Track:
    stats = SimpleNamespace(num_generation_tokens=tokens)
    state = SimpleNamespace(external_req_id=name, prompt_len=prompt, lora_name=None, stats=stats)
    made = Track(place(engine_ladder(LADDER), prompt), state)
    made.first = made.band_set = (NAMES.bands.index(prompt), LADDER.index_for(prompt))
    made.outcome = outcome
    return made


def line(
    *tracks: Track, names: Names | None = NAMES, status: int | None = 200, left: bool = False, stopped: bool = False,
    **more: Any,
) -> dict[str, Any]:  # fmt: skip
    sent, entered = Sent(status, left=left, stopped=stopped), Entered(sequences=list(tracks))
    return fields(
        SCOPE, "/v1/completions", RequestContext(came=1_700_000_000.25, sent=sent, entered=entered, **more), 2.5, names
    )


def test_an_answer_that_switched() -> None:
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


def test_a_request_without_prompts_has_no_fields_of_theirs() -> None:
    logged = line(names=None)
    assert list(logged) == "time method path status client key request_id seconds outcome reason".split()
    logged = line(names=Names(NAMES.bands, NAMES.sets, "m", measured=False))
    assert logged["generated_tokens"] is None and logged["switches"] is None and logged["outcome"] == "answered"


def test_prompts_that_are_several_or_refused() -> None:
    """Of two answers to one prompt, and a longer prompt, the longer one decides the band and the set."""
    names = ("prompt_tokens", "generated_tokens", "length_band", "factor_set", "outcome")
    several = line(track(name="a"), track(name="a"), track(prompt=15, name="b", outcome="length"))
    refused = line(status=400, refusal=TOO_LONG, refused_tokens=15)
    assert [several[name] for name in names] == [20, 9, "11-20", "set1", "length"]
    assert [refused[name] for name in names] == [15, 0, "11-20", None, "rejected"]


@pytest.mark.parametrize(
    ("tracks", "more", "expected"),
    [
        ([], {"status": 400}, ("rejected", "invalid")),
        ([], {"status": 500}, ("error", None)),
        ([], {"status": 400, "refusal": TOO_LONG}, ("rejected", "prompt_tokens")),
        ([], {"status": None, "left": True}, ("disconnect", None)),
        ([], {"status": 200, "left": True}, ("disconnect", None)),
        ([], {"status": None, "stopped": True}, ("abort", None)),
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
def test_outcomes(tracks: list[Track], more: dict[str, Any], expected: tuple[str, str | None]) -> None:
    logged = line(*tracks, **more)
    assert (logged["outcome"], logged["reason"]) == expected


def test_ids_and_paths_are_cut() -> None:
    scope = SCOPE | {"headers": [(b"x-request-id", b"x" * 8000)]}
    logged = fields(scope, "/" * 8000, RequestContext(came=0.0), 0.0, None)
    assert len(logged["request_id"]) == len(logged["path"]) == 256
    scope["state"] = {"request_metadata": SimpleNamespace(request_id="cmpl-1")}
    assert fields(scope, "/", RequestContext(came=0.0), 0.0, None)["request_id"] == "cmpl-1"


class Logged:
    """A tiny app behind the log, and the lines that it wrote."""

    def __init__(self, config: AccessLogConfig, folder: Path, **changes: Any) -> None:
        self.stream, app = io.BytesIO(), FastAPI()
        log = AccessLog(config, NAMES, self.stream.write)
        app.state.ropeswitch = server_parts(parts(folder, **changes)[0], access_log=log)
        app.add_middleware(Front)
        app.post(POSTED)(complete)
        for path in ("/health/live", "/metrics", "/v1/models"):
            app.get(path)(answer)
        self.client = TestClient(app, raise_server_exceptions=False)

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


async def answer() -> str:
    return "answer"


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
    context.asked = Asked(in_steps=True)
    for name, prompt in (("step 1", SECRET), ("step 2", None)):
        context.add(track(name=name), SimpleNamespace(prompt=prompt, prompt_token_ids=[1, 2]))
    return "answer"


CONFIG = AccessLogConfig(everything=False, prompts=False)


def test_one_line_for_each_request(tmp_path: Path) -> None:
    logged = Logged(CONFIG, tmp_path)
    for what in ("", "fault", "leave", "refuse"):
        logged.client.post(POSTED, params={"what": what})
    logged.client.get("/v1/models", params={"key": "sk-1"})
    logged.client.get("/nothing")
    entries = [(line["path"], line["status"], line["outcome"], line["reason"]) for line in logged.lines()]
    assert entries == [
        (POSTED, 200, "stop", None),
        (POSTED, 500, "error", None),
        (POSTED, None, "disconnect", None),
        (POSTED, 503, "rejected", "queue_tokens"),
        ("/v1/models", 200, "answered", None),
        ("/nothing", 404, "rejected", "invalid"),
    ]
    assert current.get() is None
    text = logged.stream.getvalue().decode()
    assert SECRET not in text and "sk-1" not in text
    assert "prompt_tokens" in logged.lines()[0] and "prompt_tokens" not in logged.lines()[4]


def test_a_request_that_the_server_stops_is_an_abort(tmp_path: Path) -> None:
    logged = Logged(CONFIG, tmp_path)

    async def stop() -> None:
        async with client_of(logged.client.app) as client:
            request = asyncio.create_task(client.post(POSTED, params={"what": "wait"}))
            await asyncio.sleep(0.1)
            request.cancel()
            await asyncio.gather(request, return_exceptions=True)

    asyncio.run(stop())
    assert [(line["status"], line["outcome"]) for line in logged.lines()] == [(None, "abort")]


def test_a_line_names_its_key_by_an_id_that_the_command_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logged = Logged(CONFIG, tmp_path, keys=["sk-1", "sk-2"])
    for key in ("sk-1", "sk-2", "sk-3"):
        logged.client.get("/v1/models", headers=bearer(key))
    first, second, refused = (line["key"] for line in logged.lines())
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsk-1\n\nsk-2\n")
    assert main(["keys", "id", str(keys)]) == 0
    assert capsys.readouterr().out == f"{first}  line 2\n{second}  line 4\n" and len(first) == 8 and refused is None
    assert b"sk-" not in logged.stream.getvalue()


@pytest.mark.parametrize(
    ("argv", "without", "logged"),
    [
        ("--access-log json", None, ["/v1/models", POSTED]),
        ("--access-log all", None, ["/v1/models", "/metrics", "/health/live", POSTED]),
        ("--access-log all", "/metrics, /health/live", ["/v1/models", POSTED]),
        ("--log-prompts", None, ["/v1/models", POSTED]),
    ],
)
def test_the_flags_choose_paths_and_prompts(tmp_path: Path, argv: str, without: str | None, logged: list[str]) -> None:
    args = taking(*argv.split(), disable_access_log_for_endpoints=without)
    config = access_log(args)
    assert config is not None and args.disable_uvicorn_access_log
    found = Logged(config, tmp_path)
    for path in ("/v1/models", "/metrics", "/health/live"):
        assert found.client.get(path).status_code == 200
    found.client.post(POSTED)
    assert [line["path"] for line in found.lines()] == logged
    # Of an answer in steps the first prompt is kept.
    assert found.lines()[-1].get("prompts") == ([SECRET] if args.log_prompts else None)


def test_without_our_log_uvicorn_keeps_its_own() -> None:
    args = taking("--access-log", "off")
    assert access_log(args) is None and not hasattr(args, "disable_uvicorn_access_log")
