"""The files of the status page: their types and headers, and that nothing else is served."""

from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from ropeswitch.server.ui import page

# Each file, with its type, by its path.
PATHS = {
    "ui": ("index.html", "text/html"),
    "ui/chat": ("chat.html", "text/html"),
    "ui/icon.svg": ("icon.svg", "image/svg+xml"),
    "ui/style.css": ("style.css", "text/css"),
    **{f"ui/{name}": (name, "text/javascript") for name in ("app.js", "chat.js", "picture.js")},
}
FOLDER = Path(page.__file__).with_name("static")


@pytest.fixture(params=["", "/prefix"])
def client(request: pytest.FixtureRequest) -> TestClient:
    """A server as it is without a proxy, and under ``--root-path`` behind one that leaves the prefix in."""
    app = FastAPI(root_path=request.param)
    app.include_router(page.router)
    return TestClient(app, base_url=f"http://x{request.param}/", follow_redirects=False)


def test_the_pages_and_their_files_run_nothing_from_elsewhere(client: TestClient) -> None:
    for path, (name, kind) in PATHS.items():
        answer = client.get(path)
        assert answer.status_code == 200 and answer.headers["content-type"].partition(";")[0] == kind
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "*" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.content == (FOLDER / name).read_bytes()


def test_nothing_else_is_served(client: TestClient) -> None:
    assert {each.name for each in FOLDER.iterdir()} == {name for name, _ in PATHS.values()}
    for name in ("index.html", "nothing", "../page.py", "..%2fpage.py", "%2e%2e/page.py", "static/app.js"):
        assert client.get(f"ui/{name}").status_code == 404
    # Where the proxy leaves a prefix in, an absolute redirect would lose it.
    answer = client.get("ui/")
    assert (answer.status_code, answer.headers["location"]) == (307, "../ui")
