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


def front(**changes: Any) -> SimpleNamespace:
    none = {"key_digests": (), "key_file": None, "metrics_digests": (), "metrics_key_file": None}
    return SimpleNamespace(**none | changes)


def flags(**changes: Any) -> Namespace:
    values = {
        "host": "127.0.0.1",
        "port": 8000,
        "uds": None,
        "ssl_certfile": None,
        "ssl_cert_reqs": 0,
        "served_model_name": ["mini"],
        "model": "/models/mini",
        "ropeswitch_front": front(),
    }
    return Namespace(**values | changes)


def test_a_chat_model() -> None:
    where, curl = ready_lines(flags(), "chat")
    assert where == "http://127.0.0.1:8000 (status page: http://127.0.0.1:8000/ui); a first request:"
    words = shlex.split(curl)
    assert words[:2] == ["curl", "http://127.0.0.1:8000/v1/chat/completions"]
    assert json.loads(words[-1]) == {
        "model": "mini",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 32,
    }


def test_other_models() -> None:
    completion = shlex.split(ready_lines(flags(served_model_name=None), "completion")[1])
    assert completion[1].endswith("/v1/completions")
    assert json.loads(completion[-1]) == {"model": "/models/mini", "prompt": "Hello", "max_tokens": 32}
    assert json.loads(shlex.split(ready_lines(flags(), "tokens")[1])[-1])["prompt"] == [1]
    assert ready_lines(flags(), "none")[1] == "curl http://127.0.0.1:8000/v1/models"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"host": "0.0.0.0"}, "curl http://127.0.0.1:8000/v1/models"),
        ({"host": "::"}, "curl 'http://[::1]:8000/v1/models'"),
        ({"host": "fe80::1"}, "curl 'http://[fe80::1]:8000/v1/models'"),
        ({"host": "gpu7", "port": 9}, "curl http://gpu7:9/v1/models"),
        ({"uds": "/run/a b"}, "curl --unix-socket '/run/a b' http://localhost/v1/models"),
        ({"ssl_certfile": "x.pem"}, "curl -k https://127.0.0.1:8000/v1/models"),
        (
            {"ssl_certfile": "x.pem", "ssl_cert_reqs": 2},
            "curl -k --cert YOUR_CERTIFICATE --key ITS_KEY https://127.0.0.1:8000/v1/models",
        ),
        (
            {"ropeswitch_front": front(key_digests=(b"",))},
            "curl -H 'Authorization: Bearer YOUR_API_KEY' http://127.0.0.1:8000/v1/models",
        ),
        (
            {"ropeswitch_front": front(key_file="/run/keys")},
            "curl -H 'Authorization: Bearer YOUR_API_KEY' http://127.0.0.1:8000/v1/models",
        ),
    ],
)
def test_where_a_client_reaches_it(changes: dict[str, Any], expected: str) -> None:
    assert ready_lines(flags(**changes), "none")[1] == expected


@pytest.mark.parametrize(
    ("changes", "warned"),
    [
        ({"host": None}, "anyone who reaches port 8000 needs no key"),
        ({"host": "0.0.0.0"}, "anyone who reaches port 8000"),
        ({"host": "gpu7"}, "anyone who reaches port 8000"),
        ({"host": "10.0.0.1"}, "anyone who reaches port 8000"),
        ({"host": "localhost"}, None),
        ({"host": "::1"}, None),
        ({"host": None, "uds": "/run/socket"}, None),
        ({"host": None, "ropeswitch_front": front(key_file="/run/keys")}, "/metrics needs no key"),
        ({"ropeswitch_front": front(key_digests=(b"",))}, "/metrics needs no key"),
        ({"host": None, "ropeswitch_front": front(key_file="/run/keys", metrics_key_file="/run/more")}, None),
        ({"host": None, "ropeswitch_front": front(key_file="/run/keys", metrics_digests=(b"",))}, None),
    ],
)
def test_open_doors_are_named(changes: dict[str, Any], warned: str | None) -> None:
    _where, _curl, *warnings = ready_lines(flags(**changes), "none")
    assert len(warnings) == (warned is not None)
    assert warned is None or warnings[0].startswith(f"warning: {warned}")


def test_a_name_with_quotes_is_one_word_of_the_shell() -> None:
    words = shlex.split(ready_lines(flags(served_model_name=['it\'s "new"']), "completion")[1])
    assert json.loads(words[-1])["model"] == 'it\'s "new"'


def test_it_is_written_once_and_only_when_connections_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(refusals.VARIABLE, str(tmp_path / "refusal"))
    monkeypatch.setattr(ready, "SECONDS", 0.001)

    async def run() -> None:
        state = SimpleNamespace()
        first = asyncio.create_task(ready.announce(state, flags(), "chat"))
        await asyncio.sleep(0.02)
        state.server = SimpleNamespace(started=False)
        await asyncio.sleep(0.02)
        assert not ready.ready_file().exists()
        state.server.started = True
        await first
        # Another API server of the same command.
        await ready.announce(state, flags(port=9), "chat")

    asyncio.run(run())
    assert ready.ready_file().read_text().splitlines() == ready_lines(flags(), "chat")
    assert [path.name for path in tmp_path.iterdir()] == ["refusal.ready"]
