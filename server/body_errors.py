"""Bodies with values of the wrong types, over which some of vLLM's validators stumble, and with text that is none.

Half of a surrogate pair, ``"\\ud800"``, is JSON but no character: it can neither be tokenized nor sent to an engine. Nor
can a whole number of more than 64 bits.

The validators look into a body before its types are checked, and raise what Python raises where a value is of another type
or lacks a part. The fields are checked one by one then: where some are wrong, that is the answer; where all are right, the
fault is the server's.
"""

import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from ropeswitch.server.front.request import current_request

_STUMBLES = (AttributeError, IndexError, KeyError, TypeError, RecursionError)
# SageMaker's route takes what these do.
_HALF = re.compile("[\ud800-\udfff]")
_CHOOSES = "/invocations"
_CHOICES = ("/v1/chat/completions", "/v1/completions")
LARGE_NUMBER = f"Input should be a whole number from {-(2**63)} to {2**63 - 1}"
ODD_TEXT = "Input should be valid Unicode text; it has half of a surrogate pair"
Errors = list[dict[str, Any]]
Handler = Callable[..., Awaitable[Any]]
Validate = Callable[..., tuple[Any, Errors]]


def name_wrong_fields(app: FastAPI) -> None:
    """Have every route of an app answer a wrong body with 400 and the names of the fields."""
    models: dict[str, type[BaseModel]] = {}
    routes = [each for each in app.routes if isinstance(each, APIRoute)]
    for route in routes:
        for body in route.dependant.body_params:
            model = body.field_info.annotation
            if isinstance(model, type) and issubclass(model, BaseModel):
                body.validate = _naming(body.validate, model)  # type: ignore[method-assign]
                models[route.path] = model
    for route in routes:
        if route.path == _CHOOSES and route.dependant.call is not None:
            route.dependant.call = _choosing(route.dependant.call, [models[path] for path in _CHOICES])


def _naming(upstream: Validate, model: type[BaseModel]) -> Validate:
    def validate(value: Any, *args: Any, loc: tuple[int | str, ...] = (), **kwargs: Any) -> tuple[Any, Errors]:
        try:
            if not (errors := not_for_engines(value)):
                return upstream(value, *args, loc=loc, **kwargs)
        except _STUMBLES:
            errors = wrong_fields(model, value)
            if not errors:
                raise
        return None, [each | {"loc": (*loc, *each["loc"])} for each in errors]

    return validate


def _choosing(upstream: Handler, models: Sequence[type[BaseModel]]) -> Handler:
    """A handler that takes a body for whichever of the models it fits, and validates it by itself."""

    @wraps(upstream)
    async def handle(*args: Any, raw_request: Request, **kwargs: Any) -> Any:
        try:
            value = await raw_request.json()
        except ValueError:  # which it answers
            return await upstream(*args, raw_request=raw_request, **kwargs)
        errors = not_for_engines(value)
        try:
            if not errors:
                return await upstream(*args, raw_request=raw_request, **kwargs)
        except _STUMBLES:
            errors = next(filter(None, (wrong_fields(model, value) for model in models)), [])
            if not errors:
                raise
        raise RequestValidationError([each | {"loc": ("body", *each["loc"])} for each in errors])

    return handle


def not_for_engines(values: Any) -> Errors:
    """What of a body's values could be written to no engine."""
    request = current_request.get()
    if request is not None and request.odd_text and (odd := _odd_text(values)) is not None:
        return [{"type": "string_unicode", "loc": odd, "msg": ODD_TEXT}]
    if not isinstance(values, dict):
        return []
    return [
        {"type": "int_parsing_size", "loc": (name,), "msg": LARGE_NUMBER}
        for name, value in values.items()
        if type(value) is int and not -(2**63) <= value < 2**63
    ]


def wrong_fields(model: type[BaseModel], values: Any) -> Errors:
    """What is wrong with each field by itself, as ``pydantic.ValidationError.errors`` tells it; empty where nothing is.

    Args:
        model: Its own validators are left out, those of its fields' types are not.
        values: A body's JSON values.
    """
    if not isinstance(values, dict):
        return _errors(TypeAdapter(dict), values, ())
    found: Errors = []
    for name, adapter in _fields(model).items():
        if name in values:
            found += _errors(adapter, values[name], (name,))
    return found


def _errors(adapter: TypeAdapter[Any], value: Any, loc: tuple[str, ...]) -> Errors:
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return [dict(each) | {"loc": (*loc, *each["loc"])} for each in error.errors(include_url=False)]
    return []


def _odd_text(body: Any) -> tuple[int | str, ...] | None:
    """Where some text is that cannot be written in UTF-8, or None; of a key, where its object is."""
    left: list[tuple[Any, tuple[int | str, ...]]] = [(body, ())]
    while left:
        value, loc = left.pop()
        if isinstance(value, str) and _HALF.search(value):
            return loc
        if isinstance(value, dict):
            left += [(key, loc) for key in value]
            left += [(each, (*loc, key)) for key, each in value.items()]
        elif isinstance(value, list):
            left += [(each, (*loc, at)) for at, each in enumerate(value) if not isinstance(each, int | float)]
    return None


@cache
def _fields(model: type[BaseModel]) -> Mapping[str, TypeAdapter[Any]]:
    return {field.alias or name: TypeAdapter(field.rebuild_annotation()) for name, field in model.model_fields.items()}
