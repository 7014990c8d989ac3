"""The lines that report a ready server, with a first request that works as printed.

An API server process writes them to a file when it accepts connections; the command's own process prints them
(:mod:`~ropeswitch.server.start.log.console`).
"""

import asyncio
import json
import os
import shlex
from argparse import Namespace
from pathlib import Path
from typing import Any, Literal

from ropeswitch.server.start.refusals import VARIABLE, report

# Interval between checks whether uvicorn has started, in seconds.
SECONDS = 0.05
# Tokens that the first request asks for.
TOKENS = 32
# The host for a client's URL, by the wildcard host that the server listens on.
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}

_ENDING = ".ready"

Kind = Literal["chat", "completion", "tokens", "none"]


def ready_file() -> Path:
    """Return the path of the file, next to the refusals'."""
    return Path(os.environ[VARIABLE] + _ENDING)


async def announce(state: Any, args: Namespace, kind: Kind) -> None:
    """Write the lines once the app's server accepts connections; of several API servers, only the first does.

    Args:
        state: The app's state, where vLLM stores its ``uvicorn.Server``.
        args: The server's flags.
        kind: The first request that the model can answer; see :func:`ready_lines`.
    """
    while not getattr(getattr(state, "server", None), "started", False):
        await asyncio.sleep(SECONDS)
    report("\n".join(ready_lines(args, kind)) + "\n", _ENDING)


def ready_lines(args: Namespace, kind: Kind) -> list[str]:
    """Return the server's address, a request to try, and warnings about routes that are open to everyone.

    Args:
        args: The server's flags; ``port`` is the one it listens on.
        kind: ``chat``, a ``completion``, a completion of ``tokens`` without a tokenizer, or ``none`` for a model
            that does not generate.
    """
    scheme = "https" if args.ssl_certfile else "http"
    host = _ANY.get(args.host or "", args.host)
    url = f"{scheme}://localhost" if args.uds else f"{scheme}://{f'[{host}]' if ':' in host else host}:{args.port}"
    where = f"unix socket {args.uds}" if args.uds else f"{url} (status page: {url}/ui)"
    return [f"{where}; a first request:", curl(url, args, kind), *_warnings(args)]


def _warnings(args: Namespace) -> list[str]:
    front = args.ropeswitch_front
    if front.key_digests or front.key_file:
        text = "warning: /metrics needs no key; set --metrics-key-file unless a gateway keeps it from clients"
        return [] if front.metrics_digests or front.metrics_key_file else [text]
    text = f"warning: anyone who reaches port {args.port} needs no key; set --api-key-file, or --host 127.0.0.1"
    local = args.uds or args.host in ("localhost", "::1") or (args.host or "").startswith("127.")
    return [] if local else [text]


def curl(url: str, args: Namespace, kind: Kind) -> str:
    """Return a shell command that sends a first request to the server at ``url``; see :func:`ready_lines`."""
    words = ["curl"]
    if args.uds:
        words += ["--unix-socket", args.uds]
    if args.ssl_certfile:
        # The certificate may be for another name than the one in the URL, or signed by an authority unknown to curl.
        words.append("-k")
    if args.ropeswitch_front.key_digests or args.ropeswitch_front.key_file:
        words += ["-H", "Authorization: Bearer YOUR_API_KEY"]
    body: dict[str, Any] = {"model": args.served_model_name[0] if args.served_model_name else args.model}
    if kind == "none":
        return shlex.join([*words, f"{url}/v1/models"])
    if kind == "chat":
        path, body["messages"] = "/v1/chat/completions", [{"role": "user", "content": "Hello"}]
    else:
        path, body["prompt"] = "/v1/completions", "Hello" if kind == "completion" else [1]
    body["max_tokens"] = TOKENS
    words += [f"{url}{path}", "-H", "Content-Type: application/json", "-d", json.dumps(body)]
    return shlex.join(words)
