"""Limits what one body starts: its sequences, and the text of the words that end or may not enter its answers.

vLLM makes every sequence, and tokenizes every banned word, on the event loop before anything else is answered.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ropeswitch.server.front.bodies.faults import Fault
from ropeswitch.server.front.bodies.token_ids import TokenIds

# Bytes in UTF-8.
WORD_BYTES = 64 << 10
# Fields with several prompts; a list of numbers is one prompt, and objects are parts of one conversation.
_PROMPTS = ("prompt", "input", "queries", "documents", "items", "data_1", "data_2", "text_1", "text_2")
# /inference/v1/generate nests the sampling parameters.
_SAMPLING = "sampling_params"
_WORDS = ("bad_words", "stop", "stop_sequences")
# The validator of `n`: it also takes text, "1_000.0" too.
_NUMBER = TypeAdapter(int)


def find_excess(body: Any, most_sequences: int) -> Fault | None:
    """Return the field by which a body exceeds a limit, or None.

    Args:
        body: The values of a JSON body or a form, before validation.
        most_sequences: Maximum sequences of a body: prompts times ``n``, the answers or beams of each.
    """
    if not isinstance(body, Mapping):
        return None
    field, prompts = max(((name, _count(body.get(name))) for name in _PROMPTS), key=lambda each: each[1])
    if (chats := body.get("messages")) and _are_chats(chats):
        field, prompts = "messages", len(chats)
    place, answers = _answers(body)
    if prompts * answers > most_sequences:
        place = place if answers > 1 else (field,)
        return Fault(place, _too_many(field, prompts, answers, most_sequences))
    size = 0
    for where, words in _words(body):
        size += sum(len(word.encode("utf-8", "surrogatepass")) for word in words)
        if size > WORD_BYTES:
            text = f"Input should have at most {WORD_BYTES} bytes in all of {', '.join(_WORDS)}; found more"
            return Fault(where, text)
    return None


def _too_many(field: str, prompts: int, answers: int, most: int) -> str:
    found = f"{prompts} prompts in {field} times n of {answers}" if prompts > 1 else f"n of {answers}"
    return (
        f"Input should start at most {most} sequences, found {prompts * answers} ({found}); send several requests, or "
        "restart the server with a larger --max-sequences-per-request"
    )


def _count(value: Any) -> int:
    """Return the number of prompts in a field's value; at least 1."""
    if not isinstance(value, list) or isinstance(value, TokenIds):
        return 1
    return max(1, sum(isinstance(each, str | list) for each in value))


def _are_chats(messages: Any) -> bool:
    """Whether ``messages`` has several conversations (``/v1/chat/completions/batch``)."""
    return isinstance(messages, list) and any(isinstance(each, list) for each in messages)


def _answers(body: Mapping[str, Any]) -> tuple[tuple[str, ...], int]:
    """Return the place and value of the largest ``n``; a value that is no number is left for validation."""
    inner = body.get(_SAMPLING)
    places: list[tuple[tuple[str, ...], Any]] = [(("n",), body.get("n"))]
    places += [((_SAMPLING, "n"), inner.get("n"))] if isinstance(inner, Mapping) else []
    return max(((place, _whole(value)) for place, value in places), key=lambda each: each[1])


def _whole(value: Any) -> int:
    try:
        return max(1, _NUMBER.validate_python(value))
    except ValidationError:
        return 1


def _words(body: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    places: list[tuple[tuple[str, ...], Any]] = [((), body), ((_SAMPLING,), body.get(_SAMPLING))]
    for outer, values in places:
        for name in _WORDS if isinstance(values, Mapping) else ():
            found = values.get(name)
            each = found if isinstance(found, list) else [found]
            yield (*outer, name), [word for word in each if isinstance(word, str)]
