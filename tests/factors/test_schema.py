"""The JSON Schema file says what the loader does, as far as JSON Schema can say it."""

import json
import math
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ropeswitch.factors.factor_set import FactorError, FactorSet
from ropeswitch.factors.file import FIELDS, FORMAT, parse

SCHEMA = json.loads(files("ropeswitch.factors").joinpath("factor_file.schema.json").read_text(encoding="utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)

# Values that are right in one field and wrong in most others. No 8192.0: to JSON Schema that is an integer, see below.
STRAY: list[Any] = [
    *(None, True, False, 0, 1, -1, 3, 2**31 - 1, 2**31, 10**400, 0.5, -0.5, 5e-324, 1.7976931348623157e308),
    *("", "a", "a b", "é", "x" * 64, "x" * 65, [], [1], [0], [0.5, True], ["1"], {}, {"name": "a"}),
]
SET_FIELDS = tuple(FactorSet.__dataclass_fields__)


def file_of(**changes: Any) -> dict[str, Any]:
    """A factor file of one set: what concerns several sets (names, order, equal counts) is beyond JSON Schema."""
    factor_set = {"name": "a", "max_length": 8, "factors": [0.9, 2, 1.5], "scale": 1.2, "start_tokens": 2}
    return {"format": FORMAT, "description": "text", "rope_theta": 10000, "sets": [factor_set | changes]}


def accepted(values: Any) -> bool:
    try:
        parse(json.dumps(values))
    except FactorError:
        return False
    return True


def test_the_schema_is_valid_and_names_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert tuple(SCHEMA["properties"]) == FIELDS
    assert tuple(SCHEMA["$defs"]["set"]["properties"]) == SET_FIELDS


@pytest.mark.parametrize("field", [*FIELDS, "other"])
def test_schema_and_loader_agree_on_the_file(field: str) -> None:
    for stray in STRAY:
        values = file_of() | {field: stray}
        assert VALIDATOR.is_valid(values) == accepted(values), stray
    values = file_of()
    values.pop(field, None)
    assert VALIDATOR.is_valid(values) == accepted(values) == (field not in ("format", "sets"))


@pytest.mark.parametrize("field", [*SET_FIELDS, "other"])
def test_schema_and_loader_agree_on_a_set(field: str) -> None:
    for stray in STRAY:
        values = file_of(**{field: stray})
        assert VALIDATOR.is_valid(values) == accepted(values), stray
    values = file_of()
    values["sets"][0].pop(field, None)
    assert VALIDATOR.is_valid(values) == accepted(values) == (field not in ("name", "max_length", "factors"))


@given(st.lists(st.floats() | st.integers() | st.booleans() | st.none() | st.text(max_size=3), max_size=4))
def test_schema_and_loader_agree_on_factors(factors: list[Any]) -> None:
    values = file_of(factors=factors)
    finite = not any(isinstance(factor, float) and not math.isfinite(factor) for factor in factors)
    assert (VALIDATOR.is_valid(values) and finite) == accepted(values)


@given(st.text(max_size=6) | st.text("aZ5._-", max_size=70))
def test_schema_and_loader_agree_on_names(name: str) -> None:
    values = file_of(name=name)
    assert VALIDATOR.is_valid(values) == accepted(values)


def test_only_the_loader_refuses_a_whole_number_with_a_fraction() -> None:
    assert VALIDATOR.is_valid(file_of(max_length=8192.0))
    assert not accepted(file_of(max_length=8192.0))
