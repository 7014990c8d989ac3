"""``/ui`` and ``/ui/chat``: serves the files of the status page and the chat, which require no key.

The pages use relative URLs, so they work behind a proxy and with ``--root-path``, and load nothing from other hosts.
"""

from pathlib import Path

from fastapi import APIRouter, HTTPException
from fastapi.responses import FileResponse, RedirectResponse, Response

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).with_name("static")
# Files and their types below /ui; a page itself is served only at a URL without a suffix.
_FILES = {name: (name, "text/javascript") for name in ("app.js", "chat.js", "picture.js")}
_FILES |= {"chat": ("chat.html", "text/html"), "icon.svg": ("icon.svg", "image/svg+xml")}
_FILES |= {"style.css": ("style.css", "text/css")}
# The pages hold an API key: they run only their own scripts, connect only to their own server and cannot be framed.
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
}


@router.get("/")
def lead_to_the_page() -> RedirectResponse:
    """Redirect a browser at the server's root to the status page."""
    return RedirectResponse("ui")


@router.get("/ui")
def show_page() -> FileResponse:
    return _file("index.html", "text/html")


@router.get("/ui/")
def leave_out_the_slash() -> RedirectResponse:
    """Redirect to ``/ui``: the page's relative URLs break below ``/ui/``. Relative, as a proxy may have removed a prefix."""
    return RedirectResponse("../ui")


@router.get("/ui/{name}")
def show_file(name: str) -> Response:
    if name not in _FILES:
        raise HTTPException(404, f"The status page has no file `{name}`.")
    return _file(*_FILES[name])


def _file(name: str, kind: str) -> FileResponse:
    return FileResponse(_FOLDER / name, media_type=kind, headers=HEADERS)
