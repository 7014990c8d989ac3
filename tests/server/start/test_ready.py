"""The text of a server that is ready, and when it is written."""

import asyncio
import json
import shlex
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ropeswitch.server.start import refusals
from ropeswitch.server.start.log import ready
from ropeswitch.server.start.log.ready import ready_lines


def flags(**changes: Any) -> Namespace:
    """The server's flags; those of its keys are in the front's."""
    front = dict.fromkeys(("key_file", "metrics_key_file", "key_digests", "metrics_digests"))
    front |= {name: changes.pop(name) for name in front if name in changes}
    values = {"host": "127.0.0.1", "port": 8000, "uds": None, "ssl_certfile": None, "served_model_name": ["mini"]}
    return Namespace(**values | {"model": "/models/mini", "ropeswitch_front": SimpleNamespace(**front)} | changes)


@pytest.mark.parametrize(
    ("kind", "names", "path", "asked"),
    [
        ("chat", ["mini"], "chat/completions", {"model": "mini", "messages": [{"role": "user", "content": "Hello"}]}),
        ("completion", ['it\'s "new"'], "completions", {"model": 'it\'s "new"', "prompt": "Hello"}),
        ("tokens", None, "completions", {"model": "/models/mini", "prompt": [1]}),
    ],
)
def test_the_first_request_can_be_pasted_into_a_shell(
    kind: Any, names: list[str] | None, path: str, asked: dict[str, Any]
) -> None:
    where, curl, *_ = ready_lines(flags(served_model_name=names), kind)
    assert where == "http://127.0.0.1:8000 (status page: http://127.0.0.1:8000/ui); a first request:"
    words = shlex.split(curl)
    assert words[:2] == ["curl", f"http://127.0.0.1:8000/v1/{path}"]
    assert json.loads(words[-1]) == asked | {"max_tokens": 32}


HERE, BEARER = "http://127.0.0.1:8000", "-H 'Authorization: Bearer YOUR_API_KEY' "
ANYONE, METRICS = "anyone who reaches port 8000 needs no key", "/metrics needs no key"


@pytest.mark.parametrize(
    ("changes", "where", "warning"),
    [
        ({}, HERE, None),
        ({"host": None}, HERE, ANYONE),
        ({"host": "0.0.0.0"}, HERE, ANYONE),
        ({"host": "::"}, "'http://[::1]:8000/v1/models'", ANYONE),
        ({"host": "gpu7", "port": 9}, "http://gpu7:9", ANYONE.replace("8000", "9")),
        ({"host": None, "uds": "/run/a b"}, "--unix-socket '/run/a b' http://localhost", None),
        ({"ssl_certfile": "x.pem"}, "-k https://127.0.0.1:8000", None),
        ({"key_digests": [b""]}, BEARER + HERE, METRICS),
        ({"key_file": "k", "host": None}, BEARER + HERE, METRICS),
        ({"key_file": "k", "metrics_key_file": "m"}, BEARER + HERE, None),
        ({"key_file": "k", "metrics_digests": [b""]}, BEARER + HERE, None),
    ],
)
def test_where_a_client_reaches_it_and_what_is_open_to_anyone(
    changes: dict[str, Any], where: str, warning: str | None
) -> None:
    _, curl, *warnings = ready_lines(flags(**changes), "none")
    assert curl == f"curl {where}" + "/v1/models" * (not where.endswith("'"))
    assert len(warnings) == (warning is not None) and all(each.startswith(f"warning: {warning}") for each in warnings)


def test_it_is_written_once_and_only_when_connections_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(refusals.VARIABLE, str(tmp_path / "refusal"))
    monkeypatch.setattr(ready, "SECONDS", 0.001)

    async def run() -> None:
        state = SimpleNamespace(server=SimpleNamespace(started=False))
        first = asyncio.create_task(ready.announce(state, flags(), "chat"))
        await asyncio.sleep(0.02)
        assert not ready.ready_file().exists()
        state.server.started = True
        await first
        # Another API server of the same command.
        await ready.announce(state, flags(port=9), "chat")

    asyncio.run(run())
    assert ready.ready_file().read_text().splitlines() == ready_lines(flags(), "chat")
    assert [path.name for path in tmp_path.iterdir()] == ["refusal.ready"]
