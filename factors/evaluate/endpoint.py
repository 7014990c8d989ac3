"""A small HTTP client of an OpenAI-compatible server: which models it lists, and one request at a time."""

import json
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

KEY_VARIABLE = "OPENAI_API_KEY"
SECONDS = 120.0


@dataclass(frozen=True)
class Answer:
    """An HTTP answer."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON.

        Raises:
            UsageError: where it is none.
        """
        try:
            return json.loads(self.body)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"the server's answer is not JSON: {self.body[:100]!r}") from error

    @property
    def message(self) -> str:
        """What the server says of an error."""
        return error_message(self.body) or "no message"


@dataclass(frozen=True)
class Endpoint:
    """A server that is evaluated or put under load.

    Attributes:
        url: Without ``/v1`` and without a slash at its end.
        model: The name that requests give.
        max_model_len: Tokens that a prompt and its answer may have; None where the server does not tell.
        limits: Lengths that its factor sets reach, in order; empty where it does not tell.
        tls: What to trust; None for http.
        is_vllm: Whether it says that it is a vLLM server (ours says so too), which takes vLLM's own fields.
    """

    url: str
    model: str = ""
    max_model_len: int | None = None
    limits: tuple[int, ...] = ()
    tls: ssl.SSLContext | None = field(default=None, compare=False)
    is_vllm: bool = False

    @cached_property
    def headers(self) -> dict[str, str]:
        """Headers of every request; the key comes from the variable OPENAI_API_KEY, as with upstream's benchmark."""
        key = header_key(os.environ.get(KEY_VARIABLE, ""), f"the environment variable {KEY_VARIABLE}")
        return {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def get(self, path: str) -> Answer:
        """The answer to a GET.

        Raises:
            UsageError: where there is none.
        """
        return self._send(urllib.request.Request(self.url + path, headers=self.headers))

    def post(self, path: str, body: Any) -> Answer:
        """The answer to a POST of JSON.

        Raises:
            UsageError: where there is none.
        """
        return self._send(urllib.request.Request(self.url + path, json.dumps(body).encode(), self.headers))

    def _send(self, request: urllib.request.Request) -> Answer:
        # As the requests of a run: neither by way of a proxy nor to where a redirect leads, which might get the key.
        opener = urllib.request.OpenerDirector()
        opener.add_handler(urllib.request.HTTPHandler())
        opener.add_handler(urllib.request.HTTPSHandler(context=self.tls))
        try:
            with opener.open(request, timeout=SECONDS) as response:
                return Answer(response.status, response.read())
        except (OSError, HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", None) or error
            raise UsageError(f"{self.url} does not answer: {reason}") from error


def connect(url: str, model: str | None, ca: str | None, wait: float) -> Endpoint:
    """Learn what a server serves.

    Args:
        url: With or without ``/v1``.
        model: The model to ask for; the first that the server lists if None.
        ca: A PEM file of certificates to trust, beside the system's.
        wait: Seconds to wait for a server that does not answer yet.

    Raises:
        UsageError: where it does not answer in time, refuses the key, or does not serve the model.
    """
    opened = Endpoint(_base(url), tls=_trust(url, ca))
    listed = _listed(opened, wait)
    names = [str(each.get("id")) for each in listed]
    if model is not None and model not in names:
        raise UsageError(f"--model {model!r} is not served at {opened.url}; it serves {', '.join(names)}")
    card = listed[names.index(model) if model is not None else 0]
    return Endpoint(
        url=opened.url,
        model=str(card["id"]),
        max_model_len=_most(card, opened.url),
        limits=_limits(opened),
        tls=opened.tls,
        is_vllm=card.get("owned_by") == "vllm",
    )


def error_message(body: bytes) -> str:
    """What an error's body says, in OpenAI's shape or FastAPI's; the body's beginning where it is neither."""
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
    """A key as it goes into a header, without the space and the end of line around it.

    Raises:
        UsageError: where no header takes it; the message does not tell it.
    """
    key = text.strip()
    if not (key.isascii() and key.isprintable()):
        raise UsageError(f"{where} must hold a key in one line of ASCII characters")
    return key


def _base(url: str) -> str:
    try:
        parts = urlsplit(url)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isascii()
    except ValueError:
        parts, is_right = urlsplit(""), False
    if parts.username is not None:
        raise UsageError(f"url of {parts.hostname!r}: must be without a user: the key is read from {KEY_VARIABLE}")
    if not is_right or parts.query or parts.fragment:
        raise UsageError(f"url {url!r} must be like http://127.0.0.1:8000")
    return url.rstrip("/").removesuffix("/v1")


def _trust(url: str, ca: str | None) -> ssl.SSLContext | None:
    if not url.startswith("https"):
        return None
    try:
        context = ssl.create_default_context()
        if ca is not None:
            # Given to create_default_context, the system's would not be trusted any more.
            context.load_verify_locations(ca)
        return context
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"--ca {ca!r}: {error}") from error


def _listed(opened: Endpoint, wait: float) -> list[dict[str, Any]]:
    deadline = time.monotonic() + wait
    while True:
        try:
            answer = opened.get("/v1/models")
            if answer.status < 500:
                break
            problem = f"{opened.url}/v1/models answered {answer.status}: {answer.message}"
        except UsageError as error:
            problem = str(error)
        if time.monotonic() > deadline:
            raise UsageError(problem if wait == 0 else f"{problem} (waited {wait:g} s)")
        time.sleep(min(2.0, wait))
    if answer.status in (401, 403):
        raise UsageError(f"{opened.url} refuses the key ({answer.status}): set the environment variable {KEY_VARIABLE}")
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


def _limits(opened: Endpoint) -> tuple[int, ...]:
    answer = opened.get("/v1/rope")
    try:
        content = json.loads(answer.body) if answer.status == 200 else None
    except (ValueError, RecursionError):
        content = None
    # There are servers that answer 200 to every path.
    if not isinstance(content, dict) or "sets" not in content:
        return ()
    sets = content["sets"] if isinstance(content["sets"], list) else [None]
    lengths: list[Any] = [each.get("max_length") if isinstance(each, dict) else None for each in sets]
    if not all(type(each) is int and each > 0 for each in lengths):
        raise UsageError(f"{opened.url}/v1/rope: sets: every one must have a max_length in tokens")
    return tuple(sorted(lengths))


def _most(card: dict[str, Any], url: str) -> int | None:
    found = card.get("max_model_len")
    if found is not None and (type(found) is not int or found < 1):
        raise UsageError(f"{url}/v1/models: max_model_len: {found!r} must be a number of tokens")
    return found
