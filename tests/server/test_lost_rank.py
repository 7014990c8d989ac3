"""A rank that is killed ends, within seconds, in an error for whoever waits and in a server that leaves with an error."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.asking import SECONDS, Asking, lose, processes, wait_until
from tests.server.checkpoint import phi3_with_tokenizer
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, Server, running

FLAGS = ["--served-model-name", MODEL, "--tensor-parallel-size", "2", "--decode-context-parallel-size", "2"]
DECODE: dict[str, Any] = {"model": MODEL, "prompt": "a" * 100, "max_tokens": 900, "ignore_eos": True}
PREFILL: dict[str, Any] = {"model": MODEL, "prompt": "a" * 1000, "max_tokens": 5}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    checkpoint = phi3_with_tokenizer(tmp_path, num_key_value_heads=1)
    # Chunks so small that a prompt of 1,000 tokens takes a while.
    small = ["--max-num-seqs", "2", "--max-num-batched-tokens", "2"]
    with running(tmp_path, str(checkpoint), *ENGINE, *FLAGS, *small) as started:
        yield started


def lose_rank(server: Server, rank: int, *clients: Asking) -> None:
    # What the ranks talk through has no name any more, so it goes with them, however they end.
    regions = [region.path for each in processes(server) for region in each.memory_maps()]
    shared = {path for path in regions if "-cpushm_" in path}
    assert len(shared) >= 2 and not any(Path(path.removesuffix(" (deleted)")).exists() for path in shared)
    killed = lose(server, f"Worker_TP{rank}_DCP{rank}")
    for each in clients:
        each.join(SECONDS)
        assert 0 < each.ended - killed < SECONDS


@pytest.mark.full
@pytest.mark.parametrize(("rank", "beside"), [(0, PREFILL), (1, DECODE)], ids=["prefill", "decode"])
def test_while_it_answers(server: Server, rank: int, beside: dict[str, Any]) -> None:
    """The stream ends with an error event in OpenAI's shape; a request beside it gets a 5xx."""
    stream, other = Asking(server, DECODE | {"stream": True}), Asking(server, beside)
    wait_until(lambda: len(stream.lines) > 20, time.monotonic(), "a stream that runs", 60)
    assert not other.ended
    lose_rank(server, rank, stream, other)
    assert stream.events[0]["object"] == "text_completion"
    assert stream.events[-1]["error"]["type"] == "server_error" and stream.events[-1]["error"]["message"]
    assert other.status == 500 and other.error["message"]


@pytest.mark.full
def test_while_it_is_idle(server: Server) -> None:
    lose_rank(server, 1)
