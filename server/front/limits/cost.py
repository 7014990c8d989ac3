"""Computes what a request costs before it fans out, and refuses what exceeds a limit.

A body is checked before its validation, because vLLM converts grammars there, on the event loop. The parameters of each
prompt are checked when it is placed: by then vLLM has turned tools into grammars, and prompts have lengths.
"""

import asyncio
import math
import time
from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ropeswitch.server.front.bodies.contents import SAMPLING, Place, invalid_value
from ropeswitch.server.front.bodies.parse import PROMPTS, TokenIds
from ropeswitch.server.front.context import RequestContext, current
from ropeswitch.server.front.flags import CostLimits
from ropeswitch.server.front.limits.grammar import grammar_seconds
from ropeswitch.server.front.refusal import Refusal

# All prompts of a request may take this many times as long as one grammar: a grammar is converted for each prompt.
GRAMMARS = 10
# Output tokens that count for log-probabilities if a request names no limit of its own.
ASSUMED_TOKENS = 2048
# An answer ends when it has too many log-probabilities (app/paced_outputs.py). Few are as long as their limit, so a request
# may ask for this many times as many.
ASKED = 128
# Lists of words, which count in UTF-8 bytes, and of token IDs, which count one each.
_CONSTRAINTS = ("bad_words", "stop", "stop_sequences", "logit_bias", "allowed_token_ids", "stop_token_ids")
# Each of a request's stop words counts as so many bytes more: it is searched for in every new token of every sequence.
_SEARCHED, SEARCHED = ("stop", "stop_sequences"), 64
# Fields that are sent to the engine with each sequence, in bytes.
_SENT = ("cache_salt", "vllm_xargs", "kv_transfer_params", "chat_template_kwargs")
# Fields with a grammar, by which vLLM's validation may already convert it.
_GRAMMARS = ("structured_outputs", "response_format", "text", "output_config", "output_format")
# Maximum bytes of a grammar times the sequences of its request, each of which takes it to the engine: 32 KiB for 2,048.
GRAMMAR_BYTES = 64 << 20
# Maximum of `repetition_detection`: its pattern's size squared, times the count. The scheduler compares up to half as many
# tokens after every step, in Python; patterns of 100 tokens three times need 30,000.
REPETITION = 1 << 15
# Grammars, the last ones, whose compiled form vLLM is taken to have cached.
CACHED = 1024
# Maximum characters of a model's name, which vLLM repeats.
LONGEST_NAME = 512
# Seconds of a client's time for each byte of words to ban: twice what tokenizing it takes of the event loop.
WORD = 2e-6
# The validator of `n`: it also takes text, "1_000.0" too.
_NUMBER = TypeAdapter(int)


def excess(body: Any, limits: CostLimits) -> Refusal | None:
    """Return the refusal of a JSON body or form that starts too much, or names too much, or None.

    A body starts as many sequences as it has prompts, times ``n``, the answers or beams of each.
    """
    if not isinstance(body, Mapping):
        return None
    if isinstance(name := body.get("model"), str) and len(name) > LONGEST_NAME:
        return _too_much(("model",), f"{LONGEST_NAME} characters", len(name))
    if isinstance(tokens := body.get("tokens"), list) and len(tokens) > limits.longest:
        return _too_much(("tokens",), f"{limits.longest} token IDs, as the longest sequence", len(tokens))
    field, prompts = max(((name, _count(name, body.get(name))) for name in PROMPTS), key=lambda each: each[1])
    messages = body.get("messages")
    if isinstance(messages, list) and any(isinstance(each, list) for each in messages):
        # Several conversations (/v1/chat/completions/batch).
        field, prompts = "messages", len(messages)
    levels: list[tuple[Place, Any]] = [((), body), ((SAMPLING,), body.get(SAMPLING))]
    levels = [(place, values) for place, values in levels if isinstance(values, Mapping)]
    place, answers = max(((place, answers_of(values.get("n"))) for place, values in levels), key=lambda each: each[1])
    if prompts * answers > limits.sequences:
        found = f"{prompts * answers}, prompts in {field} ({prompts}) times n ({answers})"
        wrong = (*place, "n") if answers > 1 else (field,)
        return _too_much(wrong, f"{limits.sequences} sequences", found, "--max-sequences-per-request")
    size = 0
    for place, name, found in (
        (place, name, values.get(name)) for place, values in levels for name in (*_CONSTRAINTS, *_SENT)
    ):
        size += _size(found) + SEARCHED * (name in _SEARCHED and isinstance(found, list) and len(found))
        if size * prompts * answers > limits.constraints:
            most = f"{limits.constraints} bytes of words and token IDs in {', '.join((*_CONSTRAINTS, *_SENT))}"
            times = f"{size} times {prompts * answers} sequences"
            return _too_much((*place, name), most, times, "--max-constraints")
    for place, name, found in ((place, name, values.get(name)) for place, values in levels for name in _GRAMMARS):
        if (size := _size(found) * prompts * answers) > GRAMMAR_BYTES:
            return _too_much((*place, name), f"{GRAMMAR_BYTES} bytes times the request's sequences", size)
        seconds = grammar_seconds(found, limits.vocabulary) if isinstance(found, dict) else 0.0
        if (refusal := _grammar_excess((*place, name), seconds, prompts, limits)) is not None:
            return refusal
    return None


def prompt_excess(context: RequestContext, params: Any, tokens: int, limits: CostLimits) -> Refusal | None:
    """Return the refusal of a request at one of its prompts, for what its prompts cost so far, or None."""
    outputs = getattr(params, "structured_outputs", None)
    if outputs is not None:
        seconds = grammar_seconds(vars(outputs), limits.vocabulary)
        context.grammar_seconds += seconds
        prompts = 1 if seconds > limits.grammar_seconds else context.grammar_seconds / max(seconds, 1e-9)
        if (refusal := _grammar_excess(("tools",), seconds, prompts, limits)) is not None:
            return refusal
    if (repeated := getattr(params, "repetition_detection", None)) is not None:
        size, count = repeated.max_pattern_size, repeated.min_count
        if size * size * count > REPETITION:
            limit = f"{REPETITION} as max_pattern_size squared times min_count"
            return _too_much(("repetition_detection",), limit, f"{size} and {count}")
    # Each token has its own log-probability too.
    sampled, of_prompt = (
        0 if found is None else 1 + (limits.vocabulary if found == -1 else found)
        for found in (getattr(params, name, None) for name in ("num_logprobs", "prompt_logprobs"))
    )
    if sampled or of_prompt:
        output = (params.max_tokens or ASSUMED_TOKENS) if context.asked.limited else ASSUMED_TOKENS
        context.prompt_logprobs += of_prompt * tokens
        context.logprobs += sampled * output * params.n
        checks = (
            ("prompt_logprobs", context.prompt_logprobs, limits.logprobs),
            ("logprobs", context.logprobs, ASKED * limits.logprobs),
        )
        for field, found, most in checks:
            if found > most:
                limit = f"{most} log-probabilities (1 + alternatives, times sequences times tokens)"
                return _too_much((field,), limit, found, "--max-logprobs-per-request")
    return None


def _grammar_excess(place: Place, seconds: float, prompts: float, limits: CostLimits) -> Refusal | None:
    most = limits.grammar_seconds
    if seconds <= most and seconds * prompts <= most * GRAMMARS:
        return None
    found = f"{seconds:.1f}" if seconds > most else f"{seconds:.1f} for each of {prompts:.0f} prompts"
    return _too_much(place, f"{most:g} s to compile its grammar, by estimate", found, "--max-grammar-seconds")


def _too_much(place: Place, most: str, found: object, flag: str | None = None) -> Refusal:
    instead = "" if flag is None else f"; send less, or restart the server with a larger {flag}"
    return invalid_value(place, f"Input should have at most {most}, found {found}{instead}")


def _size(found: Any) -> int:
    if isinstance(found, str):
        return len(found.encode("utf-8", "surrogatepass"))
    if isinstance(found, dict):
        return sum(_size(name) + _size(value) for name, value in found.items())
    return sum(map(_size, found)) if isinstance(found, list) else 1 if found is not None else 0


def _count(name: str, value: Any) -> int:
    """Return the number of prompts in a field's value; at least 1. Objects are prompts, but parts of one in ``input``."""
    if name == "questions" and isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list) or isinstance(value, TokenIds):
        return 1
    return max(1, sum(isinstance(each, str | list) or (isinstance(each, dict) and name != "input") for each in value))


def answers_of(value: Any) -> int:
    """Return a value of ``n``; 1 for one that is no number, which is left for validation."""
    try:
        return max(1, _NUMBER.validate_python(value))
    except ValidationError:
        return 1


class GrammarTurns:
    """Spreads a client's new grammars over time: one begins when the one before it has had its estimated seconds.

    vLLM compiles grammars in the order in which they come, so a client's many would hold up everyone's. It tokenizes words
    to ban on the event loop, so those are spread too.
    """

    def __init__(self, vocabulary: int) -> None:
        self._vocabulary = vocabulary
        self._free: dict[bytes, float] = {}  # when a client's last grammar or words have had their time
        self._starts: dict[int, float] = {}  # of the last grammars, by their hash

    async def wait(self, grammar: Mapping[str, Any]) -> None:
        """Wait for the current client's turn to compile a ``vars(StructuredOutputsParams)``; a known one needs none."""
        now, known, context = time.monotonic(), hash(str(grammar)), current.get()
        # One that another client has put off takes this client's own turn.
        if context is not None and self._starts.get(known, math.inf) > max(now, self._free.get(context.client, now)):
            self._starts[known] = self._start(context.client, grammar_seconds(grammar, self._vocabulary), now)
            if len(self._starts) > CACHED:
                del self._starts[next(iter(self._starts))]
        await asyncio.sleep(self._starts.get(known, now) - now)

    async def wait_words(self, words: list[str]) -> None:
        """Wait for the current client's turn to have its ``bad_words`` tokenized."""
        now, context = time.monotonic(), current.get()
        if context is not None:
            await asyncio.sleep(self._start(context.client, WORD * _size(words), now) - now)

    def _start(self, client: bytes, seconds: float, now: float) -> float:
        self._free = {each: free for each, free in self._free.items() if free > now}
        start = self._free.get(client, now)
        self._free[client] = start + seconds
        return start
