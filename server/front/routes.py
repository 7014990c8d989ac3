"""Classifies paths: open without a key, open to the metrics key, or answered in the shape of Anthropic's API.

Also returns the body fields of a route, and suggests the known path closest to an unknown one.
"""

import difflib
from collections.abc import Iterable
from typing import get_args

from pydantic import BaseModel
from starlette.types import Scope

# Each includes every path below it.
_HEALTH = "/health"
_OPEN = (_HEALTH, "/ui")
_METRICS = "/metrics"
_ANTHROPIC = "/v1/messages"
# The home page redirects to the status page.
_HOME = "/"
# The body field that holds the prompt, by the end of the path.
_PROMPTS = {"/completions": "prompt", "/messages": "messages", "/responses": "input", "/embeddings": "input"}
_CHAT = "/chat/completions"
# vLLM's routes for models that do not generate text.
_OTHER_MODELS = (
    "/embeddings",
    "/embed",
    "/pooling",
    "/classify",
    "/score",
    "/rerank",
    "/transcriptions",
    "/translations",
)


def route_path(scope: Scope) -> str:
    """Return the path that the app's router matches: without ``--root-path``, removed exactly as ``starlette`` does.

    A rule on any other path could be bypassed.
    """
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    if not root or not path.startswith(root):
        return path
    rest = path[len(root) :]
    return rest if not rest or rest.startswith("/") else path


def _below(path: str, top: str) -> bool:
    return path == top or path.startswith(f"{top}/")


def is_open(path: str) -> bool:
    """Whether a path needs no key: ``/health*`` and the files of the status page (its data needs one)."""
    return path == _HOME or any(_below(path, top) for top in _OPEN)


def is_probe(path: str) -> bool:
    """Whether a path is a health probe."""
    return _below(path, _HEALTH)


def is_metrics(path: str) -> bool:
    """Whether vLLM answers a path with the metrics, which are open unless a metrics key is set."""
    # vLLM's mount matches every path that starts so, such as /metricsx.
    return path.startswith(_METRICS)


def is_anthropic(path: str) -> bool:
    """Whether a path is answered in the shape of Anthropic's API, errors included."""
    return _below(path, _ANTHROPIC)


def prompt_field(path: str) -> str | None:
    """Return the body field that holds the prompt on this path; None if that depends on the body."""
    if _CHAT in path or _below(path, _ANTHROPIC):
        return "messages"
    return next((field for end, field in _PROMPTS.items() if path.endswith(end)), None)


def body_fields(route: object) -> frozenset[str]:
    """Return the names of a route's body fields, from its models; empty if it has none.

    Args:
        route: The scope's route; None if none was found.
    """
    bodies = getattr(getattr(route, "dependant", None), "body_params", ())
    kinds = [each for body in bodies for each in (body.field_info.annotation, *get_args(body.field_info.annotation))]
    models = [each for each in kinds if isinstance(each, type) and issubclass(each, BaseModel)]
    return frozenset(field.alias or name for model in models for name, field in model.model_fields.items())


def unknown(method: str, path: str, known: Iterable[str]) -> str:
    """Return the error message for a path that matches no route.

    Args:
        method: The request's method.
        path: The request's path.
        known: The paths of all routes.
    """
    start = f"{method} {path[:200]}: no such route."
    if path.endswith(_OTHER_MODELS):
        return f"{start} This server's model generates text; this route needs another kind of model."
    # "/" resembles every short path.
    if meant := difflib.get_close_matches(path[:200], [each for each in known if len(each) > 1], 1, 0.7):
        return f"{start} Did you mean {meant[0]}? Check the client's base URL, which ends in /v1 for OpenAI's clients."
    return f"{start} GET /openapi.json lists the routes."
