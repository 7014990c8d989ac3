"""The walk of a request in docs/architecture.md names the files that a chat runs through, traced in a real server."""

import re
import time
from pathlib import Path

import pytest

from tests.server.running import ENGINE, running

ROOT = Path(__file__).resolve().parents[2]
# The number only shrinks.
MOST_FILES = 40
PAGE = ROOT / "docs" / "architecture.md"
# A file of ours by its path from the root.
NAME = re.compile(r"`((?:server|model_patches|kernels|factors)/[\w/]+\.py)`")
FOLDERS = ("factors/", "kernels/", "model_patches/", "server/")
# Whatever is asked, gauges are written, the engines are asked every few seconds, and the log passes through the console.
BESIDES = (
    "server/start/",
    "server/app/health.py",
    "server/app/engine_utilities.py",
    "server/metrics/queue_metrics.py",
)


def trace(folder: Path) -> set[str]:
    """The product files of which a function runs, in any process, while a second chat is answered."""
    (folder / "on").write_bytes(b"\0")
    variables = {"PYTHONPATH": str(Path(__file__).with_name("traced")), "ROPESWITCH_TEST_TRACE": str(folder)}
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 8}
    with running(folder, *ENGINE, "--max-model-len", "1024", variables=variables) as server:
        assert server.post("/v1/chat/completions", chat).status == 200
        with (folder / "on").open("r+b") as on:
            on.write(b"\1")
            on.flush()
            assert server.post("/v1/chat/completions", chat).status == 200
            # It is counted and logged after its last byte.
            time.sleep(0.5)
            on.seek(0)
            on.write(b"\0")
    lines = {line for path in folder.iterdir() if path.name.isdigit() for line in path.read_text().splitlines()}
    # Through links: the package is laid out from the checkout.
    paths = {Path(line).resolve() for line in lines if line.endswith(".py")}
    inside = {path.relative_to(ROOT).as_posix() for path in paths if path.is_relative_to(ROOT)}
    return {name for name in inside if name.startswith(FOLDERS) and not name.startswith(BESIDES)}


@pytest.mark.full
def test_the_walk_is_short_and_the_page_names_it(tmp_path: Path) -> None:
    traced = trace(tmp_path)
    assert 20 < len(traced) <= MOST_FILES, "\n".join(sorted(traced))
    section = PAGE.read_text(encoding="utf-8").split("## One request, step by step")[1].split("\n## ")[0]
    named = set(NAME.findall(section))
    assert traced <= named, f"not named: {sorted(traced - named)}"
    assert named <= traced, f"not on the way: {sorted(named - traced)}"
