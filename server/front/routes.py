"""Classifies paths: open without a key, open to the metrics key, or answered in the shape of Anthropic's API."""

from starlette.types import Scope

# Each includes every path below it.
_HEALTH = "/health"
_OPEN = (_HEALTH, "/ui")
_METRICS = "/metrics"
_ANTHROPIC = "/v1/messages"
# The home page redirects to the status page.
_HOME = "/"


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
