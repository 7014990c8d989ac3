"""The JSON Schema file says what the loader does, as far as JSON Schema can say it."""

import json
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
    *([{"factors": [1, 2, 3], "scale": 2}], [{"factors": [1, 2, 3], "x": 1}], [{"scale": 1}]),
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


def agree(values: Any) -> bool:
    """Whether both accept the file."""
    is_read = accepted(values)
    assert VALIDATOR.is_valid(values) == is_read, values
    return is_read


@pytest.mark.parametrize("field", [*FIELDS, *SET_FIELDS, "other"])
def test_schema_and_loader_agree_on_every_field(field: str) -> None:
    for stray in STRAY:
        for values in (file_of() | {field: stray}, file_of(**{field: stray})):
            agree(values)
    content = file_of()
    content.pop(field, None)
    content["sets"] = [{k: v for k, v in each.items() if k != field} for each in content.get("sets", ())]
    assert agree(content) == (field not in ("format", "sets", "name", "max_length", "factors"))


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False) | st.integers() | st.booleans() | st.none(), max_size=4),
    st.text(max_size=6) | st.text("aZ5._-", max_size=70),
)
def test_schema_and_loader_agree_on_factors_and_names(factors: list[Any], name: str) -> None:
    agree(file_of(factors=factors))
    agree(file_of(name=name))


def test_the_schema_names_every_field_and_only_the_loader_refuses_a_whole_number_with_a_fraction() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    assert tuple(SCHEMA["properties"]) == FIELDS
    assert tuple(SCHEMA["$defs"]["set"]["properties"]) == SET_FIELDS
    assert VALIDATOR.is_valid(file_of(max_length=8192.0)) and not accepted(file_of(max_length=8192.0))
