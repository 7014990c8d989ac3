"""Answers 400 to bodies with wrong types on which vLLM's validators crash, and to values that no engine accepts.

Values that no engine accepts were found when the body was parsed (``ingest/faults.py``).

Some of vLLM's validators read a body before its types are checked, and raise Python's own errors where a value has another
type or lacks a part. Then each field is checked by itself: wrong fields are the answer; if all are right, the fault is the
server's.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache, wraps
from typing import Any

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter, ValidationError

from ropeswitch.server.context import current

_STUMBLES = (AttributeError, IndexError, KeyError, TypeError, RecursionError)
# SageMaker's route accepts the bodies of these routes, where the model has them.
_CHOOSES = "/invocations"
_CHOICES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/classify", "/score", "/rerank", "/pooling")
# Items of a list to validate at a time.
MANY = 1000
Errors = list[dict[str, Any]]
Handler = Callable[..., Awaitable[Any]]
Validate = Callable[..., tuple[Any, Errors]]


def name_wrong_fields(app: FastAPI) -> None:
    """Make every route of an app answer a wrong body with 400 and the names of the wrong fields."""
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
            route.dependant.call = _choosing(
                route.dependant.call, [models[path] for path in _CHOICES if path in models]
            )


def _naming(upstream: Validate, model: type[BaseModel]) -> Validate:
    def validate(value: Any, *args: Any, loc: tuple[int | str, ...] = (), **kwargs: Any) -> tuple[Any, Errors]:
        try:
            if not (errors := not_for_engines() or wrong_items(model, value)):
                return upstream(value, *args, loc=loc, **kwargs)
        except _STUMBLES:
            errors = wrong_fields(model, value)
            if not errors:
                raise
        return None, [each | {"loc": (*loc, *each["loc"])} for each in errors]

    return validate


def _choosing(upstream: Handler, models: Sequence[type[BaseModel]]) -> Handler:
    """Wrap a handler that validates its body by itself, against whichever of ``models`` fits."""

    @wraps(upstream)
    async def handle(*args: Any, raw_request: Request, **kwargs: Any) -> Any:
        try:
            value = await raw_request.json()
        except ValueError:  # which it answers
            return await upstream(*args, raw_request=raw_request, **kwargs)
        except RecursionError as error:
            # As FastAPI answers on its own routes.
            raise HTTPException(400, "There was an error parsing the body") from error
        errors = not_for_engines()
        try:
            if not errors:
                return await upstream(*args, raw_request=raw_request, **kwargs)
        except _STUMBLES:
            errors = next(filter(None, (wrong_fields(model, value) for model in models)), [])
            if not errors:
                raise
        raise RequestValidationError([each | {"loc": ("body", *each["loc"])} for each in errors])

    return handle


def not_for_engines() -> Errors:
    """Errors for values in the current request's body that no engine accepts; empty where there are none."""
    context = current.get()
    if context is None or (fault := context.fault) is None:
        return []
    return [{"type": fault.kind, "loc": fault.place, "msg": fault.message}]


def wrong_items(model: type[BaseModel], values: Any) -> Errors:
    """Errors of the first wrong item of a very long list; empty where there is none.

    pydantic reports every item, once for each type that it may have: a minute of work for a million items.
    """
    for name, value in values.items() if isinstance(values, dict) else ():
        if isinstance(value, list) and len(value) > MANY and (adapter := _fields(model).get(name)) is not None:
            for start in range(0, len(value), MANY):
                # Where several types are allowed, the first item decides which one the others must have.
                if errors := _errors(adapter, value[:1] + value[start : start + MANY], ()):
                    loc = errors[0]["loc"]
                    at = next((each for each, part in enumerate(loc) if isinstance(part, int)), len(loc))
                    moved = tuple(max(part - 1 + start, 0) for part in loc[at : at + 1])
                    return [errors[0] | {"loc": (name, *loc[:at], *moved, *loc[at + 1 :])}]
    return []


def wrong_fields(model: type[BaseModel], values: Any) -> Errors:
    """Errors of each field by itself, in the form of ``pydantic.ValidationError.errors``; empty where there are none.

    Args:
        model: The body's model; its own validators are left out, those of its fields' types are not.
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


@cache
def _fields(model: type[BaseModel]) -> Mapping[str, TypeAdapter[Any]]:
    return {field.alias or name: TypeAdapter(field.rebuild_annotation()) for name, field in model.model_fields.items()}
