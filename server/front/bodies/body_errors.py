"""Answers a body that fails its route's validation with 400, pydantic's message, and the wrong field in ``param``."""

import traceback
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter

from ropeswitch.server.front.bodies.contents import field_path
from ropeswitch.server.front.refusal import Refusal, invalid_body

# Items of ``input`` validated together. For one wrong item of the Responses API, pydantic returns 230 errors of 1 MB in all,
# so a body of 20,000 would exhaust the memory.
TOGETHER = 16
# What vLLM's validators raise for a value of another type, or without a part that they read.
_STUMBLES = (AttributeError, IndexError, KeyError, TypeError)
# Maximum characters of a message; a validator may put the value into it.
_CHARACTERS = 500


def refusal_of(error: Exception) -> Refusal | None:
    """Return the answer to an error that a request's values caused; None for other errors."""
    if isinstance(error, RequestValidationError):
        return invalid_body(*_described(error.errors(), error.body))
    if isinstance(error, RecursionError):  # vLLM parses the arguments of tool calls
        return invalid_body("The request has JSON that is nested too deeply.")
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    in_validation = any(frame.f_code is TypeAdapter.validate_python.__code__ for frame in frames)
    if isinstance(error, _STUMBLES) and in_validation:
        return invalid_body("The body is not valid for this route: a field is missing or has the wrong type.")
    return None


def wrong_item(route: Any, body: dict[str, Any]) -> Refusal | None:
    """Return the answer to the first wrong item of a body's ``input``, a list that a ``fastapi.routing.APIRoute`` gets."""
    if (field := getattr(route, "body_field", None)) is None:
        return None
    items = body["input"]
    for start in range(0, len(items), TOGETHER):
        part = {**body, "input": items[start : start + TOGETHER]}
        try:
            _, errors = field.validate(deepcopy(part), loc=("body",))
        except Exception:  # the validation of the whole body raises it again
            return None
        if errors:
            return invalid_body(*_described(errors, part, start))
    return None


def _described(errors: Sequence[Any], body: Any, first: int = 0) -> tuple[str, str | None]:
    """Return pydantic's message about the first wrong field, and the field's path; None for the whole body.

    ``first`` is the index of the first item of ``input``.

    A field of several types has errors for each of them. The longest location is in the type that fits best.
    """
    if isinstance(errors[0], str):  # vLLM's check of Content-Type
        return errors[0], None
    alike = [each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]]
    longest = max(len(each["loc"]) for each in alike)
    found = [(_path(each, body, first), each["msg"]) for each in alike if len(each["loc"]) == longest]
    path = found[0][0]
    message = "; ".join(dict.fromkeys(text for place, text in found if place == path))
    return f"{path or 'body'}: {message}"[:_CHARACTERS], path or None


def _path(error: Mapping[str, Any], value: Any, first: int) -> str:
    """Return the path of an error's field; its location also names the types that were tried."""
    source, *parts = error["loc"]
    if source != "body":
        return field_path(parts)
    path: list[str | int] = []
    for part in parts:
        if part in value if isinstance(value, Mapping) else isinstance(value, list) and part in range(len(value)):
            path, value = [*path, part + first if path == ["input"] else part], value[part]
    return field_path(path + parts[-1:] if error["type"] == "missing" else path)
