"""Records of a load test, and its results folder."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.files import save_text

Status = Literal["completed", "failed", "cancelled", "interrupted"]
Side = Literal["target", "baseline"]


@dataclass(frozen=True)
class Exchange:
    """One request and its outcome; a line of ``requests.jsonl``. Times are in seconds.

    Attributes:
        due: When it was due, since the run's start; in a closed loop, when it was sent.
        sent: When it was sent, since the run's start.
        latency: From sending to the last token (upstream's e2el); to the end of a request that failed or was interrupted.
        status: ``completed``; ``failed``; ``cancelled`` by the client, as in the workload; ``interrupted`` by the run's end.
        ttft: From sending to the first token; None if none arrived or the answer was not streamed.
        itl: Gaps between its chunks (upstream's definition: every chunk with a choice counts).
        output_tokens: Answer tokens by the server's count, or the number of chunks if it sent none.
        counted_prompt_tokens: Prompt tokens by the server's count; None if it sent none.
        error: Error message of the server or the network; empty if there was none.
        factor_set: The header ``x-rope-factor-set``; None if the server does not send it.
        key: The pass key hidden in the prompt; None if there is none.
        correct: Whether the answer has the key; None if it was not judged.
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
        """Seconds between its due time and its sending."""
        return self.sent - self.due


@dataclass(frozen=True)
class Run:
    """One repetition of a workload against one server, of ``duration`` seconds until the last answer.

    Without a rate or clients of a closed loop, these are None. ``stopped`` says why it is not complete.
    """

    name: str
    side: Side
    rate: float | None
    concurrency: int | None
    repetition: int
    duration: float = 0.0
    complete: bool = False
    stopped: str = ""
    exchanges: tuple[Exchange, ...] = ()


def exchange_line(exchange: Exchange) -> dict[str, Any]:
    """Return the exchange as a JSON object, with times rounded to microseconds."""
    # Not asdict, which copies each gap separately.
    line = dict(vars(exchange))
    for name in ("due", "sent", "latency", "ttft"):
        if line[name] is not None:
            line[name] = round(line[name], 6)
    line["itl"] = [round(gap, 6) for gap in exchange.itl]
    return line


@dataclass(frozen=True)
class Point:
    """All runs at one rate or concurrency, in the order they ran; ``label`` is such as ``2 requests/s``."""

    label: str
    rate: float | None
    runs: tuple[Run, ...] = field(default=())

    def side(self, side: Side) -> tuple[Run, ...]:
        """Return the runs against one server."""
        return tuple(run for run in self.runs if run.side == side)


REQUESTS, RESULTS = "requests.jsonl", "results.json"


class Store:
    """A results folder: ``requests.jsonl`` gets a line as each request ends, the other files are written at the end.

    Raises UsageError if the folder has a finished test, or files and no load test. An interrupted test is started over.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        path = folder / RESULTS
        if path.exists() and _is_complete(path):
            raise UsageError(f"--out {folder} has the results of a load test: use another folder, or remove it")
        found = {each.name for each in folder.iterdir() if not each.name.startswith(".")} if folder.exists() else set()
        if found and not found & {REQUESTS, RESULTS}:
            raise UsageError(f"--out {folder} is not empty and has no load test: use another folder")
        folder.mkdir(parents=True, exist_ok=True)
        self._requests: IO[str] | None = None

    def keep(self, run: Run, exchange: Exchange) -> None:
        """Append a request to ``requests.jsonl``, with its run's name."""
        path = self.folder / REQUESTS
        try:
            if self._requests is None:  # only now are those of an interrupted test discarded
                (self.folder / RESULTS).unlink(missing_ok=True)
                self._requests = path.open("w", encoding="utf-8", buffering=1)
            self._requests.write(json.dumps({"run": run.name} | exchange_line(exchange)) + "\n")
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror}; earlier requests are kept") from error

    def write(self, name: str, text: str) -> Path:
        """Write a file in the folder atomically and return its path."""
        path = self.folder / name
        save_text(path, text, overwrite=True)
        return path


def _is_complete(path: Path) -> bool:
    try:
        found: Any = json.loads(path.read_bytes())
    except ValueError as error:
        raise UsageError(f"{path} is not valid JSON: {error}") from error
    return bool(isinstance(found, dict) and found.get("complete"))
