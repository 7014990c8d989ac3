"""When a start shows how far it is."""

# A pipe gets its first line after this many seconds, and the next ones after twice as long each, but no longer pause
# than the last.
FIRST = 10.0
LONGEST_PAUSE = 60.0


class Progress:
    """The stage of a start, as lines for a pipe or as one line that a terminal rewrites.

    Args:
        stage: What is going on.
        now: The clock, in seconds, when the start began.

    Attributes:
        stage: As above; set by the caller.
        instead: Shown in its place, unless None; set by the caller.
    """

    def __init__(self, stage: str, now: float) -> None:
        self.stage = stage
        self.instead: str | None = None
        self._began = now
        self._next = FIRST

    def status(self, now: float) -> str:
        """The stage and the seconds since the start."""
        return f"{self.instead or self.stage} ({now - self._began:.0f} s)"

    def due(self, now: float) -> str | None:
        """The line that a pipe gets now, or None."""
        seconds = now - self._began
        if seconds < self._next:
            return None
        self._next = seconds + min(seconds, LONGEST_PAUSE)
        return self.status(now)
