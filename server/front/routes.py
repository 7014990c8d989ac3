"""Classifies paths: open without a key, opened by the metrics key, answered in the shape of Anthropic's API."""

from starlette.types import Scope

# Each with everything below it.
_HEALTH = "/health"
_OPEN = (_HEALTH, "/ui")
_METRICS = "/metrics"
_ANTHROPIC = "/v1/messages"


def route_path(scope: Scope) -> str:
    """The path that the app's router matches: without ``--root-path``, removed exactly as ``starlette`` does.

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
    return any(_below(path, top) for top in _OPEN)


def is_probe(path: str) -> bool:
    """Whether a path is a health probe."""
    return _below(path, _HEALTH)


def is_metrics(path: str) -> bool:
    """Whether a path is ``/metrics``, which is open unless there is a metrics key."""
    return _below(path, _METRICS)


def is_anthropic(path: str) -> bool:
    """Whether a path is answered in the shape of Anthropic's API, errors included."""
    return _below(path, _ANTHROPIC)
