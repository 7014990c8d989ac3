"""A plugin of vLLM's for ``bench_metrics.py``: a server's metrics by length go off and on by signal, which no flag does."""

import signal
from typing import Any

ON, OFF = signal.SIGUSR1, signal.SIGUSR2
# What the metrics wrap, on the server's own objects.
_PROCESSOR = (
    "add_request",
    "_update_stats_from_output",
    "_update_stats_from_finished",
    "abort_requests",
    "propagate_error",
)


def install() -> None:
    """Have the API server that this process will be listen to the signals; called before it loads what starts them.

    They are to be sent while it has nothing in hand: what began with the metrics must end with them.
    """
    from ropeswitch.server.length_metrics import fates, start

    upstream, paths = start.start, fates.PATHS

    def started(engine_client: Any, ladder: Any) -> Any:
        metrics = upstream(engine_client, ladder)
        processor, manager = engine_client.output_processor, engine_client.logger_manager
        wrapped = [(processor, name, getattr(processor, name)) for name in _PROCESSOR]
        wrapped.append((manager, "record", manager.record))

        def turn_on(*_: Any) -> None:
            fates.PATHS = paths
            for holder, name, method in wrapped:
                setattr(holder, name, method)

        def turn_off(*_: Any) -> None:
            fates.PATHS = frozenset()
            for holder, name, _method in wrapped:
                # The class's own is left.
                delattr(holder, name)

        signal.signal(ON, turn_on)
        signal.signal(OFF, turn_off)
        return metrics

    start.start = started
