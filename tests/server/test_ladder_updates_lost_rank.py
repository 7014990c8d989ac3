"""A rank that is killed while it should load a ladder: no answer hangs, none is wrong, and the server leaves."""

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ropeswitch.factors.file import LadderFile, to_text
from tests.server.asking import SECONDS, Asking, named, wait_until
from tests.server.conftest import MODEL
from tests.server.running import ENGINE, PROGRAM, Server, running
from tests.server.test_aliases_api import ladder_of

pytestmark = pytest.mark.full
DECODE: dict[str, Any] = {"model": MODEL, "prompt": "a" * 100, "max_tokens": 900, "ignore_eos": True, "stream": True}


@pytest.fixture
def two_ranks(checkpoint: Path, tmp_path: Path) -> Iterator[Server]:
    flags = ["--served-model-name", MODEL, "--allow-ladder-updates", "--tensor-parallel-size", "2"]
    with running(tmp_path, str(checkpoint), *ENGINE, *flags, command=PROGRAM) as started:
        yield started


def test_a_killed_rank_ends_the_update_and_the_server(two_ranks: Server, checkpoint: Path) -> None:
    decoding = Asking(two_ranks, DECODE)
    wait_until(lambda: len(decoding.events) > 3, time.monotonic(), "a decoding request", 60)
    [rank] = named(two_ranks, "Worker_TP1")
    # Between two steps or within one: it never answers.
    os.kill(rank.pid, signal.SIGSTOP)
    update = Asking(two_ranks, json.loads(to_text(LadderFile(ladder_of(checkpoint)))), "/v1/rope/ladder")
    time.sleep(1)
    assert not update.ended
    rank.kill()
    killed = time.monotonic()
    assert two_ranks.process.wait(30) != 0
    for asking in (update, decoding):
        asking.join(SECONDS)
        assert asking.ended and asking.ended - killed < 3 * SECONDS
    assert update.broken is not None or update.status >= 500, (update.status, update.lines)
    assert decoding.broken is not None or any("error" in event for event in decoding.events)
