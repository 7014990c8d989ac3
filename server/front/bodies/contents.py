"""Checks what a body may hold before its route validates it, and reads what it asks for.

JSON allows values that no engine can be sent. vLLM validates each part of a body on the event loop, before anything else is
answered. What a body costs is limited in ``limits/cost.py``.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from ropeswitch.model_patches.switch.config.settings import FORCED_SET, LADDER_POLICY
from ropeswitch.server.front.bodies.parse import PROMPTS, TokenIds
from ropeswitch.server.front.refusal import Refusal, invalid_body

# Maximum depth of nested objects and arrays. Requests reach workers through Python's pickle, which fails at about 490.
DEPTH = 128
# Maximum number of messages, further parts of messages, tools, documents, words and wrong token IDs, of which validating
# each takes 2 to 300 microseconds.
PARTS = 20_000
# An item of ``input`` counts as so many: the Responses API has many types of them, and validation tries each.
ITEM = 8
LARGE_NUMBER = f"Input should be a whole number from {-(2**63)} to {2**63 - 1}"
TOO_MANY = (
    f"Input should have at most {PARTS} messages, parts of messages, tools, documents, stop words and wrong token IDs in "
    f"all; an item of input counts as {ITEM}"
)
TOO_DEEP = f"Input should have at most {DEPTH} levels of nested objects and arrays"

# Maximum characters of a name in a path.
_NAME = 80
# Fields with chat messages.
CHATS = ("messages", "input")
_NUMBERS = ("tokens", "token_ids", "token_offsets")  # ends of the names of vLLM's lists of numbers
_VALIDATED = ("messages", "tools", "query", "bad_words", "stop", "stop_sequences", *PROMPTS)
# /inference/v1/generate nests the sampling parameters.
SAMPLING = "sampling_params"
_OUTPUT_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")

# The names and indices that lead to a value; for a wrong name, to its object.
Place = tuple[str | int, ...]


def field_path(place: Iterable[str | int]) -> str:
    """Return the path of a value, such as ``messages[0].role``."""
    steps = (f"[{each}]" if isinstance(each, int) else f".{each[:_NAME]}" for each in place)
    return "".join(steps).removeprefix(".")


def invalid_value(place: Place, message: str) -> Refusal:
    """Return the refusal of a body for the value at a place."""
    path = field_path(place)
    return invalid_body(f"{path or 'body'}: {message}", path or None)


def refusal_of_values(body: Any) -> Refusal | None:
    """Return the refusal of a value that no route accepts, or None.

    It is too large a number, too many levels or parts, or an unknown ``rope`` key of ``vllm_xargs``.
    """
    parts = 0
    left: list[tuple[Any, Place]] = [(body, ())]
    while left:
        values, place = left.pop()
        if isinstance(values, TokenIds):
            continue  # already range-checked
        if len(place) > DEPTH:
            return invalid_value(place[:1], TOO_DEEP)
        if isinstance(values, dict):
            for name, value in values.items():
                if _is_too_large(value):
                    return invalid_value((*place, name), LARGE_NUMBER)
                if isinstance(value, dict | list):
                    left.append((value, (*place, name)))
        elif isinstance(values, list):
            parts += _parts(values, place)
            if parts > PARTS:
                return invalid_value(place, TOO_MANY)
            for index, value in enumerate(values):
                if _is_too_large(value):
                    return invalid_value((*place, index), LARGE_NUMBER)
                if isinstance(value, dict | list):
                    left.append((value, (*place, index)))
    for key in extra_arguments(body):
        if key[:4].lower() == "rope" and key not in (FORCED_SET, LADDER_POLICY):
            return invalid_value(("vllm_xargs", key), f"unknown key; ropeswitch reads {FORCED_SET} and {LADDER_POLICY}")
    return None


def _parts(values: list[Any], place: Place) -> int:
    """Return how many of :data:`PARTS` a list has; free-form fields have none.

    A wrong item counts like a right one: pydantic returns an error for each of them.
    """
    if "input" in place[1:]:
        return 0
    if next((each for each in reversed(place) if isinstance(each, str)), "").endswith(_NUMBERS):
        return sum(not isinstance(each, int | list) for each in values)
    if not place or place[0] not in _VALIDATED:
        return 0
    if len(place) > 2 and place[0] in CHATS:
        # Clients may send one part per message.
        return max(len(values) - 1, 0)
    if place[1:] and not isinstance(place[-1], int):
        return sum(isinstance(each, dict) for each in values)
    # Each prompt is a sequence too, which `limits/cost.py` counts.
    prompts = (str, TokenIds) if place[0] in PROMPTS and not place[1:] else ()
    found = sum(not isinstance(each, prompts) for each in values)
    return found * ITEM if place == ("input",) else found


def _is_too_large(value: Any) -> bool:
    return type(value) is int and not -(2**63) <= value < 2**63


def extra_arguments(body: Any) -> Mapping[str, Any]:
    """Return a body's ``vllm_xargs``; empty if it has none or a wrong one, which is left for validation."""
    values = body.get("vllm_xargs") if isinstance(body, dict) else None
    return values if isinstance(values, dict) else {}


def names_output_limit(body: Mapping[str, Any]) -> bool:
    """Whether a JSON body limits its output tokens."""
    inner = body.get(SAMPLING)
    nested = inner.get("max_tokens") if isinstance(inner, dict) else None
    return nested is not None or any(body.get(name) is not None for name in _OUTPUT_LIMITS)
