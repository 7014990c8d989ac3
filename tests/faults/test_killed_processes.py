"""A server whose engine or API server is killed answers its clients, exits with an error, and leaves nothing behind."""

import json
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.faults.conftest import FLAGS, MODEL
from tests.passkey_tiny import SERVED
from tests.server.asking import SECONDS, Asking, named, not_ready, processes, wait_until
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.running import ENGINE, FORKED, PROGRAM, Server, running

STREAM: dict[str, Any] = {"model": MODEL, "prompt": [5] * 20, "max_tokens": 1000, "ignore_eos": True, "stream": True}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "a"}], "max_tokens": 900, "ignore_eos": True}
TWO = ["--api-server-count", "2"]
# In chunks so small that a prompt of 1,000 tokens takes a while.
RANKS = ["--tensor-parallel-size", "2", "--decode-context-parallel-size", "2", "--max-num-batched-tokens", "2"]
PREFILL: dict[str, Any] = {"model": MODEL, "prompt": [5] * 1000, "max_tokens": 5}


def is_told(asking: Asking) -> str:
    """How a client learnt that its answer is not whole: an error, an event, or a connection that broke."""
    if asking.broken is not None:
        return "broken"
    error = (asking.events or [json.loads(asking.lines[0])])[-1].get("error")
    assert error, f"nothing says that it is not whole: {asking.lines[-3:]}"
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"] and "Traceback" not in error["message"]
    if asking.status == 200:
        return "event"
    assert asking.status in (500, 503) and error["type"] == "server_error", asking.lines
    return "error"


def take_away(server: Server, name: str, clients: list[Asking]) -> list[str]:
    """Kill a process while clients are being answered: the server leaves; returns what each of them learnt."""
    streams = [each for each in clients if each.body.get("stream")]
    wait_until(lambda: all(len(each.lines) > 4 for each in streams), "streams that run", 60)
    started = processes(server)
    named(server, name)[0].kill()
    wait_until(lambda: not_ready(server), "a server that is not ready")
    assert server.process.wait(30) != 0
    assert not psutil.wait_procs(started, timeout=60)[1]
    for each in clients:
        each.join(SECONDS)
        assert not each.is_alive(), "a client still waits"
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", int(server.url.rsplit(":", 1)[1])))
    return sorted(map(is_told, clients))


@pytest.mark.full
@pytest.mark.parametrize("flags", [[], [*TWO, "--shutdown-timeout", "60"]], ids=["one", "two that drain"])
def test_the_engine(tmp_path: Path, flags: list[str]) -> None:
    with running(tmp_path, *SERVED, *FLAGS, *flags, command=FORKED if flags else PROGRAM) as server:
        clients = [Asking(server, STREAM) for _ in range(3)] + [Asking(server, CHAT, "/v1/chat/completions")]
        clients += [Asking(server, STREAM | {"stream": False})]
        endings = take_away(server, "EngineCore", clients)
        if flags:
            # Several API servers do not learn of it, and are stopped; a request that arrives then gets an error.
            assert set(endings) <= {"broken", "error"} and endings.count("broken") >= 4, endings
        else:
            assert endings == ["error"] * 2 + ["event"] * 3, endings
        log = server.log.read_text()
        assert "ropeswitch: error: " in log and "see the log above" in log


@pytest.mark.full
@pytest.mark.parametrize(
    ("rank", "beside", "endings"),
    [(0, [STREAM, PREFILL], ["error", "event"]), (1, [STREAM], ["event"]), (1, [], [])],
    ids=["prefill", "decode", "idle"],
)
def test_a_rank(tmp_path: Path, rank: int, beside: list[dict[str, Any]], endings: list[str]) -> None:
    checkpoint = str(phi3_with_tokenizer(tmp_path, num_key_value_heads=1))
    flags = [*ENGINE, *RANKS, "--max-num-seqs", "2", "--served-model-name", MODEL]
    with running(tmp_path, checkpoint, *flags) as server:
        # What the ranks talk through has no name any more, so it goes with them, however they end.
        regions = [region.path for each in processes(server) for region in each.memory_maps()]
        shared = {path for path in regions if "-cpushm_" in path}
        assert len(shared) >= 2 and not any(Path(path.removesuffix(" (deleted)")).exists() for path in shared)
        assert take_away(server, f"Worker_TP{rank}_DCP{rank}", [Asking(server, body) for body in beside]) == endings


@pytest.mark.full
def test_one_api_server_of_two(tmp_path: Path) -> None:
    """The whole server exits, and no client waits for an answer that never comes."""
    with running(tmp_path, *SERVED, *FLAGS, *TWO, "--verbose") as server:
        # The first to be up would have all of them.
        both = "Application startup complete"
        wait_until(lambda: server.log.read_text().count(both) == 2, "two API servers", 60)
        clients = [Asking(server, STREAM | {"stream": stream}) for stream in (True, False) for _ in range(4)]
        endings = take_away(server, "APIServer", clients)
        assert "broken" in endings, endings
