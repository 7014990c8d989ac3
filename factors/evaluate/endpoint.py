"""A small HTTP client for an OpenAI-compatible server: lists its models, and sends one request at a time."""

import json
import math
import os
import ssl
import time
import urllib.request
from dataclasses import dataclass, field
from functools import cached_property
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import is_whole

KEY_VARIABLE = "OPENAI_API_KEY"
SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """An HTTP response."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON; UsageError when it is not."""
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the server's response is not JSON: {self.body[:100]!r}") from error

    @property
    def message(self) -> str:
        """The server's error message."""
        return error_message(self.body) or "no message"


@dataclass(frozen=True)
class Endpoint:
    """A server to evaluate or load-test.

    Attributes:
        url: Base URL without ``/v1`` and without a trailing slash.
        model: Model name in requests.
        max_model_len: Maximum tokens of prompt and completion; None if the server does not report it.
        sets: Its factor sets as ``GET /v1/rope`` lists them; empty if the server does not.
        tls: Trusted certificates; None for http.
        is_vllm: Whether the server reports itself as vLLM, as ropeswitch does, and so accepts vLLM's own fields.
    """

    url: str
    model: str = ""
    max_model_len: int | None = None
    sets: tuple[dict[str, Any], ...] = field(default=(), compare=False)
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    is_vllm: bool = False

    @property
    def limits(self) -> tuple[int, ...]:
        """Maximum lengths of the factor sets, in order."""
        return tuple(sorted(each["max_length"] for each in self.sets))

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of every request; the API key comes from OPENAI_API_KEY, as in upstream's benchmark."""
        key = header_key(os.environ.get(KEY_VARIABLE, ""), f"the environment variable {KEY_VARIABLE}")
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> Answer:
        """Send a GET request and return the response; UsageError when the server does not answer."""
        return self._send(urllib.request.Request(self.url + path, headers=self.headers))

    def post(self, path: str, body: Any) -> Answer:
        """Send a POST request with a JSON body and return the response; UsageError when the server does not answer."""
        return self._send(urllib.request.Request(self.url + path, json.dumps(body).encode(), self.headers))

    def _send(self, request: urllib.request.Request) -> Answer:
        # As in a run: no proxies and no redirects, which could leak the key.
        opener = urllib.request.OpenerDirector()
        opener.add_handler(urllib.request.HTTPHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=self.tls))
        try:
            with opener.open(request, timeout=SECONDS) as response:
                return Answer(response.status, response.read())
        except (OSError, HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", None) or error
            raise UsageError(f"{self.url} does not answer: {reason}") from error


def connect(url: str, model: str | None, ca: str | None, wait: float, insecure: bool = False) -> Endpoint:
    """Connect to a server and read its models and factor sets.

    ``url`` may end in ``/v1``. ``model`` None stands for the first that the server lists. ``ca`` is a PEM file to trust in
    addition to the system's; ``insecure`` checks no certificate. A server that does not answer yet is awaited for ``wait``
    seconds.

    Raises UsageError when it does not answer in time, rejects the key, does not serve the model, or lists invalid sets.
    """
    opened = Endpoint(_base(url), tls=_trust(url, ca, insecure))
    listed = _listed(opened, wait)
    names = [str(each.get("id")) for each in listed]
    if model is not None and model not in names:
        raise UsageError(f"--model {model!r} is not served at {opened.url}; it serves {', '.join(names)}")
    card = listed[names.index(model) if model is not None else 0]
    return Endpoint(
        url=opened.url,
        model=str(card["id"]),
        max_model_len=_most(card, opened.url),
        sets=_sets(opened, wait),
        tls=opened.tls,
        is_vllm=card.get("owned_by") == "vllm",
    )


def error_message(body: bytes) -> str:
    """Return the message in an error body of OpenAI's or FastAPI's format; otherwise the beginning of the body."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return " ".join(body[:300].decode(errors="replace").split())
    if isinstance(content, dict):
        error = content.get("error", content)
        found = error.get("message", error.get("detail")) if isinstance(error, dict) else error
        if found:
            return " ".join(str(found)[:500].split())
    return str(content)[:300]


def header_key(text: str, where: str) -> str:
    """Return an API key without surrounding whitespace; a UsageError for one invalid in a header does not reveal it."""
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where} must contain a key of printable ASCII characters in one line")
    return key


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii()
    except ValueError:
        parts, is_right = urlsplit(""), False
    if parts.username is not None:
        raise UsageError(f"url of {parts.hostname!r}: must not contain a user; the key is read from {KEY_VARIABLE}")
    if not is_right or parts.query or parts.fragment:
        raise UsageError(f"url {url!r} must be like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _trust(url: str, ca: str | None, insecure: bool = False) -> ssl.SSLContext | None:
    if not url.startswith("https"):
        return None
    if insecure:
        return ssl._create_unverified_context()
    try:
        context = ssl.create_default_context()
        if ca is not None:
            # Passed to create_default_context, it would replace the system's certificates.
            context.load_verify_locations(ca)
        return context
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca!r}: {error}") from error


def _get(opened: Endpoint, path: str, wait: float) -> Answer:
    """Send a GET request, again for ``wait`` seconds while the server does not answer or says that it cannot yet."""
    deadline = time.monotonic() + wait
    while True:
        try:
            answer = opened.get(path)
            if answer.status < 500 and answer.status not in (408, 429):
                return answer
            problem = f"{opened.url}{path} answered {answer.status}: {answer.message}"
        except UsageError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise UsageError(problem if wait == 0 else f"{problem} (waited {wait:g} s)")
        time.sleep(min(2.0, wait))


def _listed(opened: Endpoint, wait: float) -> list[dict[str, Any]]:
    answer = _get(opened, "/v1/models", wait)
    if answer.status in (401, 403):
        raise UsageError(f"{opened.url} rejects the key ({answer.status}): set the environment variable {KEY_VARIABLE}")
    if answer.status != 200:
        raise UsageError(f"{opened.url}/v1/models answered {answer.status}: {answer.message}")
    content = answer.json
    models = content.get("data") if isinstance(content, dict) else None
    if (
        not isinstance(models, list)
        or not models
        or not all(isinstance(each, dict) and "id" in each for each in models)
    ):
        raise UsageError(f"{opened.url}/v1/models lists no model: is it an OpenAI-compatible server?")
    return models


def _sets(opened: Endpoint, wait: float) -> tuple[dict[str, Any], ...]:
    answer = _get(opened, "/v1/rope", wait)
    if answer.status in (401, 403):
        raise UsageError(
            f"{opened.url}/v1/rope answered {answer.status}: {answer.message}; a gateway that lets only known routes "
            "through must allow this one, or answer 404 where the server has no factor sets"
        )
    # 400 to 405 mean, depending on the server, that the route does not exist.
    try:
        content = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        content = None
    # Some servers answer 200 to every path.
    if not isinstance(content, dict) or "sets" not in content:
        return ()
    sets = content["sets"]
    if not isinstance(sets, list) or not all(
        isinstance(each, dict) and isinstance(each.get("name"), str) and is_whole(each.get("max_length"), most=math.inf)
        for each in sets
    ):
        raise UsageError(f"{opened.url}/v1/rope: sets: every set must have a name, and a max_length in tokens")
    return tuple(sets)


def _most(card: dict[str, Any], url: str) -> int | None:
    found = card.get("max_model_len")
    if found is not None and not is_whole(found, most=math.inf):
        raise UsageError(f"{url}/v1/models: max_model_len: {found!r} must be a number of tokens")
    return found
