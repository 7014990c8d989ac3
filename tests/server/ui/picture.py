"""``make docs-picture``: serves passkey-tiny, keeps it busy, and takes the picture of its status page for the docs."""

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import expect

from tests.passkey_tiny import SERVED
from tests.server.running import ENGINE, Server, running
from tests.server.ui.browser import chromium
from tests.server.ui.streams import lines, streaming

# What is given while there is a window of this size, in CSS pixels.
SIZE = {"width": 1200, "height": 1020}


def take(server: Server, folder: Path, file: Path) -> None:
    """Have requests of all kinds answered, and take the picture while others stream."""
    for prompt, tokens in [(20, 40), (60, 80), (120, 60), (200, 30), (400, 100), (600, 60), (900, 40), (250, 30)]:
        for _ in lines(server, "none", prompt, tokens):
            pass
    server.post("/v1/completions", {"prompt": [5] * 2000})
    with (
        chromium(folder) as browser,
        browser.new_page(viewport=SIZE, color_scheme="light") as page,
        streaming(server, "none", 30, 90, 180, 230, 300, 500, 700),
    ):
        page.goto(f"{server.url}/ui")
        # Streams that have outgrown the set of their prompt have a row of their own.
        expect(page.locator("#live tr")).to_have_count(3, timeout=60_000)
        page.screenshot(path=file)


def main() -> int:
    file = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # One sequence less than there are streams, so that one waits.
        flags = ["--max-num-seqs", "6"]
        with running(folder, *SERVED, *ENGINE, *flags) as server:
            take(server, folder, file)
    print(f"docs-picture: {file}, {file.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
