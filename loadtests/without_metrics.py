"""A plugin of vLLM's that leaves the metrics by length out of a server, which no flag does; for ``bench_metrics.py``."""

from typing import Any


def install() -> None:
    """Have the server start without them; called before it loads what starts them."""
    from ropeswitch.server.length_metrics import start

    def nothing(engine_client: Any, ladder: Any) -> None:
        return None

    start.start = nothing
