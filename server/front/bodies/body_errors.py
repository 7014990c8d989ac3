"""Answers a body that fails its route's validation with 400, pydantic's message, and the wrong field in ``param``."""

import traceback
from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter

from ropeswitch.server.front.bodies.faults import field_path
from ropeswitch.server.front.refusal import Refusal, invalid_body

# What vLLM's validators raise for a value of another type, or without a part that they read.
_STUMBLES = (AttributeError, IndexError, KeyError, TypeError, RecursionError)
# Maximum characters of a message; a validator may put the value into it.
_CHARACTERS = 500
# Items of ``input`` validated together. For one wrong item of the Responses API, pydantic returns 230 errors of 1 MB in all,
# so a body of 20,000 would exhaust the memory.
_TOGETHER = 16


def refusal_of(error: Exception) -> Refusal | None:
    """Return the answer to an error that a request's values caused in their validation; None for other errors."""
    if isinstance(error, RequestValidationError):
        return invalid_body(*_described(error.errors(), error.body))
    if isinstance(error, _STUMBLES) and _in_validation(error):
        return invalid_body("The body is not valid for this route: a field is missing or has the wrong type.")
    return None


def wrong_item(field: Any, body: Any) -> Refusal | None:
    """Return the answer to the first wrong item of a long ``input``; None if each is valid.

    Args:
        field: The route's ``body_field``, a ``fastapi._compat.ModelField``.
        body: The body's JSON values.
    """
    items = body.get("input") if isinstance(body, dict) else None
    if not isinstance(items, list) or len(items) <= _TOGETHER or not isinstance(items[0], dict):
        return None
    for start in range(0, len(items), _TOGETHER):
        part = {**body, "input": items[start : start + _TOGETHER]}
        try:
            _, errors = field.validate(deepcopy(part), loc=("body",))
        except Exception:  # the validation of the whole body raises it again
            return None
        if errors:
            return invalid_body(*_described([_moved(each, start) for each in errors], body))
    return None


def _moved(error: Mapping[str, Any], start: int) -> Mapping[str, Any]:
    """Return an error with the index of its item in the whole ``input``, the first number in its location."""
    loc = list(error["loc"])
    index = next((at for at, each in enumerate(loc) if isinstance(each, int)), None)
    if loc[1:2] == ["input"] and index is not None:
        loc[index] += start
    return {**error, "loc": tuple(loc)}


def _described(errors: Sequence[Any], body: Any) -> tuple[str, str | None]:
    """Return pydantic's message about the first wrong field, and the field's path; None for the whole body.

    A field of several types has errors for each of them. The longest location is in the type that fits best.
    """
    if isinstance(errors[0], str):  # vLLM's check of Content-Type
        return errors[0], None
    alike = [each for each in errors if each["loc"][:2] == errors[0]["loc"][:2]]
    longest = max(len(each["loc"]) for each in alike)
    found = [(_path(each, body), each["msg"]) for each in alike if len(each["loc"]) == longest]
    path = found[0][0]
    message = "; ".join(dict.fromkeys(text for place, text in found if place == path))
    return f"{path or 'body'}: {message}"[:_CHARACTERS], path or None


def _path(error: Mapping[str, Any], value: Any) -> str:
    """Return the path of an error's field; its location also names the types that were tried."""
    source, *parts = error["loc"]
    if source != "body":
        return field_path(parts)
    path: list[str | int] = []
    for part in parts:
        if part in value if isinstance(value, Mapping) else isinstance(value, list) and part in range(len(value)):
            path, value = [*path, part], value[part]
    return field_path(path + parts[-1:] if error["type"] == "missing" else path)


def _in_validation(error: Exception) -> bool:
    frames = (frame for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(frame.f_code is TypeAdapter.validate_python.__code__ for frame in frames)
