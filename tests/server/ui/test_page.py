"""The files of the status page: their types and headers, and that they name nothing from elsewhere."""

import re
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ropeswitch.server.front import state
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
        assert answer.status_code == 200
        charset = "; charset=utf-8" if kind.startswith("text/") else ""
        assert answer.headers["content-type"] == kind + charset
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content == (FOLDER / name).read_bytes()


def test_a_slash_at_the_end_is_taken_off_by_a_relative_redirect(client: TestClient) -> None:
    answer = client.get("ui/")
    assert (answer.status_code, answer.headers["location"]) == (307, "../ui")


@pytest.mark.parametrize(
    "name",
    [
        "index.html",
        "chat.html",
        "nothing",
        "../page.py",
        "..%2fpage.py",
        "%2e%2e/page.py",
        "__init__.py",
        "static/app.js",
    ],
)
def test_nothing_else_is_served(client: TestClient, name: str) -> None:
    assert client.get(f"ui/{name}").status_code == 404


def test_all_files_are_served_and_packed() -> None:
    assert {each.name for each in FOLDER.iterdir()} == {*PAGES, *FILES}


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
    for name in SCRIPTS:
        imported = re.findall(r'^import .* from "(.*)";$', (FOLDER / name).read_text(encoding="utf-8"), re.MULTILINE)
        assert all(each.removeprefix("./") in SCRIPTS for each in imported)


@pytest.mark.parametrize(("script", "html"), [("app.js", "index.html"), ("chat.js", "chat.html")])
def test_every_element_that_the_script_names_is_there(script: str, html: str) -> None:
    script, html = ((FOLDER / name).read_text(encoding="utf-8") for name in (script, html))
    named = set(re.findall(r'(?:element|rows)\("([\w-]+)"', script))
    assert named and named <= set(re.findall(r'id="([\w-]+)"', html))


def test_the_page_is_open_and_its_data_is_not() -> None:
    assert all(state.is_open(path) for path in ("/ui", "/ui/", "/ui/chat", "/ui/app.js"))
    assert not state.is_open("/v1/status")
