"""Reloads files that change while the server runs, such as secrets mounted by Kubernetes."""

import logging
import os
import time
from collections.abc import Callable, Sequence

from ropeswitch.factors.errors import UsageError

logger = logging.getLogger(__name__)

# Nanoseconds after a change within which another one may leave the same timestamp: timestamps are as coarse as the
# kernel's clock.
_UNSETTLED = 2_000_000_000


class WatchedFiles:
    """Files that are reloaded together when one of them changes.

    Args:
        paths: The files.
        read: Reads them and applies their content, or raises UsageError and changes nothing. The caller has called it once
            already: the first :meth:`look` calls it only if the files changed since.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], None]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._state, self._settled = _state(self._paths)
        # The last fault, so that it is logged once.
        self._fault: str | None = None

    def look(self) -> None:
        """Reload the files if they have changed; on a fault, log it and keep the last good content."""
        state, settled = _state(self._paths)
        if state == self._state and self._settled:
            return
        self._state, self._settled = state, settled
        try:
            self._read()
        except UsageError as error:
            if str(error) != self._fault:
                logger.error("%s; the previous content stays in force", error)
            self._fault = str(error)
        else:
            self._fault = None


def _state(paths: Sequence[str]) -> tuple[object, bool]:
    """Return a value that changes with any file, also when a link is switched, and whether it is settled."""
    states: list[object] = []
    newest = 0
    for path in paths:
        try:
            stat = os.stat(path)
        except OSError as error:
            states.append(error.errno)
        else:
            states.append((stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns))
            newest = max(newest, stat.st_mtime_ns)
    return states, abs(time.time_ns() - newest) > _UNSETTLED
