"""A server with a status page, and Debian's Chromium without a window, where ``make test-full`` unpacks it."""

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.docs.pages import ROOT
from tests.passkey_tiny import SERVED
from tests.server.running import ENGINE, Server, running

KEY = "status-page-5f1c"
PREFIX = "/behind/a-proxy"
# What Chromium itself logs of every answer of 400 or 401.
REFUSED = "the server responded with a status of 40"
MILLISECONDS = 60_000
CHROMIUM = ROOT / ".venv" / "debian" / "chromium"
# Those of the machine and those unpacked; the machine may have no fonts, and no settings of them.
FONTS = """\
<fontconfig>
  <dir>/usr/share/fonts</dir>
  <dir>{folder}/usr/share/fonts</dir>
  <cachedir>{cache}</cachedir>
  <match>
    <edit name="family" mode="assign" binding="strong"><string>DejaVu Sans</string></edit>
  </match>
</fontconfig>
"""
expect.set_options(timeout=MILLISECONDS)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """passkey-tiny behind a key, under a prefix that a proxy may leave in or take off."""
    flags = ["--api-key", KEY, "--root-path", PREFIX]
    with running(tmp_path_factory.mktemp("status-page"), *SERVED, *ENGINE, *flags) as started:
        yield started


# Of the module alone: where it is open, asyncio.run does not work in the tests' thread.
@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    folder = tmp_path_factory.mktemp("browser")
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(folder=CHROMIUM, cache=folder / "fonts"))
    libraries = {str(file.parent) for top in ("lib", "usr/lib") for file in CHROMIUM.glob(f"{top}/**/*.so*")}
    environment = os.environ | {"FONTCONFIG_FILE": str(fonts), "HOME": str(folder)}
    environment["LD_LIBRARY_PATH"] = ":".join(sorted(libraries))
    # Its sandbox needs root's help, and the pages are our own.
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    program = CHROMIUM / "usr" / "lib" / "chromium" / "chromium-headless-shell"
    with (
        sync_playwright() as playwright,
        playwright.chromium.launch(executable_path=program, args=flags, env=environment) as started,
    ):
        yield started


@dataclass
class Seen:
    """What a page asked for and complained of."""

    urls: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def log(self, message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and REFUSED not in message.text:
            self.complaints.append(message.text)

    @property
    def asked(self) -> int:
        """How often the figures were asked for."""
        return sum(url.endswith("/v1/status") for url in self.urls)


Open = Callable[..., tuple[Page, Seen]]


@pytest.fixture
def opened(browser: Browser, server: Server) -> Iterator[Open]:
    """Opens the page in a window of its own; at the end, no page has asked another server or complained."""
    windows: list[tuple[Page, Seen]] = []

    def go(path: str = "/ui", key: str | None = None, **settings: Any) -> tuple[Page, Seen]:
        page, seen = browser.new_page(**settings), Seen()
        windows.append((page, seen))
        page.set_default_timeout(MILLISECONDS)
        page.on("request", lambda request: seen.urls.append(request.url))
        page.on("console", seen.log)
        page.on("pageerror", lambda error: seen.complaints.append(str(error)))
        page.goto(server.url + path)
        if key is not None:
            page.get_by_label("API key").fill(key)
            page.get_by_role("button", name="Use this key").click()
            expect(page.locator("#state")).to_have_text("Up to date")
        return page, seen

    yield go
    for page, seen in windows:
        page.close()
        assert seen.urls and all(url.startswith(f"{server.url}/") for url in seen.urls), seen.urls
        assert seen.complaints == []


def focused(page: Page) -> str:
    """The ID of the element that has the focus, or of what labels it."""
    name = "document.activeElement.id || document.activeElement.getAttribute('aria-labelledby')"
    found: str = page.evaluate(f"{name} || document.activeElement.textContent")
    return found
