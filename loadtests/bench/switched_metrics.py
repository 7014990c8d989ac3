"""vLLM plugin for ``metrics.py`` that switches an API server's metrics by length on and off while it serves.

It switches their work per output. Their work on a request's arrival stays on, because a request that started
without it could not continue with it.
"""

import json
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

# Environment variables: output file of the measurements, and seconds per slice.
FILE, SLICE = "METRICS_BENCH_FILE", "METRICS_BENCH_SLICE"
# If set, both sides run without the metrics, so that only noise is measured.
CONTROL = "METRICS_BENCH_CONTROL"
START, STOP = signal.SIGUSR1, signal.SIGUSR2
_PROCESSOR = ("_update_stats_from_output", "_update_stats_from_finished")


class _Switch:
    """Switches sides by a timer and records for each slice: seconds, CPU seconds of the process and tokens."""

    def __init__(self, processor: Any) -> None:
        self.on = True
        self._tokens = 0
        self._slices: list[tuple[bool, float, float, int]] = []
        self._order = random.Random(0)
        self._next: list[bool] = []
        self._since = (0.0, 0.0, 0)
        for name in _PROCESSOR:
            self._switch(processor, name)
        upstream = processor.process_outputs

        def process_outputs(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._tokens += sum(len(each.new_token_ids) for each in outputs)
            return upstream(outputs, *args, **kwargs)

        processor.process_outputs = process_outputs
        seconds = float(os.environ[SLICE])
        signal.signal(signal.SIGALRM, self._turn)
        signal.signal(START, lambda *_: signal.setitimer(signal.ITIMER_REAL, seconds, seconds))
        signal.signal(STOP, self._stop)

    def _turn(self, *_: Any) -> None:
        now = (time.perf_counter(), time.process_time(), self._tokens)
        seconds, cpu, tokens = (after - before for after, before in zip(now, self._since, strict=True))
        self._slices.append((self.on, seconds, cpu, int(tokens)))
        self._since = now
        if not self._next:
            # In pairs, so that both sides run at nearly the same time, and in random order, so that no period aligns.
            self._next = self._order.choice(([True, False], [False, True]))
        self.on = self._next.pop(0)

    def _switch(self, holder: Any, name: str) -> None:
        with_metrics, without = getattr(holder, name), getattr(type(holder), name)
        if CONTROL in os.environ:

            def with_metrics(*args: Any, **kwargs: Any) -> Any:
                return without(holder, *args, **kwargs)

        def either(*args: Any, **kwargs: Any) -> Any:
            return with_metrics(*args, **kwargs) if self.on else without(holder, *args, **kwargs)

        setattr(holder, name, either)

    def _stop(self, *_: Any) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)
        self.on = True
        path = Path(os.environ[FILE])
        part = path.with_suffix(".part")
        # The first slice began before the timer.
        part.write_text(json.dumps(self._slices[1:]), encoding="utf-8")
        part.replace(path)


def install() -> None:
    """Make this process's API server listen to the signals; called before the server loads the code that starts metrics."""
    from ropeswitch.server.metrics import outputs

    upstream = outputs.start

    def started(engine_client: Any, ladder: Any) -> Any:
        metrics = upstream(engine_client, ladder)
        _Switch(engine_client.output_processor)
        return metrics

    outputs.start = started
