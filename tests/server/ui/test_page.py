"""The files of the status page: their types and headers, and that they name nothing from elsewhere."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ropeswitch.server.ui import page

SCRIPTS = ("app.js", "chat.js", "lines.js", "picture.js")
FILES = {**dict.fromkeys(SCRIPTS, "text/javascript"), "icon.svg": "image/svg+xml", "style.css": "text/css"}
# Each page: its path, and the URLs that it links to.
PAGES = {
    "index.html": ("ui", {"ui/app.js", "ui/chat", "ui/icon.svg", "ui/style.css"}),
    "chat.html": ("ui/chat", {"../ui", "chat.js", "icon.svg", "style.css"}),
}
PATHS = {
    **{path: (name, "text/html") for name, (path, _) in PAGES.items()},
    **{f"ui/{name}": (name, kind) for name, kind in FILES.items()},
}
FOLDER = Path(page.__file__).with_name("static")


@pytest.fixture(params=["", "/prefix"])
def client(request: pytest.FixtureRequest) -> TestClient:
    """A server as it is without a proxy, and under ``--root-path`` behind one that leaves the prefix in."""
    app = FastAPI(root_path=request.param)
    app.include_router(page.router)
    return TestClient(app, base_url=f"http://x{request.param}/", follow_redirects=False)


def test_the_page_and_its_files(client: TestClient) -> None:
    for path, (name, kind) in PATHS.items():
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"].partition(";")[0] == kind
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content == (FOLDER / name).read_bytes()


def test_nothing_else_is_served(client: TestClient) -> None:
    assert {each.name for each in FOLDER.iterdir()} == {*PAGES, *FILES}
    for name in ("index.html", "nothing", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "static/app.js"):
        assert client.get(f"ui/{name}").status_code == 404
    # Where the proxy leaves a prefix in, an absolute redirect would lose it.
    answer = client.get("ui/")
    assert (answer.status_code, answer.headers["location"]) == (307, "../ui")


def test_nothing_from_elsewhere_and_nothing_inline() -> None:
    named = "http://www.w3.org/2000/svg"
    for name in (*PAGES, *FILES):
        text = (FOLDER / name).read_text(encoding="utf-8").replace(named, "")
        assert not re.search(r"https?:|//\w+\.|@import|url\(", text), name
    for name, (_, links) in PAGES.items():
        html = (FOLDER / name).read_text(encoding="utf-8")
        assert not re.search(r"<style|\sstyle=|\son\w+=|<script(?! type=\"module\" src=)|javascript:", html)
        # Under another prefix than the root, an absolute path would miss the server.
        assert set(re.findall(r'(?:src|href)="([^"]*)"', html)) == links
