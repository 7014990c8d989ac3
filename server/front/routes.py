"""Which paths are open to everyone, which to the metrics key, and which are shaped for Anthropic's clients."""

from starlette.types import Scope

# With everything below them.
_HEALTH = "/health"
_OPEN = (_HEALTH, "/ui")
_METRICS = "/metrics"
_ANTHROPIC = "/v1/messages"


def route_path(scope: Scope) -> str:
    """The path that the app's router looks at: without ``--root-path``, exactly as ``starlette`` takes it off.

    A rule about a path must not look at another one than the router does, or it could be walked around.
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
    """Whether a path needs no key at all: ``/health*`` probes and the files of the status page (its data needs one)."""
    return any(_below(path, top) for top in _OPEN)


def is_probe(path: str) -> bool:
    """Whether a path is that of a probe."""
    return _below(path, _HEALTH)


def is_metrics(path: str) -> bool:
    """Whether a path is that of the metrics, which are open unless there is a metrics key."""
    return _below(path, _METRICS)


def is_anthropic(path: str) -> bool:
    """Whether a path is answered in the shape of Anthropic's API, errors included."""
    return _below(path, _ANTHROPIC)
