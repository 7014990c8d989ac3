"""Files that may change while the server runs, as the secrets that Kubernetes mounts do."""

import logging
import os
import time
from collections.abc import Callable, Sequence

from ropeswitch.server.errors import UsageError

logger = logging.getLogger(__name__)

# A file that changed less than this many nanoseconds ago may change again without its times showing it: they are no finer
# than the kernel's clock.
_UNSETTLED = 2_000_000_000


class WatchedFiles:
    """Files that are read again when they have changed.

    Args:
        paths: The files, which belong together.
        read: Reads them and puts what they say in force, or raises UsageError and changes nothing. It was called before:
            the first :meth:`look` calls it only if they have changed since they were made known here.
    """

    def __init__(self, paths: Sequence[str], read: Callable[[], None]) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._state, self._settled = _state(self._paths)
        # The fault that was logged last, so that it is logged once.
        self._fault: str | None = None

    def look(self) -> None:
        """Read the files if they have changed; a fault in them is logged, and what was read before stays in force."""
        state, settled = _state(self._paths)
        if state == self._state and self._settled:
            return
        self._state, self._settled = state, settled
        try:
            self._read()
        except UsageError as error:
            if str(error) != self._fault:
                logger.error("%s; what was read before stays in force", error)
            self._fault = str(error)
        else:
            self._fault = None


def _state(paths: Sequence[str]) -> tuple[object, bool]:
    """What changes when one of the files does, also by the turn of a link to another folder; and whether it is settled."""
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
