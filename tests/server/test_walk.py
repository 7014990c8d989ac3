"""The walk of a request in docs/architecture.md names the files that a real chat request runs through."""

import importlib.util
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests.passkey_tiny import SERVED
from tests.server.running import ENGINE, running

ROOT = Path(__file__).resolve().parents[2]
# Files of the steps, and with their helpers; both numbers only shrink.
MOST_FILES, MOST_WITH_HELPERS = 25, 59
# Tokens fill a block, so that its hash is made.
WORDS = 150
PAGE = ROOT / "docs" / "architecture.md"
# A file of ours by its path from the root.
NAME = re.compile(r"`((?:server|model_patches|kernels|factors)/[\w/]+\.py)`")


def walk() -> tuple[set[str], set[str]]:
    """The files that the page names in the steps of a request, and those that it says help on the way."""
    section = PAGE.read_text(encoding="utf-8").split("## One request, step by step")[1].split("\n## ")[0]
    steps, helpers = section.split("These help on the way:")
    return set(NAME.findall(steps)), set(NAME.findall(helpers))


def package() -> Path:
    """The folder that ``ropeswitch`` is imported from; a name in it is a path from the root."""
    spec = importlib.util.find_spec("ropeswitch.server")
    assert spec is not None and spec.origin is not None
    return Path(spec.origin).parents[1]


def noted(folder: Path, after: float, before: float) -> set[str]:
    """The files that ran between two times."""
    lines = [line.split(" ", 1) for each in folder.iterdir() for line in each.read_text().splitlines()]
    prefix = str(package()) + "/"
    return {name.removeprefix(prefix) for seconds, name in lines if after <= float(seconds) <= before}


def test_the_walk_is_short() -> None:
    steps, helpers = walk()
    assert 0 < len(steps) <= MOST_FILES
    assert not steps & helpers and len(steps | helpers) <= MOST_WITH_HELPERS
    assert all((ROOT / name).is_file() for name in steps | helpers)


@pytest.mark.full
def test_a_chat_request_runs_through_the_files_of_its_walk(tmp_path: Path) -> None:
    folder = tmp_path / "trace"
    folder.mkdir()
    here = str(Path(__file__).with_name("traced"))
    variables = {
        "TRACE_FOLDER": str(folder),
        "TRACE_ROOT": f"{package()}/",
        "PYTHONPATH": os.pathsep.join(filter(None, [here, os.environ.get("PYTHONPATH")])),
    }
    body = {"model": "passkey-tiny", "messages": [{"role": "user", "content": "The " * WORDS}], "max_tokens": 4}
    with running(tmp_path, *SERVED, *ENGINE, variables=variables) as server:
        # The first request compiles and loads what later ones find.
        assert server.post("/v1/chat/completions", body).status == 200
        for each in folder.iterdir():
            if Path(f"/proc/{each.name}").exists():
                os.kill(int(each.name), signal.SIGUSR2)
        time.sleep(2)
        idle = time.time()
        time.sleep(2)
        start = time.time()
        answer = server.post("/v1/chat/completions", body)
        end = time.time()
        assert answer.status == 200 and answer.sets
        time.sleep(0.5)
    found = noted(folder, start, end)
    # What runs by itself, such as the look for a dead engine, is no part of a request.
    background = noted(folder, idle, start)
    steps, helpers = walk()
    assert steps <= found, "the walk names files that did not run"
    assert found - background <= steps | helpers, "files ran that the walk does not name"
