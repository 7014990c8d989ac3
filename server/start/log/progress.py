"""Tracks the stage and the duration of a start, and when to print them."""

# A pipe gets its first line FIRST seconds after the start. Each later line comes when the time since the start has
# doubled, at most LONGEST_PAUSE seconds after the line before.
FIRST = 10.0
LONGEST_PAUSE = 60.0


class Progress:
    """The stage of a start, as lines for a pipe or as one line that a terminal rewrites.

    Args:
        stage: The first stage.
        now: The clock, in seconds, when the start began.

    Attributes:
        stage: The current stage; set by the caller.
        instead: Text to show in place of the stage, or None; set by the caller.
    """

    def __init__(self, stage: str, now: float) -> None:
        self.stage = stage
        self.instead: str | None = None
        self._began = now
        self._next = FIRST

    def status(self, now: float) -> str:
        """Return the stage and the seconds since the start."""
        return f"{self.instead or self.stage} ({now - self._began:.0f} s)"

    def due(self, now: float) -> str | None:
        """Return the line to write to a pipe now, or None."""
        seconds = now - self._began
        if seconds < self._next:
            return None
        self._next = seconds + min(seconds, LONGEST_PAUSE)
        return self.status(now)
