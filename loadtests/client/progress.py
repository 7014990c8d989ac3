"""Shows the progress of a run, with recent percentiles: a bar on a terminal, lines in a log."""

import sys
from collections import deque
from collections.abc import Sequence

import numpy as np
from tqdm import tqdm

from ropeswitch.loadtests.client.records import Exchange

# Seconds between updates: of a log, where each is a new line, and of a terminal.
LOG_SECONDS, BAR_SECONDS = 10.0, 0.5
RECENT = 2000


class Progress:
    """Counts requests and shows their progress. Percentiles are of the last 2000 values."""

    def __init__(self, label: str, total: int, shown: bool) -> None:
        tty = sys.stderr.isatty()
        self.seconds = BAR_SECONDS if tty else LOG_SECONDS
        self.in_flight = 0
        self.failed = 0
        self.failed_in_a_row = 0
        self.last_error = ""
        self._ttft: deque[float] = deque(maxlen=RECENT)
        self._itl: deque[float] = deque(maxlen=RECENT)
        self._late = 0.0
        self._label, self._total, self._shown, self._tty = label, total, shown, tty
        self._bar = tqdm(
            total=total,
            desc=label,
            disable=not (shown and tty),
            mininterval=self.seconds,
            dynamic_ncols=True,
            bar_format="{desc} {percentage:3.0f}% |{bar:24}| {n_fmt}/{total_fmt} {elapsed}{postfix}",
            file=sys.stderr,
        )
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
        self._bar.update(1)

    def show(self) -> None:
        """Show the current state."""
        parts = [
            f"in flight {self.in_flight}",
            f"ttft p50 {_ms(self._ttft, 50)} p99 {_ms(self._ttft, 99)}",
            f"itl p50 {_ms(self._itl, 50)} p99 {_ms(self._itl, 99)}",
        ]
        if self._late > 0.01:
            parts.append(f"sent up to {1000 * self._late:.0f} ms late")
        if self.failed:
            parts.append(f"failed {self.failed}")
        if self._tty:
            self._bar.set_postfix_str(", ".join(parts), refresh=True)
        elif self._shown:
            print(
                f"loadtest: {self._label}: {self._done}/{self._total}, {', '.join(parts)}", file=sys.stderr, flush=True
            )

    def close(self) -> None:
        """Show the final state and close the bar."""
        self.show()
        self._bar.close()


def _ms(values: Sequence[float] | deque[float], percentile: float) -> str:
    return f"{1000 * float(np.percentile(values, percentile)):.0f} ms" if values else "-"
