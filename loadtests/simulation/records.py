"""Records of a simulation: virtual time, each request, each step, and the result."""

from collections import Counter
from dataclasses import dataclass, field

from ropeswitch.loadtests.simulation.workloads import Arrival


class SimulationError(RuntimeError):
    """The scheduler broke a promise: it is stuck, or lost or invented tokens; the message names the request and step."""


class Clock:
    """Virtual seconds; calling it returns the time."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, to: float) -> None:
        """Move on to a later time.

        Raises:
            SimulationError: when ``to`` is in the past.
        """
        if to < self.now:
            raise SimulationError(f"time would go back from {self.now} s to {to} s")
        self.now = to


@dataclass
class Record:
    """What became of one request; times in virtual seconds.

    Attributes:
        name: Its id in the scheduler.
        arrival: When and with what it came.
        first: When its first token was there.
        last: When its latest token was there; at the end of the simulation, its last.
        worst_gap: The longest wait between two of its tokens.
        tokens: Generated tokens.
        preemptions: How often the scheduler took its keys away; moves to the next factor set count too.
    """

    name: str
    arrival: Arrival
    first: float | None = None
    last: float = 0.0
    worst_gap: float = 0.0
    tokens: int = 0
    preemptions: int = 0

    def note(self, tokens: int, now: float) -> None:
        """Write down that so many more tokens were there at ``now``."""
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
        """From arrival to the last token."""
        return self.last - self.arrival.at


@dataclass(frozen=True)
class Step:
    """One step of the simulated engine.

    Attributes:
        start: When the hardware began, virtual seconds.
        seconds: How long it took.
        tokens: Scheduled tokens by request id; nothing where nothing could be planned.
        graph: Its CUDA graph, as :meth:`StepCosts.graph` names it.
    """

    start: float
    seconds: float
    tokens: dict[str, int]
    graph: str = "none"


@dataclass
class Outcome:
    """A whole simulation.

    Attributes:
        records: One for each request, in order of arrival.
        seconds: When the last token was there.
        steps: Steps that computed something.
        computed: Tokens that went through the model, those computed again after a preemption too.
        graphs: Steps by kind (``chunk`` with a chunk of a next set, ``other``) and CUDA graph.
    """

    records: list[Record]
    seconds: float = 0.0
    steps: int = 0
    computed: int = 0
    graphs: Counter[tuple[str, str]] = field(default_factory=Counter)
