"""Checks the fields of a body one at a time: for bodies that a model's validators crash on, and for long lists and objects.

pydantic reports every item once per type that a field allows: up to 230 errors and 4 ms for an item of ``input``. Therefore
long values are checked in parts, up to the first wrong item.
"""

from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from itertools import islice
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, TypeAdapter, ValidationError

from ropeswitch.server import vllm_adapter

# Items of a list or object to validate at a time.
MANY = 16
# What vLLM's validators raise for a body that lacks a part or has another type.
STUMBLES = (AttributeError, IndexError, KeyError, TypeError, RecursionError)
Errors = list[dict[str, Any]]
Part = list[Any] | dict[str, Any]


def wrong_items(models: Sequence[type[BaseModel]], values: Any) -> Errors:
    """Return the errors of the first item of a long list or object that is wrong in each model; empty if there is none.

    Args:
        models: The models that the body may have.
        values: A body's JSON values.
    """
    for name, value in values.items() if isinstance(values, dict) else ():
        if not isinstance(value, list | dict) or len(value) <= MANY:
            continue
        having = [model for model in models if name in _fields(model)]
        if isinstance(value, dict) and not all(name in _mappings(model) for model in having):
            continue
        if any(name not in _fields(model) and set() < _required(model) <= values.keys() for model in models):
            continue  # to that model it is a field that it ignores
        short = {other: found for other, each in values.items() if (found := _sample(each)) is not None}
        short.pop("tool_choice", None)  # without the tools it would be wrong
        checks = [_Check(model, name, short) for model in having]
        for part, first in _parts(value) if checks else ():
            found = [check.errors(part) for check in checks]
            checks = [check for check, errors in zip(checks, found, strict=True) if not errors]
            if not checks:
                return [each | {"loc": (name, *each["loc"])} for each in _of_first_item(found[0], part, first)]
    return []


@dataclass
class _Check:
    """Checks parts of a field's value in a model.

    Attributes:
        model: The model.
        name: The field's name.
        short: The other fields, as far as they have a sample, for validators that need them.
        whole: Whether to use the whole model, whose validators may complete what the field's type alone refuses.
    """

    model: type[BaseModel]
    name: str
    short: dict[str, Any]
    whole: bool = False

    def errors(self, part: Part) -> Errors:
        if not self.whole:
            if not errors_of(_fields(self.model)[self.name], part, ()):
                return []
            self.whole = True
        try:
            self.model.model_validate(self.short | {self.name: deepcopy(part)})
        except ValidationError as error:
            errors: Errors = [dict(each) for each in error.errors(include_url=False)]
            return [each | {"loc": each["loc"][1:]} for each in errors if each["loc"][:1] == (self.name,)]
        except STUMBLES:
            # The same happens to the whole body, so nothing completes the part.
            return errors_of(_fields(self.model)[self.name], part, ())
        except Exception as error:
            # A fault of the body as a whole, which its own validation reports.
            if not isinstance(error, ValueError) and vllm_adapter.blames_client(error) is None:
                raise
        return []


def _sample(value: Any) -> Any:
    """Return a scalar, or a list of the first item's sample; None for a value without one."""
    if isinstance(value, list):
        return None if not value or (first := _sample(value[0])) is None else [first]
    return None if isinstance(value, dict) else value


def _parts(value: Part) -> Iterator[tuple[Part, int]]:
    """Yield a value in parts, each with the index of its first item in the value.

    Where several types are allowed, the first item decides which one the others must have. A sample of it stands before a
    part with items of another type.
    """
    if isinstance(value, dict):
        items = iter(value.items())
        while part := dict(islice(items, MANY)):
            yield part, 0
        return
    head = _sample(value[0])
    for start in range(0, len(value), MANY):
        found = value[start : start + MANY]
        alike = not start or head is None or all(type(each) is type(head) for each in found)
        yield (found, start) if alike else ([head, *found], start - 1)


def _of_first_item(errors: Errors, part: Part, first: int) -> Errors:
    """Return the errors of a part's first wrong item, with the item's index in the whole value."""
    if isinstance(part, dict):
        return [each for each in errors if each["loc"][:1] == errors[0]["loc"][:1]]
    # One per type of list that the field allows.
    by_type: dict[tuple[Any, ...], dict[int, Errors]] = {}
    for each in errors:
        place = next((at for at, step in enumerate(each["loc"]) if isinstance(step, int)), None)
        if place is not None:
            kind, index, rest = each["loc"][:place], each["loc"][place], each["loc"][place + 1 :]
            moved = each | {"loc": (*kind, index + first, *rest)}
            by_type.setdefault(kind, {}).setdefault(index, []).append(moved)
    # The type that is meant has the most right items before the first wrong one.
    meant = max(by_type.values(), key=min, default=None)
    return errors if meant is None else meant[min(meant)]


def wrong_fields(model: type[BaseModel], values: Any) -> Errors:
    """Check each field separately and return the errors as ``pydantic.ValidationError.errors`` does; empty if all are valid.

    Args:
        model: The body's model; its own validators are skipped, those of its fields' types are not.
        values: A body's JSON values.
    """
    if not isinstance(values, dict):
        return errors_of(TypeAdapter(dict), values, ())
    found: Errors = []
    for name, adapter in _fields(model).items():
        if name in values:
            found += errors_of(adapter, values[name], (name,))
    return found


def errors_of(adapter: TypeAdapter[Any], value: Any, loc: tuple[str, ...]) -> Errors:
    """Return a value's errors as ``pydantic.ValidationError.errors`` does, with ``loc`` before their places."""
    try:
        adapter.validate_python(value)
    except ValidationError as error:
        return [dict(each) | {"loc": (*loc, *each["loc"])} for each in error.errors(include_url=False)]
    return []


@cache
def _fields(model: type[BaseModel]) -> Mapping[str, TypeAdapter[Any]]:
    return {field.alias or name: TypeAdapter(field.rebuild_annotation()) for name, field in model.model_fields.items()}


@cache
def _required(model: type[BaseModel]) -> frozenset[str]:
    return frozenset(field.alias or name for name, field in model.model_fields.items() if field.is_required())


@cache
def _mappings(model: type[BaseModel]) -> frozenset[str]:
    """Return the fields that take a dictionary of any keys, a part of which is valid too; a part of a model's is not."""
    kinds = {name: _kinds(field.annotation) for name, field in model.model_fields.items()}
    return frozenset(name for name, found in kinds.items() if found and found <= {dict, NoneType})


def _kinds(annotation: Any) -> set[Any]:
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        return {kind for part in get_args(annotation) for kind in _kinds(part)}
    return _kinds(get_args(annotation)[0]) if origin is Annotated else {origin or annotation}
