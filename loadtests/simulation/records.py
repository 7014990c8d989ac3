"""Records of a simulation: virtual time, requests, steps and the result."""

from dataclasses import dataclass

from ropeswitch.loadtests.simulation.workloads import Arrival


class SimulationError(RuntimeError):
    """The scheduler is stuck, or lost or invented tokens; the message names the requests or times involved."""


class Clock:
    """Virtual seconds; calling it returns the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, to: float) -> None:
        """Advance to a later time.

        Raises:
            SimulationError: if ``to`` is in the past.
        """
        if to < self.now:
            raise SimulationError(f"time would run backwards, from {self.now} s to {to} s")
        self.now = to


@dataclass
class Record:
    """Progress and result of one request; times are virtual seconds.

    Attributes:
        name: Request id in the scheduler.
        arrival: The request and its arrival time.
        first: Time of its first token; None before that.
        last: Time of its latest token.
        worst_gap: Longest gap between two of its tokens.
        tokens: Generated tokens.
        preemptions: Number of preemptions, moves to the next factor set included.
    """

    name: str
    arrival: Arrival
    first: float | None = None
    last: float = 0.0
    worst_gap: float = 0.0
    tokens: int = 0
    preemptions: int = 0

    def note(self, tokens: int, now: float) -> None:
        """Record ``tokens`` more tokens at time ``now``."""
        if tokens == 0:
            return
        if self.first is None:
            self.first = now
        else:
            self.worst_gap = max(self.worst_gap, now - self.last)
        self.last = now
        self.tokens += tokens

    @property
    def first_token_seconds(self) -> float:
        """Time to first token."""
        assert self.first is not None
        return self.first - self.arrival.at

    @property
    def completion_seconds(self) -> float:
        """Time from arrival to the last token."""
        return self.last - self.arrival.at


@dataclass(frozen=True)
class Step:
    """One step of the simulated engine.

    Attributes:
        start: Start time on the hardware, in virtual seconds.
        seconds: Duration.
        tokens: Scheduled tokens by request id; empty if nothing could be scheduled.
    """

    start: float
    seconds: float
    tokens: dict[str, int]


@dataclass
class Outcome:
    """Result of a whole simulation.

    Attributes:
        records: One record per request, in order of arrival.
        seconds: Time of the last token.
        steps: Steps that computed tokens.
        computed: Tokens computed by the model, including recomputed ones.
    """

    records: list[Record]
    seconds: float = 0.0
    steps: int = 0
    computed: int = 0
