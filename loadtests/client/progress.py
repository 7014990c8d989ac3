"""Counts the requests of a run, and prints a line with recent percentiles every ten seconds."""

import sys
from collections import deque

import numpy as np

from ropeswitch.loadtests.client.records import Exchange

SECONDS = 10.0
RECENT = 2000


class Progress:
    """Counts requests and shows their progress. Percentiles are of the last 2000 values."""

    def __init__(self, label: str, total: int, shown: bool) -> None:
        self.in_flight = self.failed = self.failed_in_a_row = 0
        self.last_error = ""
        self._ttft: deque[float] = deque(maxlen=RECENT)
        self._itl: deque[float] = deque(maxlen=RECENT)
        self._late = 0.0
        self._label, self._total, self._shown = label, total, shown
        self._done = 0

    def began(self, exchange: Exchange) -> None:
        """Record that a request was sent."""
        self.in_flight += 1
        self._late = max(self._late, exchange.lateness)

    def first(self, ttft: float) -> None:
        """Record the seconds to a request's first token."""
        self._ttft.append(ttft)

    def ended(self, exchange: Exchange) -> None:
        """Record that a request ended."""
        self.in_flight -= 1
        self._itl.extend(exchange.itl)
        if exchange.status == "failed":
            self.failed += 1
            self.failed_in_a_row += 1
            status = f"{exchange.http_status} " if exchange.http_status else ""
            self.last_error = status + exchange.error
        elif exchange.status in ("completed", "cancelled"):
            self.failed_in_a_row = 0
        self._done += 1

    def show(self) -> None:
        """Print the current state."""
        if not self._shown:
            return
        parts = [f"loadtest: {self._label}: {self._done}/{self._total}", f"in flight {self.in_flight}"]
        for name, values in (("ttft", self._ttft), ("itl", self._itl)):
            if values:
                p50, p99 = np.percentile(values, (50, 99)) * 1000
                parts.append(f"{name} p50 {p50:.0f} ms p99 {p99:.0f} ms")
        if self._late > 0.01:
            parts.append(f"sent up to {1000 * self._late:.0f} ms late")
        if self.failed:
            parts.append(f"failed {self.failed}")
        print(", ".join(parts), file=sys.stderr, flush=True)
