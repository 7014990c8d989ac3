"""A rank that is killed ends, within seconds, in an error for whoever waits and in a server that leaves with an error."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.server.asking import SECONDS, Asking, named, not_ready, processes, wait_until
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, Server, running

FLAGS = ["--served-model-name", MODEL, "--tensor-parallel-size", "2", "--decode-context-parallel-size", "2"]
DECODE: dict[str, Any] = {"model": MODEL, "prompt": "a" * 100, "max_tokens": 900, "ignore_eos": True}
PREFILL: dict[str, Any] = {"model": MODEL, "prompt": "a" * 1000, "max_tokens": 5}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return phi3_with_tokenizer(tmp_path_factory.mktemp("one-head"), num_key_value_heads=1)


@pytest.fixture
def server(checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    # Chunks so small that a prompt of 1,000 tokens takes a while.
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "2"]
    with running(tmp_path, str(checkpoint), *ENGINE, *FLAGS, *small) as started:
        yield started


def kill_rank(server: Server, rank: int) -> float:
    [worker] = named(server, f"Worker_TP{rank}_DCP{rank}")
    worker.kill()
    return time.monotonic()


def lose(server: Server, rank: int) -> float:
    """Kill a rank; the server must say within seconds that it is not ready, and then leave nothing behind.

    Returns:
        When the rank was killed.
    """
    started = processes(server)
    # What the ranks talk through has no name any more, so it goes with them, however they end.
    shared = {region.path for each in started for region in each.memory_maps() if "-cpushm_" in region.path}
    assert len(shared) >= 2 and not any(Path(path.removesuffix(" (deleted)")).exists() for path in shared)
    killed = kill_rank(server, rank)
    took = wait_until(lambda: not_ready(server), killed, "a server that is not ready")
    assert server.process.wait(30) != 0
    gone = time.monotonic() - killed
    _, alive = psutil.wait_procs(started, timeout=5)
    assert not alive
    print(f"rank {rank}: not ready {took:.1f} s, gone {gone:.1f} s after the kill")
    return killed


def ended(asking: Asking, killed: float) -> None:
    asking.join(SECONDS)
    assert 0 < asking.ended - killed < SECONDS
    print(f"the client knew after {asking.ended - killed:.1f} s: {asking.status} {asking.lines[-3:]}")


@pytest.mark.full
@pytest.mark.parametrize("rank", [0, 1])
def test_while_it_decodes(server: Server, rank: int) -> None:
    """The stream ends with an error event in OpenAI's shape; a request beside it gets a 5xx."""
    stream, beside = Asking(server, DECODE | {"stream": True}), Asking(server, DECODE)
    while len(stream.lines) <= 20:
        time.sleep(0.05)
    killed = lose(server, rank)
    ended(stream, killed)
    assert stream.events[0]["object"] == "text_completion"
    assert stream.events[-1]["error"]["type"] == "server_error" and stream.events[-1]["error"]["message"]
    ended(beside, killed)
    assert beside.status == 500 and beside.error["message"]


@pytest.mark.full
@pytest.mark.parametrize("rank", [0])
def test_while_it_prefills(server: Server, rank: int) -> None:
    asking = Asking(server, PREFILL)
    time.sleep(0.3)
    assert not asking.ended
    killed = lose(server, rank)
    ended(asking, killed)
    assert asking.status == 500 and asking.error["message"]


@pytest.mark.full
@pytest.mark.parametrize("rank", [1])
def test_while_it_is_idle(server: Server, rank: int) -> None:
    lose(server, rank)
