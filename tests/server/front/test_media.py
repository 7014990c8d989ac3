"""Media of requests: what a client may have the server fetch and decode."""

import asyncio
import base64
import socket
import threading
from collections.abc import Iterator
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any

import pytest
from fastapi import Request
from PIL import Image
from vllm import connections
from vllm.exceptions import VLLMValidationError
from vllm.multimodal.media import MEDIA_CONNECTOR_REGISTRY, base

from ropeswitch.model_patches.switch.placement import shared_by
from ropeswitch.server.front.bodies.request import read_long_bodies
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.limits import media
from ropeswitch.server.front.limits.keys import digest
from tests.server.front.parts import app_behind, ask, bearer, parts

PRIVATE = """0.0.0.0 10.1.2.3 100.64.0.1 100.100.100.200 127.0.0.1 127.9.9.9 169.254.169.254 172.16.0.1 192.168.1.1 224.0.0.1
    240.0.0.1 255.255.255.255 168.63.129.16 192.0.0.192 :: ::1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:169.254.169.254 fc00::1
    fd00:ec2::254 fe80::1 fe80::1%1 fec0::1 ff02::1 64:ff9b::127.0.0.1 64:ff9b::a00:1 64:ff9b:1::1 2002:7f00:1::
    2002:c0a8:101::1 2001::1 2001:db8::1""".split()
PUBLIC = "8.8.8.8 168.63.129.17 2606:4700::1111 ::ffff:8.8.8.8 64:ff9b::8.8.8.8".split()


@pytest.mark.parametrize("address", PRIVATE + PUBLIC)
def test_a_connection_is_made_to_public_addresses_only(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    info = (family, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", (address, 80))
    if address in PUBLIC:
        media._public_socket(info).close()
    else:
        with pytest.raises(PermissionError, match="not a public address"):
            media._public_socket(info)


def png(width: int, height: int) -> bytes:
    file = BytesIO()
    Image.new("L", (width, height)).save(file, "PNG")
    return file.getvalue()


def inline(content: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(content).decode()}"


class Handler(BaseHTTPRequestHandler):
    """Answers with an image, or redirects to the URL that is the query."""

    def do_GET(self) -> None:
        path, _, target = self.path.partition("?")
        self.server.paths.append(self.path)  # type: ignore[attr-defined]
        content = png(4, 3) if path == "/image" else b"\0" * 300_000
        self.send_response({"/to": 302, "/gone": 404}.get(path, 200))
        self.send_header("location", target)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A server at 127.0.0.2, which counts as public; its ``url`` and the ``paths`` that were asked for."""
    made: Any = ThreadingHTTPServer(("127.0.0.2", 0), Handler)
    made.url, made.paths = f"http://127.0.0.2:{made.server_port}", []
    threading.Thread(target=made.serve_forever, daemon=True).start()
    known = media.is_public
    monkeypatch.setattr(media, "is_public", lambda address: address == "127.0.0.2" or known(address))
    yield made
    made.shutdown()
    made.server_close()


def connector(*, private: bool = False, most_pixels: int = 1000, **options: Any) -> Any:
    MEDIA_CONNECTOR_REGISTRY.register("tested")(partial(media.Connector, private, most_pixels))
    return MEDIA_CONNECTOR_REGISTRY.load("tested", **options)


def fetched(loader: Any, url: str) -> tuple[int, int]:
    """The size of the image at a URL."""
    size: tuple[int, int] = asyncio.run(loader.fetch_image_async(url)).media.size
    return size


def refused(loader: Any, url: str, kind: str = "image") -> str:
    """The message of the 400 for a URL."""
    with pytest.raises(VLLMValidationError) as error:
        asyncio.run(getattr(loader, f"fetch_{kind}_async")(url))
    assert error.value.parameter == f"{kind}_url"
    return str(error.value)


def test_names_and_redirects_that_lead_to_private_addresses(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    real = socket.getaddrinfo
    names = {"rebound.test": "127.0.0.1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda host, *rest, **more: real(names.get(host, host), *rest, **more))
    with socket.create_server(("127.0.0.1", 0)) as open_port:
        port = open_port.getsockname()[1]
        inner = [f"http://{host}:{port}/" for host in ("127.0.0.1", "rebound.test", "2130706433", "[::ffff:127.0.0.1]")]
        redirects = [f"{server.url}/to?{url}" for url in inner[:2]]
        # The last are public, but not to be had: the same message.
        absent = [f"{server.url}/gone", "http://127.0.0.2:1/", "http://no-such-host.invalid/", "http://127.0.0.1:1/"]
        messages = {refused(connector(), url) for url in (*inner, *redirects, *absent)}
        assert messages == {f"image_url: {media.FAILED} (parameter=image_url)"}
        open_port.settimeout(0)
        with pytest.raises(BlockingIOError):
            open_port.accept()
    assert [path.partition("?")[0] for path in server.paths] == ["/to", "/to", "/gone"]


def test_public_media_and_private_ones_where_they_are_allowed(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"{server.url}/to?{server.url}/image"
    assert fetched(connector(), url) == connector().fetch_image(url).media.size == (4, 3)
    monkeypatch.setattr(media, "is_public", lambda _: False)
    assert "could not be fetched" in refused(connector(), url)
    assert fetched(connector(private=True), url) == (4, 3)
    assert "must be from one of the allowed domains" in refused(connector(allowed_media_domains=["a.test"]), url)


@pytest.mark.skipif(not hasattr(connections, "MediaRequestDownloadBudget"), reason="vLLM 0.32.0 has no such limits")
def test_vllms_own_limits_of_a_requests_media_hold(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of downloads and of decoded bytes; vLLM hands them over with the media."""
    budgets = {"download_budget": connections.MediaRequestDownloadBudget(), "decoded_budget": base.MediaDecodedBudget()}
    loader = connector(**budgets)
    assert fetched(loader, f"{server.url}/image") == (4, 3)
    assert all(each.used for each in budgets.values())
    monkeypatch.setenv("VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB", "1")
    for _ in range(3):
        assert "cannot identify" in refused(loader, f"{server.url}/zeros")
    assert "VLLM_MAX_MEDIA_REQUEST_DOWNLOAD_SIZE_MB" in refused(loader, f"{server.url}/zeros")


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("file:///etc/passwd", "--allowed-local-media-path"),
        ("gopher://a.test/", "HTTP, data or file URL"),
        ("http://[::1/", "image_url"),
        ("data:image/png,abc", "Only base64 data URLs"),
        ("data:image/png;base64,!", "image_url"),
        (inline(b"no image"), "cannot identify image file"),
        (inline(png(20, 30)[:-30]), "Failed to load image"),
        (inline(png(40, 26)), "1040 pixels or more, and at most 1000 in all are allowed"),
        # Of 200 KB, and more pixels than Pillow opens.
        (inline(png(20_000, 10_000)), "exceeds limit of 178956970 pixels"),
    ],
)
def test_media_that_cannot_be_read_are_the_clients_fault(url: str, expected: str) -> None:
    assert expected in refused(connector(), url)


def test_one_requests_media_share_its_limits(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message has a connector of its own; frames of a video are images too."""
    monkeypatch.setenv("VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB", "1")
    token = current.set(RequestContext())
    try:
        assert fetched(connector(), inline(png(20, 30))) == (20, 30)
        assert "1200 pixels or more" in refused(connector(), inline(png(20, 30)))
        for _ in range(3):
            assert "cannot identify" in refused(connector(), f"{server.url}/zeros")
        for kind in ("image", "audio"):
            assert "exceed 1048576 bytes in all" in refused(connector(), f"{server.url}/zeros", kind)
    finally:
        current.reset(token)
    frame = base64.b64encode(png(20, 30)).decode()
    assert "1200 pixels or more" in refused(connector(), f"data:video/jpeg;base64,{frame},{frame}", "video")


def test_a_key_cannot_name_the_media_of_another() -> None:
    """vLLM would answer it with the other key's image, or the other key with its own."""
    app = app_behind(parts(keys=["one", "two"]))

    @app.post("/v1/echo")
    async def echo(request: Request) -> Any:
        return await request.json()

    read_long_bodies(app)
    part = {"type": "image_url", "image_url": None, "uuid": "logo"}
    others = {"tools": [{"properties": {"uuid": {"type": "string"}}}, {"type": "text", "uuid": "b"}]}
    for key in ("one", "two"):
        found = ask(app, "POST", "/v1/echo", json={"messages": [part], **others}, headers=bearer(key)).json()
        assert found == {"messages": [part | {"uuid": shared_by(digest(key.encode()), "logo")}], **others}
