"""Parses workload files (YAML): kinds of requests, arrivals, and lengths of prompts and answers."""

from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from ropeswitch.factors.errors import UsageError
from ropeswitch.loadtests.client.assertions import Slo
from ropeswitch.loadtests.client.bands import Band, bands
from ropeswitch.loadtests.client.lengths import Length, Strict, Tokens

Model = TypeVar("Model", bound=BaseModel)
Rate = Annotated[float, Field(gt=0, le=100_000)]
Seconds = Annotated[float, Field(ge=0, le=86_400 * 30)]
Share = Annotated[float, Field(ge=0, le=1)]
MOST_BYTES = 1 << 20


class Poisson(Strict):
    """Independent arrivals; as in vLLM's benchmark, times are scaled to meet the mean rate exactly."""

    rate: Rate


class Gamma(Strict):
    """Gamma-distributed intervals; ``burstiness`` below 1 clusters arrivals, above 1 evens them out."""

    rate: Rate
    burstiness: Annotated[float, Field(gt=0, le=1000)]


class Bursts(Strict):
    """Bursts of ``size`` simultaneous requests, on average ``rate`` requests per second."""

    rate: Rate
    size: Annotated[int, Field(ge=1, le=100_000)]


class Closed(Strict):
    """``concurrency`` clients; each sends its next request after its previous answer."""

    concurrency: Annotated[int, Field(ge=1, le=10_000)]


class Trace(Strict):
    """A recorded trace in the Mooncake format, replayed ``speed`` times as fast: JSON lines with ``timestamp`` in
    milliseconds, ``input_length`` and ``output_length`` in tokens. Each of the optional ``hash_ids`` stands for a block of
    512 prompt tokens; equal ids give equal text."""

    file: str
    speed: Annotated[float, Field(gt=0, le=1_000_000)] = 1.0


class Arrival(Strict):
    """Give exactly one process."""

    poisson: Poisson | None = None
    gamma: Gamma | None = None
    bursts: Bursts | None = None
    closed: Closed | None = None
    trace: Trace | None = None

    @model_validator(mode="after")
    def _one(self) -> "Arrival":
        given = [name for name in type(self).model_fields if getattr(self, name) is not None]
        if len(given) != 1:
            every = ", ".join(type(self).model_fields)
            raise ValueError(f"give exactly one of {every}; given: {', '.join(given) or 'none'}")
        return self

    @property
    def rated(self) -> Poisson | Gamma | Bursts | None:
        """The arrival process, if it has a rate."""
        return self.poisson or self.gamma or self.bursts


class Cancel(Strict):
    """The client disconnects from a ``share`` of the requests after ``after`` chunks (0: when the answer begins)."""

    share: Share
    after: Annotated[int, Field(ge=0, le=1_000_000)] = 1


class Prefix(Strict):
    """Prompts share one of ``groups`` texts of ``tokens`` tokens, which follows the chat template's start and the text's
    ``opening``."""

    tokens: Tokens
    groups: Annotated[int, Field(ge=1, le=10_000)] = 1


class Turns(Strict):
    """A conversation of ``count`` user messages. Each prompt is the previous one plus a reply and the next message,
    ``grow`` tokens in all, and is sent ``think`` seconds after the previous answer. Replies are prepared ahead and do not
    come from the server, so prompt lengths are exact."""

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
    """A workload file; docs/loadtests.md describes its keys."""

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
            raise ValueError("requests is missing: a closed loop needs a number of prompts to build ahead")
        if self.requests is None and self.seconds is None and not self.arrival.trace:
            raise ValueError("requests or seconds is missing: the run would not end")
        if self.arrival.trace and (len(self.mix) != 1 or self.mix[0].turns or self.mix[0].prefix):
            raise ValueError("mix: a trace has its own lengths and prefixes; give one part, without turns and prefix")
        for part in self.mix:
            if (part.prompt is None or part.output is None) != (self.arrival.trace is not None):
                raise ValueError(
                    f"mix: {part.kind}: prompt and output are needed, except with a trace, which has its own"
                )
            if part.form == "ids" and self.endpoint == "chat":
                raise ValueError(f"mix: {part.kind}: form ids needs endpoint: completions")
            if part.cancel and not part.stream:
                raise ValueError(f"mix: {part.kind}: cancel needs stream: true, since other answers arrive whole")
            if part.turns and self.endpoint == "completions":
                raise ValueError(f"mix: {part.kind}: turns needs endpoint: chat")
        if self.requests is not None and sum(part.count or 0 for part in self.mix) > self.requests:
            raise ValueError(f"mix: the counts of its parts add up to more than requests ({self.requests})")
        kinds = [part.kind for part in self.mix]
        if len(set(kinds)) < len(kinds):
            raise ValueError("mix: two parts have the same kind; each needs a different one")
        return self

    def length_bands(self) -> tuple[Band, ...] | None:
        """The parsed ``bands``; None if the file has none."""
        return bands(self.bands) if self.bands is not None else None

    def objectives(self) -> tuple[Slo, ...]:
        """The parsed ``slo``."""
        return tuple(Slo.parse(text) for text in self.slo)


def shipped(kind: str) -> dict[str, Path]:
    """Paths of the shipped files of a kind, ``workload`` or ``text``, by name."""
    folder = Path(str(files("ropeswitch.loadtests"))) / f"{kind}s"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> Workload:
    """Load a shipped workload by its name, or a workload file.

    Raises UsageError if there is neither, or it is not a workload; the message names the key.
    """
    path = find("workload", name)
    return parse(read_yaml(path), str(path))


def find(kind: str, name: str) -> Path:
    """Return the path of a shipped file by its name, or of a file; raises UsageError if there is neither."""
    path = shipped(kind).get(name) or Path(name)
    if not path.is_file():
        raise UsageError(f"{kind} {name!r} is neither a file nor one of {', '.join(shipped(kind))}")
    return path


def read_yaml(path: Path) -> Any:
    """Return the content of a YAML file; raises UsageError if it is larger than 1 MiB or not valid YAML."""
    if path.stat().st_size > MOST_BYTES:
        raise UsageError(f"{path} is larger than {MOST_BYTES} bytes")
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    # PyYAML's constructors raise other errors for values they do not check, such as the date 2024-13-45.
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:
        raise UsageError(f"{path} is not valid YAML: {error}") from error


def parse(content: Any, where: str) -> Workload:
    """Validate ``content`` as a workload."""
    return validated(Workload, "workload", content, where)


def validated(model: type[Model], kind: str, content: Any, where: str) -> Model:
    """Validate ``content`` as a file of a kind.

    Raises UsageError if it is not one; the message names ``where``, up to five wrong keys and what is allowed.
    """
    if not isinstance(content, dict):
        raise UsageError(f"{where}: a {kind} must be a mapping with the keys {', '.join(model.model_fields)}")
    try:
        return model.model_validate(content)
    except ValidationError as error:
        raise UsageError(f"{where}: {problems_of(error)}") from error


def problems_of(error: ValidationError) -> str:
    """Format a validation error as one line: up to five wrong keys and their errors."""
    found: dict[str, str] = {}
    for each in error.errors(include_url=False, include_context=False):
        unknown = each["type"] == "extra_forbidden"
        message = "unknown key" if unknown else each["msg"].removeprefix("Value error, ")
        found.setdefault(".".join(map(str, each["loc"])) or "the file", message)
    return "; ".join(f"{place}: {message}" for place, message in list(found.items())[:5])
