"""What a load test knows of its requests and runs; every other module hands these on."""

from dataclasses import dataclass, field
from typing import Any, Literal

Status = Literal["completed", "failed", "cancelled", "interrupted"]
Side = Literal["target", "baseline"]


@dataclass(frozen=True)
class Exchange:
    """One request and what came of it; a line of ``requests.jsonl``. Times are in seconds.

    Attributes:
        index: Its place in the workload, from 0.
        kind: The workload's name for its part of the mix, such as ``chat``.
        prompt_tokens: Tokens of the prompt as it was made.
        max_tokens: Tokens that were asked for at most.
        due: When it should have been sent, since the run's start. In a closed loop that is when it was sent.
        sent: When it was sent, since the run's start.
        latency: From sending it to its last token (upstream's e2el); to its end where there was none.
        status: ``completed``; ``failed``; ``cancelled`` by the client, as the workload asks; ``interrupted`` by its end.
        ttft: From sending it to its first token; None where none came, or where it was not streamed.
        itl: Seconds between its chunks (upstream's definition: every chunk with a choice counts).
        streamed: Whether the answer was streamed.
        output_tokens: Tokens of the answer by the server's count; by chunks where the server did not say.
        counted_prompt_tokens: Tokens of the prompt by the server's count; None where it did not say.
        http_status: Of the response; None where none came.
        error: What went wrong, as the server or the network put it; empty where nothing did.
        finish_reason: As the server put it.
        factor_set: The header ``x-rope-factor-set``; None where the server sends none.
        answer: The text of the answer.
        key: The pass key hidden in the prompt; None where there is none.
        correct: Whether the answer tells the key; None where it was not to be judged.
        form: ``text`` or ``ids``.
        session: Which many-turn session it belongs to; None for a single request.
        turn: Its turn in the session, from 0.
    """

    index: int
    kind: str
    prompt_tokens: int
    max_tokens: int
    due: float
    sent: float
    latency: float
    status: Status
    ttft: float | None = None
    itl: tuple[float, ...] = ()
    streamed: bool = True
    output_tokens: int = 0
    counted_prompt_tokens: int | None = None
    http_status: int | None = None
    error: str = ""
    finish_reason: str | None = None
    factor_set: str | None = None
    answer: str = ""
    key: str | None = None
    correct: bool | None = None
    form: str = "text"
    session: int | None = None
    turn: int = 0

    @property
    def lateness(self) -> float:
        """Seconds by which it was sent late."""
        return self.sent - self.due


@dataclass(frozen=True)
class Sample:
    """The server's own metrics at one moment; a line of ``metrics.jsonl``.

    Attributes:
        at: Seconds since the run's start; before the first request it is below 0.
        values: Summed over label sets that differ in nothing but the engine, by series as Prometheus writes it, such as
            ``vllm:num_requests_running`` or ``ropeswitch_switches_total``; labels other than ``le`` and
            ``input_sequence_length`` are summed over.
    """

    at: float
    values: dict[str, float]


@dataclass(frozen=True)
class Run:
    """One repetition of a workload against one server; ``runs/NAME/``.

    Attributes:
        name: Such as ``rate-2-target-1``.
        side: Which server.
        rate: Requests a second; None where the workload is not driven by a rate.
        concurrency: Of a closed loop; None elsewhere.
        repetition: From 0.
        started: Seconds since the epoch.
        duration: Seconds from the first request to the last answer.
        complete: Whether it ran to its end.
        stopped: Why it did not.
        exchanges: Of every request that was sent, but for the warm-up.
        samples: Of the server's metrics, in order of time.
    """

    name: str
    side: Side
    rate: float | None
    concurrency: int | None
    repetition: int
    started: float
    duration: float
    complete: bool
    stopped: str = ""
    exchanges: tuple[Exchange, ...] = ()
    samples: tuple[Sample, ...] = ()

    def head(self) -> dict[str, Any]:
        """All but the exchanges and the samples, for ``run.json``."""
        return {name: value for name, value in vars(self).items() if name not in ("exchanges", "samples")}


def exchange_line(exchange: Exchange) -> dict[str, Any]:
    """The exchange as a JSON object, its times rounded to microseconds."""
    # Not by asdict, which copies every gap by itself.
    line = dict(vars(exchange))
    for name in ("due", "sent", "latency", "ttft"):
        if line[name] is not None:
            line[name] = round(line[name], 6)
    line["itl"] = [round(gap, 6) for gap in exchange.itl]
    return line


def exchange_of(line: dict[str, Any]) -> Exchange:
    """The exchange that :func:`exchange_line` wrote."""
    return Exchange(**{**line, "itl": tuple(line["itl"])})


@dataclass(frozen=True)
class Point:
    """All runs at one rate: what a row of a sweep compares.

    Attributes:
        label: Such as ``2 requests/s`` or ``8 at a time``.
        rate: See :class:`Run`.
        runs: Of both sides, in the order in which they ran.
    """

    label: str
    rate: float | None
    runs: tuple[Run, ...] = field(default=())

    def side(self, side: Side) -> tuple[Run, ...]:
        """The runs of one server."""
        return tuple(run for run in self.runs if run.side == side)
