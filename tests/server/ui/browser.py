"""Debian's Chromium without a window, where ``make test-full`` unpacks it (``requirements/debian.py``)."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

from tests import debian
from tests.docs.pages import ROOT

FOLDER = ROOT / ".venv" / "debian" / "chromium"
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


@contextmanager
def chromium(folder: Path) -> Iterator[Browser]:
    """A browser that keeps what it writes in ``folder``."""
    fonts = folder / "fonts.conf"
    fonts.write_text(FONTS.format(folder=FOLDER, cache=folder / "fonts"))
    environment = debian.environment(FOLDER) | {"FONTCONFIG_FILE": str(fonts), "HOME": str(folder)}
    # Its sandbox needs root's help, and the pages are our own.
    flags = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
    program = FOLDER / "usr" / "lib" / "chromium" / "chromium-headless-shell"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=flags, env=environment)
        try:
            yield browser
        finally:
            browser.close()
