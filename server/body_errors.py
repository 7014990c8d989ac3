"""Answers invalid bodies with 400 and a message in sentences (``error_sentences.py``).

This includes wrong types on which vLLM's validators crash; values that no engine accepts, which were found when the body was
parsed (``ingest/faults.py``); and misspelled keys and roles, which vLLM accepts.

Some of vLLM's validators read a body before its types are checked, and raise Python's own errors if a value has another type
or lacks a part. Then each field is checked separately: the response names the wrong fields; if there are none, the fault is
the server's.
"""

import difflib
from collections.abc import Awaitable, Callable, Sequence
from functools import partial, wraps
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, TypeAdapter

from ropeswitch.model_patches.switch.config.settings import FORCED_SET, LADDER_POLICY
from ropeswitch.server.context import current
from ropeswitch.server.error_sentences import describe
from ropeswitch.server.field_errors import STUMBLES, Errors, errors_of, wrong_fields, wrong_items

# SageMaker's route accepts the bodies of these routes, as far as the model has them.
_CHOOSES = "/invocations"
_ABORTS = "/inference/v1/abort_requests"
_CHOICES = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/classify", "/score", "/rerank", "/pooling")
# Keys of ``vllm_xargs``: ours, those that vLLM itself reads, and the prefix of ours.
_OURS = (FORCED_SET, LADDER_POLICY)
_VLLMS = frozenset({"session_id", "kv_cache_report_mode"})
_PREFIX = "rope"
_ROLES = ("system", "developer", "user", "assistant", "tool", "function")
# Minimum ``difflib`` similarity of a misspelling to our key; maximum keys to compare, and maximum characters of one: more of
# either would block the event loop.
_SIMILAR, _MEASURED, _LONGEST = 0.75, 100, 40
Handler = Callable[..., Awaitable[Any]]
Validate = Callable[..., tuple[Any, Errors]]
Check = Callable[[object], Errors]


class _Aborted(BaseModel):
    request_ids: str | list[str]


def _wrong_ids(value: object) -> Errors:
    return errors_of(TypeAdapter(_Aborted), value, ())


def name_wrong_fields(app: FastAPI, *, others_read_xargs: bool = False, template: str | None = None) -> None:
    """Make every route of an app answer an invalid body with 400 and the names of the wrong fields.

    Args:
        app: The app, before its first request.
        others_read_xargs: See :func:`misspelled`.
        template: The model's chat template, or None.
    """
    check = partial(misspelled, others=others_read_xargs, template=template or "")
    app.add_exception_handler(RequestValidationError, _answer)
    models: dict[str, list[type[BaseModel]]] = {}
    routes = [each for each in app.routes if isinstance(each, APIRoute)]
    for route in routes:
        for body in route.dependant.body_params:
            if found := _models(body.field_info.annotation):
                body.validate = _naming(body.validate, found, check)  # type: ignore[method-assign]
                models[route.path] = found
    for route in routes:
        if route.path == _CHOOSES and route.dependant.call is not None:
            choices = [model for path in _CHOICES for model in models.get(path, ())]
            route.dependant.call = _choosing(route.dependant.call, choices, check)
        elif route.path == _ABORTS and route.dependant.call is not None:
            route.dependant.call = _choosing(route.dependant.call, [_Aborted], _wrong_ids)


async def _answer(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    errors = error.errors()
    if isinstance(errors[0], str):  # from a route of vLLM's that takes only JSON
        given = request.headers.get("content-type")
        message = f"Content-Type: {given or 'missing'}; this route accepts only application/json."
        return _wrong_body(message, None)
    return _wrong_body(*describe(errors, error.body))


def _wrong_body(message: str, field: str | None) -> JSONResponse:
    error = {"message": message, "type": "invalid_request_error", "param": field, "code": None}
    return JSONResponse({"error": error}, 400)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the models that a body may have: one, or those of a union, as upstream's routes for pooling have."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    unions = (Union, UnionType, Annotated)
    return (
        [model for part in get_args(annotation) for model in _models(part)] if get_origin(annotation) in unions else []
    )


def _naming(upstream: Validate, models: Sequence[type[BaseModel]], check: Check) -> Validate:
    def validate(value: Any, *args: Any, loc: tuple[int | str, ...] = (), **kwargs: Any) -> tuple[Any, Errors]:
        try:
            if not (errors := not_for_engines() or wrong_items(models, value)):
                values, wrong = upstream(value, *args, loc=loc, **kwargs)
                if wrong or not (errors := check(value)):
                    return values, wrong
        except STUMBLES:
            errors = _wrong_fields_of_one(models, value)
            if not errors:
                raise
        return None, [each | {"loc": (*loc, *each["loc"])} for each in errors]

    return validate


def _choosing(upstream: Handler, models: Sequence[type[BaseModel]], check: Check) -> Handler:
    """Wrap a handler that reads its body itself, and validates it against the one of ``models`` that fits, or not at all."""

    @wraps(upstream)
    async def handle(*args: Any, raw_request: Request, **kwargs: Any) -> Any:
        try:
            value = await raw_request.json()
        except ValueError:  # upstream answers it
            return await upstream(*args, raw_request=raw_request, **kwargs)
        except RecursionError as error:
            # As FastAPI answers on its own routes.
            raise HTTPException(400, "There was an error parsing the body") from error
        try:
            if not (errors := not_for_engines() or wrong_items(models, value) or check(value)):
                return await upstream(*args, raw_request=raw_request, **kwargs)
        except STUMBLES:
            errors = _wrong_fields_of_one(models, value)
            if not errors:
                raise
        raise RequestValidationError([each | {"loc": ("body", *each["loc"])} for each in errors], body=value)

    return handle


def not_for_engines() -> Errors:
    """Return the error for a value in the current request's body that no engine accepts; empty if there is none."""
    context = current.get()
    if context is None or (fault := context.fault) is None:
        return []
    return [{"type": fault.kind, "loc": fault.place, "msg": fault.message}]


def misspelled(body: object, *, others: bool, template: str = "") -> Errors:
    """Return the first unknown key or role of a body as ``pydantic.ValidationError.errors`` does; empty if there is none.

    Args:
        body: A request's JSON values; the route's own validation checks their types.
        others: Whether other code may read its own keys in ``vllm_xargs``; if so, only keys like ours are refused.
        template: The model's chat template; a role that it has in quotes is accepted.
    """
    if not isinstance(body, dict):
        return []
    values, messages = body.get("vllm_xargs"), body.get("messages")
    for index, key in enumerate(values if isinstance(values, dict) else ()):
        if key in _OURS or key in _VLLMS:
            continue
        if not others or key[: len(_PREFIX)].lower() == _PREFIX or (index < _MEASURED and _is_like_ours(key)):
            text = f"unknown key; ropeswitch reads {' and '.join(_OURS)}. Correct its name, or leave it out"
            return [{"type": "unknown_key", "loc": ("vllm_xargs", key), "msg": text}]
    unknown: set[str] = set()
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        role = message.get("role") if isinstance(message, dict) else None
        if not isinstance(role, str) or role in _ROLES or role in unknown or len(unknown) > len(_ROLES):
            continue
        unknown.add(role)
        meant = next((each for each in _ROLES if _is_misspelled(role.lower(), each)), None)
        if meant is not None and not any(f"{quote}{role}{quote}" in template for quote in "'\""):
            text = f"unknown role; did you mean {meant!r}? Roles are {', '.join(_ROLES)}, or the model's own"
            return [{"type": "unknown_role", "loc": ("messages", index, "role"), "msg": text}]
    return []


def _is_like_ours(key: str) -> bool:
    return len(key) <= _LONGEST and bool(difflib.get_close_matches(key.lower(), _OURS, 1, _SIMILAR))


def _is_misspelled(word: str, known: str) -> bool:
    """Whether a word is a known one except for one letter or two swapped letters; ``tools``, which contains one, is not."""
    if word == known:
        return True
    shorter = min(len(word), len(known))
    same = next((at for at in range(shorter) if word[at] != known[at]), shorter)
    left, right = word[same:], known[same:]
    changed = (left[1:], right), (left, right[1:]), (left[1:], right[1:]), (left[1::-1] + left[2:], right)
    return known not in word and any(one == other for one, other in changed)


def _wrong_fields_of_one(models: Sequence[type[BaseModel]], values: Any) -> Errors:
    return next(filter(None, (wrong_fields(model, values) for model in models)), [])
