"""Workload files: request kinds, arrivals, and lengths of prompts and answers. YAML; unknown keys are errors."""

from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, ValidationError, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import Band, bands
from ropeswitch.loadtests.client.lengths import NAMES, Length, Strict, Tokens

Rate = Annotated[float, Field(gt=0, le=100_000)]
Seconds = Annotated[float, Field(ge=0, le=86_400 * 30)]
Share = Annotated[float, Field(ge=0, le=1)]
MOST_BYTES = 1 << 20


class Poisson(Strict):
    """Independent arrivals; as vLLM's benchmark does, times are scaled so that the mean rate is met exactly."""

    rate: Rate


class Gamma(Strict):
    """Intervals of a gamma distribution: below 1, ``burstiness`` makes them come in clusters; above 1, evenly."""

    rate: Rate
    burstiness: Annotated[float, Field(gt=0, le=1000)]


class Bursts(Strict):
    """``size`` requests at once, and again, ``rate`` requests a second in the mean."""

    rate: Rate
    size: Annotated[int, Field(ge=1, le=100_000)]


class Closed(Strict):
    """``concurrency`` clients; each sends its next request ``think`` seconds after the answer to the last one."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)]
    think: Seconds = 0.0


class Trace(Strict):
    """A recorded trace, JSON lines with ``timestamp`` in milliseconds, ``input_length`` and ``output_length`` in tokens (the
    format of the Mooncake traces), replayed ``speed`` times as fast. ``hash_ids`` name blocks of 512 tokens of the
    prompt: equal ones are equal text."""

    file: str
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


class Arrival(Strict):
    """Exactly one of the processes."""

    poisson: Poisson | None = None
    gamma: Gamma | None = None
    bursts: Bursts | None = None
    closed: Closed | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _one(self) -> "Arrival":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"give one of {', '.join(type(self).model_fields)}; given: {', '.join(given) or 'none'}")
        return self

    @property
    def rated(self) -> Poisson | Gamma | Bursts | None:
        """The process that a rate drives, if it is one."""
        return self.poisson or self.gamma or self.bursts


class Cancel(Strict):
    """The client disconnects from a ``share`` of the requests after ``after`` chunks of the answer (0: at once)."""

    share: Share
    after: Annotated[int, Field(ge=0, le=1_000_000)] = 1


class Prefix(Strict):
    """Prompts begin with one of ``groups`` texts of ``tokens`` tokens, after what the chat template puts first."""

    tokens: Tokens
    groups: Annotated[int, Field(ge=1, le=10_000)] = 1


class Turns(Strict):
    """A conversation of ``count`` messages. Each one's prompt is ``grow`` tokens longer than the one before, by a reply and
    the next message; it is sent ``think`` seconds after the answer to the one before. Replies are made up ahead, like all of
    the prompt, so lengths are exact regardless of the answers."""

    count: Annotated[int, Field(ge=2, le=1000)]
    grow: Length
    think: Seconds = 0.0


class Part(Strict):
    """One kind of request in the mix."""

    kind: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,31}$")]
    share: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0
    count: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    prompt: Length | None = None
    output: Length | None = None
    form: Literal["text", "ids"] = "text"
    stream: bool = True
    cancel: Cancel | None = None
    prefix: Prefix | None = None
    turns: Turns | None = None


class Workload(Strict):
    """A workload file.

    Attributes:
        name: Default name of the results folder.
        about: One-line description.
        endpoint: ``chat`` (chat/completions) or ``completions``.
        arrival: Arrival process of the requests.
        requests: Maximum number of requests; a conversation of several turns counts once.
        seconds: Maximum seconds to send requests.
        warmup: Uncounted requests before the run, four at a time.
        text: Text of the prompts: the name of a shipped text, or a file.
        mix: Kinds of requests. A kind with a ``count`` has exactly that number, evenly spread over the run; the others are
            drawn by ``share``.
        ignore_eos: Generate each answer to its full length; needs a vLLM server.
        bands: Length bands of the report (default: the server's factor sets).
        slo: Latency objective, such as ``band=0-8k,ttft<0.5,tpot<0.1``.
    """

    name: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_.-]{0,63}$")]
    about: Annotated[str, Field(max_length=500)] = ""
    endpoint: Literal["chat", "completions"] = "chat"
    arrival: Arrival
    requests: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    seconds: Annotated[float, Field(gt=0, le=86_400 * 30)] | None = None
    warmup: Annotated[int, Field(ge=0, le=10_000)] = 4
    text: str = "paper"
    mix: tuple[Part, ...]
    ignore_eos: bool = False
    bands: str | None = None
    slo: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> "Workload":
        try:
            self.length_bands()
            self.objectives()
        except UsageError as error:
            raise ValueError(str(error)) from error
        if not self.mix:
            raise ValueError("mix: at least one part is needed")
        if self.requests is None and self.arrival.closed:
            raise ValueError("requests is missing: a closed loop needs a number of prompts to be made ahead")
        if self.requests is None and self.seconds is None and not self.arrival.trace:
            raise ValueError("requests or seconds is missing: the run would not end")
        if self.arrival.trace and (len(self.mix) != 1 or self.mix[0].turns or self.mix[0].prefix):
            raise ValueError(
                "mix: a trace has lengths and prefixes of its own and takes one part, without turns and prefix"
            )
        for part in self.mix:
            if (part.prompt is None or part.output is None) != (self.arrival.trace is not None):
                raise ValueError(f"mix: {part.kind}: prompt and output are needed, but for a trace, which has its own")
            if part.form == "ids" and self.endpoint == "chat":
                raise ValueError(f"mix: {part.kind}: form ids needs endpoint: completions")
            if part.cancel and not part.stream:
                raise ValueError(f"mix: {part.kind}: cancel needs stream: true: other answers come in one piece")
            if part.turns and self.endpoint == "completions":
                raise ValueError(f"mix: {part.kind}: turns needs endpoint: chat")
        if self.requests is not None and sum(part.count or 0 for part in self.mix) > self.requests:
            raise ValueError(f"mix: the counts of its parts are more than requests ({self.requests})")
        kinds = [part.kind for part in self.mix]
        if len(set(kinds)) < len(kinds):
            raise ValueError("mix: every part needs a kind of its own")
        return self

    def length_bands(self) -> tuple[Band, ...] | None:
        """The bands that the file names."""
        return bands(self.bands) if self.bands is not None else None

    def objectives(self) -> tuple[Slo, ...]:
        """The parsed ``slo``."""
        return tuple(Slo.parse(text) for text in self.slo)


def shipped() -> dict[str, Path]:
    """The workloads that come with ropeswitch, by name."""
    folder = Path(str(files("ropeswitch.loadtests"))) / "workloads"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> Workload:
    """The workload of that name that is shipped, or of that file.

    Raises:
        UsageError: where there is none, or it is not a workload; the message names the key.
    """
    path = shipped().get(name) or Path(name)
    if not path.is_file():
        raise UsageError(f"workload {name!r} is neither a file nor one of {', '.join(shipped())}")
    return parse(read_yaml(path), str(path))


def read_yaml(path: Path) -> Any:
    """What a YAML file holds.

    Raises:
        UsageError: where it is too large or no YAML.
    """
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    # Those besides its own come of values that its constructors do not check, such as the date 2024-13-45.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is no YAML: {error}") from error


def parse(content: Any, where: str) -> Workload:
    """The workload that ``content`` describes.

    Raises:
        UsageError: naming ``where``, the first wrong keys and what is allowed.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{where}: a workload is a mapping with the keys {', '.join(Workload.model_fields)}")
    try:
        return Workload.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {problems_of(error)}") from error


def problems_of(error: ValidationError) -> str:
    """A validation error as one line: the wrong keys and why."""
    found: dict[str, str] = {}
    for each in error.errors(include_url=False, include_context=False):
        loc = [str(part) for part in each["loc"]]
        # A distribution's name is there twice: as the tag of the union, and as its key.
        places = [part for part, after in pairwise([*loc, ""]) if part not in NAMES or part != after]
        unknown = each["type"] == "extra_forbidden"
        message = "there is no such key" if unknown else each["msg"].removeprefix("Value error, ")
        found.setdefault(".".join(places) or "the file", message)
    return "; ".join(f"{place}: {message}" for place, message in list(found.items())[:5])
