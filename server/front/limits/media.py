"""Media of requests, within limits: fetched from public addresses only, and counted before they are decoded.

vLLM makes a connector, by its name in ``VLLM_MEDIA_CONNECTOR``, for the media of a message. An address is checked where the
socket to it is made, after its name was resolved and for each redirect.
"""

import asyncio
import socket
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from io import BytesIO
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Any

import aiohttp

from ropeswitch.model_patches.switch.placement import shared_by
from ropeswitch.server.app import vllm_adapter
from ropeswitch.server.front.bodies.parse import TokenIds
from ropeswitch.server.front.context import RequestContext, current

# Fields of a message's part that hold media.
_NAMED = frozenset("image_url image_pil image_embeds audio_url input_audio audio_embeds video_url video_embeds".split())
_GLOBAL, _NAT64 = ip_network("2000::/3"), ip_network("64:ff9b::/96")
# Public by number, but virtual machines reach their cloud's metadata there: Azure's and Oracle's.
_CLOUDS = ip_network("168.63.129.16/32"), ip_network("192.0.0.0/24")
# The same for every failure, so that it does not tell open ports from closed ones.
FAILED = "the media could not be fetched; its host needs a public address, unless the server has --allow-private-media"


def own_names(body: Any, key: bytes) -> None:
    """Make the ``uuid`` of each of a body's media this key's own: vLLM takes media of one ``uuid`` for the same."""
    left = [body]
    for each in left:
        if isinstance(each, dict) and each.get("uuid") is not None and not _NAMED.isdisjoint(each):
            each["uuid"] = shared_by(key, str(each["uuid"]))
        inner = each.values() if isinstance(each, dict) else () if isinstance(each, TokenIds) else each
        left += [value for value in inner if isinstance(value, dict | list)]


def is_public(address: str) -> bool:
    """Whether an IP address belongs to the public Internet, by the IPv4 address within it if it has one."""
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = IPv4Address(int(found) & 0xFFFFFFFF) if found in _NAT64 else found.ipv4_mapped or found.sixtofour
        if inner is None:
            return found in _GLOBAL and found.is_global
        found = inner
    return found.is_global and not found.is_multicast and not any(found in each for each in _CLOUDS)


def _public_socket(info: Any) -> socket.socket:
    family, kind, protocol, _, address = info
    if not is_public(address[0]):
        raise PermissionError(f"{address[0]} is not a public address")
    return socket.socket(family, kind, protocol)


class CountedImage(vllm_adapter.media.ImageMediaIO):
    """Decodes an image unless its request has too many pixels."""

    def __init__(self, plain: Any, context: RequestContext, most: int) -> None:
        # All that it was made with: from 0.33.0 on, vLLM's own limit of decoded media too.
        self.__dict__.update(plain.__dict__)
        self._pixels, self._most = context.image_pixels, most

    def load_bytes(self, data: bytes) -> Any:
        with vllm_adapter.open_image(BytesIO(data)) as image:  # reads its header only
            self._pixels.append(image.width * image.height)
        if (found := sum(self._pixels)) > self._most:
            raise RuntimeError(
                f"the images of this request have {found} pixels or more, and at most {self._most} in all are allowed; send "
                "fewer or smaller ones, or restart the server with a larger --max-image-pixels"
            )
        return super().load_bytes(data)


class Connector(vllm_adapter.media.MediaConnector):
    """Loads a message's media, if ``private`` from any address; a fault of the media is a 400 that names its field."""

    def __init__(self, private: bool, most_pixels: int, **options: Any) -> None:
        # Of its connection it calls `async_get_bytes` alone.
        super().__init__(connection=self, **options)
        self._private, self._most, self._context = private, most_pixels, current.get() or RequestContext()

    async def load_from_url_async(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        field = "audio_url"
        if isinstance(media_io, vllm_adapter.media.ImageMediaIO):
            field, media_io = "image_url", CountedImage(media_io, self._context, self._most)
        elif isinstance(media_io, vllm_adapter.media.VideoMediaIO):
            field, media_io.image_io = "video_url", CountedImage(media_io.image_io, self._context, self._most)
        try:
            return await super().load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
        except Exception as error:
            # Only the client's media is read here, and decoders raise errors of every kind.
            if vllm_adapter.blames_client(error):
                raise
            raise vllm_adapter.validation_error(f"{field}: {error}", field) from error

    def load_from_url(self, url: str, media_io: Any, *, fetch_timeout: int | None = None) -> Any:
        # For the few renderers that wait for media, some of them on the event loop.
        loading = self.load_from_url_async(url, media_io, fetch_timeout=fetch_timeout)
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(copy_context().run, asyncio.run, loading).result()

    async def async_get_bytes(
        self, url: str, *, timeout: float | None, allow_redirects: bool, max_bytes: Any, request_budget: Any = None
    ) -> bytes:
        """Return the media at a URL; ``request_budget`` is vLLM's limit of a request's downloads, from 0.33.0 on."""
        content, limit = bytearray(), vllm_adapter.envs.VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB << 20
        connector = aiohttp.TCPConnector(socket_factory=None if self._private else _public_socket)
        options: Any = {"connector": connector, "trust_env": self._private, "timeout": aiohttp.ClientTimeout(timeout)}
        try:
            async with (
                self._context.fetching,
                aiohttp.ClientSession(**options) as session,
                session.get(url, allow_redirects=allow_redirects, raise_for_status=True) as answer,
            ):
                async for part in answer.content.iter_chunked(1 << 16):
                    content += part
                    self._context.media_bytes += len(part)
                    if 0 < limit < self._context.media_bytes:
                        name = "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB"
                        raise RuntimeError(f"the media of this request exceed {limit} bytes in all ({name})")
                    if request_budget is not None:
                        try:
                            request_budget.charge(len(part))
                        except ValueError as error:
                            raise RuntimeError(str(error)) from error
        except (aiohttp.ClientError, OSError, ValueError) as error:
            raise RuntimeError(FAILED) from error
        return bytes(content)
