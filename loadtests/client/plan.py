"""Which requests a run sends: their lengths, keys and kinds, drawn ahead of time. The same seed draws the same ones."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from ropeswitch.factors.errors import UsageError
from ropeswitch.factors.numbers import is_number
from ropeswitch.loadtests.client.lengths import Fixed, draw
from ropeswitch.loadtests.client.workload import Part, Trace, Workload

# Of the numbers in a trace; hash_ids may have 64 bits.
MOST = (1 << 64) - 1
TRACE_BLOCK = 512
"""Tokens that one of a trace's hash_ids stands for (the Mooncake traces)."""


@dataclass(frozen=True)
class Planned:
    """One request to send.

    Attributes:
        index: Its place in the plan, from 0.
        conversation: Requests of one conversation share this number, and are sent one after the other.
        turn: Its place in the conversation, from 0.
        kind: The part of the mix that it is of.
        prompt_tokens: Exactly.
        max_tokens: Of the answer.
        key: Which of the pass keys is in it, by number.
        form: ``text`` or ``ids``.
        stream: Whether the answer is streamed.
        cancel_after: Chunks of the answer after which the client gives it up; None if it does not.
        think: Seconds to wait after the answer before, in a conversation or a closed loop.
        prefix: Which shared text it begins with, by number; None for none.
        prefix_tokens: Of that text.
        blocks: A trace's hash_ids.
        turns: Turns of its conversation.
        due: Seconds since the run's start, where a trace says so.
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
    """What lengths must keep to.

    Attributes:
        least: Tokens of the shortest prompt that can hold a key.
        longest: Tokens of a prompt and its answer; longer ones are cut to it. None for no cut.
        max_model_len: What the servers take; None where they do not tell. A longer prompt is an error.
        limits: Lengths at which factor sets switch.
        scale: What the workload's prompt lengths are multiplied by.
        keys: How many pass keys there are.
    """

    least: int
    longest: int | None
    max_model_len: int | None
    limits: tuple[int, ...]
    scale: float
    keys: int


def plan(workload: Workload, conversations: int, seed: int, bounds: Bounds) -> list[Planned]:
    """Draw requests.

    Args:
        workload: What to draw.
        conversations: How many; those with several turns make several requests. A trace has at most as many as its file.
        seed: Of the random numbers.
        bounds: See :class:`Bounds`.

    Raises:
        UsageError: where a prompt is too short to hold a key, or too long for the server.
    """
    if bounds.longest is not None and bounds.longest <= bounds.least:
        raise UsageError(
            f"--longest {bounds.longest}: a prompt with a pass key and its question needs {bounds.least} tokens with this "
            "text, and its answer one"
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
            f"up to {longest.max_tokens}, but the server takes {bounds.max_model_len} tokens in all: give --longest "
            f"{bounds.max_model_len} to cut such prompts, or --scale to make all shorter"
        )
    return found


def _mixed(mix: Sequence[Part], conversations: int, seed: int, bounds: Bounds) -> Iterator[Planned]:
    parts = _parts(mix, conversations, seed)
    for conversation, part in enumerate(parts):
        random = np.random.default_rng([seed, conversation])
        yield from _conversation(part, conversation, random, bounds)


def _parts(mix: Sequence[Part], conversations: int, seed: int) -> list[Part]:
    """The part that each conversation is of: those with a count evenly spread, the others drawn."""
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
    assert part.prompt is not None and part.output is not None, "the workload's check lets only traces go without"
    prompt = draw(part.prompt, random, bounds.scale, bounds.limits)
    if isinstance(part.prompt, Fixed) and prompt < bounds.least:
        raise UsageError(
            f"mix: {part.kind}: a prompt of {prompt} tokens cannot hold a pass key and its question, which need "
            f"{bounds.least} with this text: give a longer one, or a --text with a shorter opening"
        )
    key, prefix = int(random.integers(bounds.keys)), None
    prefix_tokens = 0
    if part.prefix:
        prefix = int(random.integers(part.prefix.groups))
        prefix_tokens = max(1, round(bounds.scale * part.prefix.tokens))
        if bounds.longest is not None:
            # At least half of the room is the prompt's own, and the answer's.
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
        cancelled = part.cancel is not None and random.random() < part.cancel.share
        yield Planned(
            index=0,
            conversation=conversation,
            turn=turn,
            kind=part.kind,
            prompt_tokens=prompt,
            max_tokens=output,
            key=key,
            form=part.form,
            stream=part.stream,
            cancel_after=part.cancel.after if part.cancel and cancelled else None,
            think=part.turns.think if part.turns and turn else 0.0,
            prefix=prefix,
            prefix_tokens=prefix_tokens,
            turns=turns,
        )


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
        cancelled = part.cancel is not None and random.random() < part.cancel.share
        yield Planned(
            index=0,
            conversation=index,
            kind=part.kind,
            prompt_tokens=prompt,
            max_tokens=output,
            key=int(random.integers(bounds.keys)),
            form=part.form,
            stream=part.stream,
            cancel_after=part.cancel.after if part.cancel and cancelled else None,
            blocks=line.hash_ids,
            due=(line.timestamp - start) / 1000 / trace.speed,
        )


@dataclass(frozen=True)
class Recorded:
    """A line of a trace, with the names and units of the Mooncake traces: milliseconds and tokens."""

    timestamp: int
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...]


def read_trace(path: Path) -> list[Recorded]:
    """The lines of a trace, in order of time.

    Raises:
        UsageError: where the file is none, naming the line.
    """
    if not path.is_file():
        raise UsageError(f"arrival.trace.file: there is no file {str(path)!r}")
    found = []
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                content = json.loads(line)
                recorded = Recorded(
                    _at_least(content["timestamp"], 0),
                    _at_least(content["input_length"], 1),
                    _at_least(content["output_length"], 1),
                    tuple(_at_least(each, 0) for each in content.get("hash_ids", ())),
                )
            except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
                problem = f"{error} is missing" if isinstance(error, KeyError) else str(error)
                names = "timestamp, input_length and output_length"
                raise UsageError(f"{path}, line {number}: {problem}; a line is an object with {names}") from error
            found.append(recorded)
    if not found:
        raise UsageError(f"{path}: the trace is empty")
    return sorted(found, key=lambda line: line.timestamp)


def _at_least(value: object, least: int) -> int:
    if not is_number(value) or not least <= value <= MOST:
        raise ValueError(f"{value!r} must be a number, at least {least} and at most {MOST}")
    return int(value)
