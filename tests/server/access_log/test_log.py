"""Every HTTP request is logged once, when it is over, also by a front that refuses it."""

import asyncio
import io
import json
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.requests import ClientDisconnect
from starlette.types import Message, Receive, Scope, Send

from ropeswitch.factors.errors import UsageError
from ropeswitch.model_patches.switch.placement import place
from ropeswitch.server.cli import main
from ropeswitch.server.front.access_log import AccessLog, Names
from ropeswitch.server.front.context import Asked, RequestContext, current
from ropeswitch.server.front.flags import AccessLogConfig, access_log, check
from ropeswitch.server.front.front import Front
from ropeswitch.server.front.refusal import RefusedError, queue_full
from ropeswitch.server.metrics.bands import Bands
from ropeswitch.server.metrics.track import Track
from tests.server.front.parts import bearer, parts, server_parts
from tests.server.length_metrics.ladders import ladder
from tests.server.placing import engine_ladder

LADDER = ladder(10, 20)
SECRET = "the prompt that nobody may read"


class Logged:
    """A tiny app behind the log, and the lines that it wrote."""

    def __init__(self, config: AccessLogConfig, folder: Path, **changes: Any) -> None:
        self.stream = io.BytesIO()
        self.app = app = FastAPI()
        log = AccessLog(config, Names(Bands(LADDER), LADDER.names, "m"), self.stream.write)
        app.state.ropeswitch = server_parts(parts(folder, **changes)[0], access_log=log)
        app.add_middleware(Front)
        self.client = TestClient(app, raise_server_exceptions=False)

        @app.post("/v1/completions")
        async def complete(what: str = "") -> str:
            if what == "fault":
                raise RuntimeError("fault")
            if what == "leave":
                raise ClientDisconnect
            context = current.get()
            assert context is not None
            if what == "refuse":
                raise context.refuse(RefusedError(queue_full("long", "tokens", 1, 1)), 15)
            add(context)
            return "answer"

        @app.get("/health/live")
        @app.get("/metrics")
        @app.get("/v1/models")
        async def answer() -> str:
            return "answer"

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.stream.getvalue().splitlines()]


def add(record: RequestContext, prompt: str | None = SECRET, name: str = "a") -> None:
    stats = SimpleNamespace(num_generation_tokens=2)
    state = SimpleNamespace(external_req_id=name, prompt_len=5, lora_name=None, stats=stats)
    state.prompt, state.prompt_token_ids = prompt, [1, 2, 3, 4, 5]
    track = Track(place(engine_ladder(LADDER), 5), state)
    track.outcome = "stop"
    record.add(track, state)


CONFIG = AccessLogConfig(everything=False, prompts=False)


def test_one_line_for_each_request(tmp_path: Path) -> None:
    logged = Logged(CONFIG, tmp_path)
    for what in ("", "fault", "leave", "refuse"):
        logged.client.post("/v1/completions", params={"what": what})
    logged.client.get("/v1/models", params={"key": "sk-1"})
    logged.client.get("/nothing")
    entries = [(line["path"], line["status"], line["outcome"], line["reason"]) for line in logged.lines()]
    assert entries == [
        ("/v1/completions", 200, "stop", None),
        ("/v1/completions", 500, "error", None),
        ("/v1/completions", None, "disconnect", None),
        ("/v1/completions", 503, "rejected", "queue_tokens"),
        ("/v1/models", 200, "answered", None),
        ("/nothing", 404, "rejected", "invalid"),
    ]
    assert current.get() is None
    text = logged.stream.getvalue().decode()
    assert SECRET not in text and "sk-1" not in text
    assert "prompt_tokens" in logged.lines()[0] and "prompt_tokens" not in logged.lines()[4]


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
    printed = capsys.readouterr().out
    assert printed == f"{first}  line 2\n{second}  line 4\n" and len(first) == 8 and refused is None
    assert "sk-" not in logged.stream.getvalue().decode() + printed
    keys.write_text("sk-1\nsk 2\n")
    assert main(["keys", "id", str(keys)]) == 2
    assert capsys.readouterr().err.startswith(f"ropeswitch: error: FILE: {str(keys)!r} line 2: a key must be ")


@pytest.mark.parametrize("late", [False, True])
def test_a_client_that_leaves(late: bool, tmp_path: Path) -> None:
    """Before its answer starts, which then goes to nobody; or in the middle of it."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {"type": "http.response.start", "status": 200, "headers": []}
        if late:
            await send(start)
        assert (await receive())["type"] == "http.disconnect"
        if not late:
            await send(start)
        await send({"type": "http.response.body", "body": b"null"})

    logged = Logged(CONFIG, tmp_path)
    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": [], "app": logged.app}
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        sent.append(message)

    asyncio.run(Front(app)(scope, receive, send))
    [line] = logged.lines()
    assert (line["outcome"], line["status"]) == ("disconnect", 200 if late else None)
    assert len(sent) == 2


def test_probes_and_metrics_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    for config, count in ((CONFIG, 0), (AccessLogConfig(everything=True, prompts=False), 2)):
        logged = Logged(config, tmp_path)
        for path in ("/health/live", "/metrics"):
            assert logged.client.get(path).status_code == 200
        assert len(logged.lines()) == count


def test_paths_that_are_left_out(tmp_path: Path) -> None:
    logged = Logged(AccessLogConfig(everything=True, prompts=False, left_out=frozenset({"/v1/models"})), tmp_path)
    logged.client.get("/v1/models")
    assert logged.lines() == []


def test_prompts_where_they_are_asked_for(tmp_path: Path) -> None:
    logged = Logged(AccessLogConfig(everything=False, prompts=True), tmp_path)
    logged.client.post("/v1/completions")
    assert logged.lines()[0]["prompts"] == [SECRET]


def test_of_steps_the_first_prompt_is_kept() -> None:
    record = RequestContext(keeps_prompts=True, asked=Asked(in_steps=True))
    add(record, None, "step 1")
    add(record, None, "step 2")
    assert list(record.entered.logged.values()) == [[1, 2, 3, 4, 5]] and len(record.entered.sequences) == 2


def arguments(**more: Any) -> Namespace:
    given = {"access_log": "json", "log_prompts": False, "disable_access_log_for_endpoints": None}
    given |= {"api_key_file": None, "metrics_key_file": None}
    return Namespace(**{"disable_uvicorn_access_log": False, **given, **more})


def test_flags() -> None:
    for choice, uvicorn, config in (
        ("json", False, CONFIG),
        ("all", False, AccessLogConfig(everything=True, prompts=False)),
        ("off", True, None),
    ):
        args = arguments(access_log=choice)
        assert access_log(args) == config
        assert args.disable_uvicorn_access_log is not uvicorn
    left_out = access_log(arguments(disable_access_log_for_endpoints="/ping, /load"))
    assert left_out is not None and left_out.left_out == {"/ping", "/load"}
    with pytest.raises(UsageError, match="--log-prompts"):
        check(arguments(access_log="off", log_prompts=True))
