"""Draws the requests of a run and when they are due. The same seed draws the same requests."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import is_number
from ropeswitch.loadtests.client.lengths import draw
from ropeswitch.loadtests.client.workload import Arrival, Bursts, Gamma, Part, Poisson, Trace, Workload

# Largest number in a trace; hash_ids may have 64 bits.
MOST = (1 << 64) - 1
TRACE_BLOCK = 512
"""Prompt tokens per entry of a trace's hash_ids (as in the Mooncake traces)."""


@dataclass(frozen=True)
class Planned:
    """One request to send.

    Attributes:
        index: Its position in the plan, from 0.
        conversation: Number of its conversation of ``turns`` requests, which are sent one after the other.
        key: Index of its pass key.
        cancel_after: Chunks of the answer after which the client disconnects; None for never.
        think: Seconds to wait after the previous answer of the conversation.
        prefix: Index of its shared text, of ``prefix_tokens``; None for none.
        blocks: Its hash_ids in a trace.
        due: Seconds since the run's start, from a trace; None without one.
    """

    index: int
    conversation: int
    kind: str
    prompt_tokens: int
    max_tokens: int
    key: int
    turn: int = 0
    form: Literal["text", "ids"] = "text"
    stream: bool = True
    cancel_after: int | None = None
    think: float = 0.0
    prefix: int | None = None
    prefix_tokens: int = 0
    blocks: tuple[int, ...] = ()
    turns: int = 1
    due: float | None = None


@dataclass(frozen=True)
class Bounds:
    """Bounds in tokens: of the shortest prompt with a pass key, and of a prompt plus its answer.

    Requests longer than ``longest`` are cut; longer than ``max_model_len``, the servers', is an error. ``limits`` are the
    ends of factor sets, and ``scale`` multiplies prompt lengths.
    """

    least: int
    longest: int | None
    max_model_len: int | None
    limits: tuple[int, ...]
    scale: float
    keys: int


def plan(workload: Workload, conversations: int, seed: int, bounds: Bounds) -> list[Planned]:
    """Draw the requests of a run: a number of conversations, of one request per turn.

    Raises UsageError if a prompt is too short for a pass key, or too long for the server.
    """
    if bounds.longest is not None and bounds.longest <= bounds.least:
        raise UsageError(
            f"--longest {bounds.longest}: a prompt with a pass key and its question needs {bounds.least} tokens with this "
            "text, and its answer one more"
        )
    if workload.arrival.trace:
        drawn = _traced(workload.arrival.trace, workload.mix[0], conversations, seed, bounds)
    else:
        drawn = _mixed(workload.mix, conversations, seed, bounds)
    found = [replace(each, index=index) for index, each in enumerate(drawn)]
    longest = max(found, key=lambda each: each.prompt_tokens + each.max_tokens)
    if bounds.max_model_len is not None and longest.prompt_tokens + longest.max_tokens > bounds.max_model_len:
        raise UsageError(
            f"workload {workload.name}: {longest.kind} has a prompt of {longest.prompt_tokens} tokens and an answer of "
            f"up to {longest.max_tokens}, but the server accepts {bounds.max_model_len} tokens in total: use --longest "
            f"{bounds.max_model_len} to cut such prompts, or --scale to shorten all"
        )
    return found


def _mixed(mix: Sequence[Part], conversations: int, seed: int, bounds: Bounds) -> Iterator[Planned]:
    parts = _parts(mix, conversations, seed)
    for conversation, part in enumerate(parts):
        random = np.random.default_rng([seed, conversation])
        yield from _conversation(part, conversation, random, bounds)


def _parts(mix: Sequence[Part], conversations: int, seed: int) -> list[Part]:
    """Assign a part to each conversation: parts with a count are evenly spread, the others drawn by share."""
    found: list[Part | None] = [None] * conversations
    for part in mix:
        if part.count is not None:
            free = [index for index, taken in enumerate(found) if taken is None]
            count = min(part.count, len(free))
            for each in range(count):
                found[free[int((each + 0.5) * len(free) / count)]] = part
    shared = [part for part in mix if part.count is None]
    if not shared:
        return [part for part in found if part is not None]
    shares = np.array([part.share for part in shared])
    chosen = np.random.default_rng([seed, 0, 0]).choice(len(shared), size=conversations, p=shares / shares.sum())
    return [part or shared[index] for part, index in zip(found, chosen, strict=True)]


def _conversation(part: Part, conversation: int, random: np.random.Generator, bounds: Bounds) -> Iterator[Planned]:
    assert part.prompt is not None and part.output is not None, "only a trace has a part without lengths"
    prompt = draw(part.prompt, random, bounds.scale, bounds.limits)
    if part.prompt.fixed is not None and prompt < bounds.least:
        raise UsageError(
            f"mix: {part.kind}: a prompt of {prompt} tokens cannot hold a pass key and its question, which need "
            f"{bounds.least} with this text: use a longer prompt, or a --text with a shorter opening"
        )
    key, prefix = int(random.integers(bounds.keys)), None
    prefix_tokens = 0
    if part.prefix:
        prefix = int(random.integers(part.prefix.groups))
        prefix_tokens = max(1, round(bounds.scale * part.prefix.tokens))
        if bounds.longest is not None:
            # Leave at least half of the room for the rest of the prompt and the answer.
            prefix_tokens = min(prefix_tokens, (bounds.longest - bounds.least) // 2)
    prompt = max(prompt, bounds.least + prefix_tokens)
    turns = part.turns.count if part.turns else 1
    for turn in range(turns):
        if part.turns and turn:
            prompt += draw(part.turns.grow, random, bounds.scale, bounds.limits)
        output = draw(part.output, random, 1.0, bounds.limits)
        if bounds.longest is not None:
            output = min(output, max(1, bounds.longest - bounds.least - prefix_tokens))
            if turn and prompt + output > bounds.longest:
                return
            prompt = max(bounds.least + prefix_tokens, min(prompt, bounds.longest - output))
        yield _planned(
            part, random, conversation=conversation, turn=turn, prompt_tokens=prompt, max_tokens=output, key=key,
            think=part.turns.think if part.turns and turn else 0.0, prefix=prefix, prefix_tokens=prefix_tokens, turns=turns,
        )  # fmt: skip


def _planned(part: Part, random: np.random.Generator, **fields: Any) -> Planned:
    cancelled = part.cancel is not None and random.random() < part.cancel.share
    return Planned(
        index=0, kind=part.kind, form=part.form, stream=part.stream,
        cancel_after=part.cancel.after if part.cancel and cancelled else None, **fields,
    )  # fmt: skip


def _traced(trace: Trace, part: Part, most: int, seed: int, bounds: Bounds) -> Iterator[Planned]:
    recorded = read_trace(Path(trace.file))[:most]
    start = recorded[0].timestamp
    for index, line in enumerate(recorded):
        random = np.random.default_rng([seed, index])
        output = max(1, line.output_length)
        prompt = max(bounds.least, round(bounds.scale * line.input_length))
        if bounds.longest is not None:
            output = min(output, max(1, bounds.longest - bounds.least))
            prompt = max(bounds.least, min(prompt, bounds.longest - output))
        yield _planned(
            part, random, conversation=index, prompt_tokens=prompt, max_tokens=output, blocks=line.hash_ids,
            key=int(random.integers(bounds.keys)), due=(line.timestamp - start) / 1000 / trace.speed,
        )  # fmt: skip


@dataclass(frozen=True)
class Recorded:
    """A line of a trace, with the Mooncake traces' names and units: milliseconds and tokens."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[Recorded]:
    """Read the lines of a trace, sorted by time; raises UsageError, which names the line, if it is malformed."""
    if not path.is_file():
        raise UsageError(f"arrival.trace.file: there is no file {str(path)!r}")
    found = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                least = (("timestamp", 0), ("input_length", 1), ("output_length", 1))
                at, asked, answered = (_at_least(content[name], bound) for name, bound in least)
                blocks = tuple(_at_least(each, 0) for each in content.get("hash_ids", ()))
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                needed = "a line must be a JSON object with timestamp, input_length and output_length"
                raise UsageError(f"{path}, line {number}: {problem}; {needed}") from error
            found.append(Recorded(at, asked, answered, blocks))
    if not found:
        raise UsageError(f"{path}: the trace is empty")
    return sorted(found, key=lambda line: line.timestamp)


def _at_least(value: object, least: int) -> int:
    if not is_number(value) or not least <= value <= MOST:
        raise ValueError(f"{value!r} must be a number, at least {least} and at most {MOST}")
    return int(value)


def due_times(arrival: Arrival, rate: float, count: int, seed: int) -> np.ndarray:
    """Return when ``count`` requests are due, in seconds since the run's start, in order.

    Poisson and gamma arrivals are scaled to take exactly ``count / rate`` seconds, as upstream does
    (``vllm.benchmarks.serve.get_request``), so that runs with different seeds have the same load.
    """
    random = np.random.default_rng([seed, count])
    match arrival.rated:
        case Bursts(size=size):
            return (np.arange(count) // size) * (size / rate)
        case Gamma(burstiness=burstiness):
            intervals = random.gamma(burstiness, 1.0, size=count)
        case Poisson():
            intervals = random.exponential(1.0, size=count)
        case None:
            raise ValueError("this arrival process has no rate")
    times: np.ndarray = np.cumsum(intervals)
    # As upstream: the intervals of a very bursty process can all underflow to 0.
    return times * (count / rate / times[-1]) if times[-1] else times
