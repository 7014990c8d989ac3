"""Validation errors as sentences."""

from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, ValidationError, field_validator

from ropeswitch.server.error_sentences import describe, shown
from ropeswitch.server.upstream_messages import mended


class Text(BaseModel):
    type: str = Field(pattern="text")
    text: str


class On(BaseModel):
    type: Literal["enabled"]


class Off(BaseModel):
    type: Literal["disabled"]


class Body(BaseModel):
    model_config = {"extra": "forbid"}
    count: int = Field(1, ge=1, le=5)
    stop: str | list[str] | None = None
    parts: str | list[Text] = ""
    even: int = 2
    named: dict[str, int] = {}
    thinking: Annotated[On | Off, Field(discriminator="type")] = On(type="enabled")

    @field_validator("even")
    @classmethod
    def check(cls, value: int) -> int:
        if value % 2:
            raise ValueError("even must be even")
        return value


@pytest.mark.parametrize(
    ("body", "message", "field"),
    [
        ({"count": 9}, "count: 9 must be at most 5.", "count"),
        ({"count": "x"}, 'count: "x" must be a whole number.', "count"),
        ({"stop": 5}, "stop: 5 must be a string or a list.", "stop"),
        ({"stop": ["a", 5]}, "stop[1]: 5 must be a string.", "stop[1]"),
        ({"parts": [{"type": "text"}]}, "parts[0].text: missing; this field is required.", "parts[0].text"),
        ({"even": 3}, "even must be even; got 3.", "even"),
        ({"other": 3}, "other: unknown field; leave it out.", "other"),
        (
            {"stop": [1, 2, 3, 4, 5]},
            "stop[0]: 1 must be a string. stop[1]: 2 must be a string. stop[2]: 3 must be a string. "
            "2 more fields are wrong.",
            "stop[0]",
        ),
    ],
)
def test_the_field_its_value_and_what_is_allowed(body: Any, message: str, field: str) -> None:
    with pytest.raises(ValidationError) as raised:
        Body.model_validate(body)
    errors = [each | {"loc": ("body", *each["loc"])} for each in map(dict, raised.value.errors())]
    assert describe(errors, body) == (message, field)


def test_the_text_of_an_error_that_vllm_raises_itself() -> None:
    with pytest.raises(ValidationError) as raised:
        Body.model_validate({"stop": [5], "count": 9})
    assert mended(str(raised.value)) == ("count: 9 must be at most 5. stop[0]: 5 must be a string.", "count")


@pytest.mark.parametrize(
    ("message", "sentence", "field"),
    [
        (
            "top_p must be in (0, 1], got 2.0. (parameter=top_p, value=2.0)",
            "top_p must be in (0, 1], got 2.0.",
            "top_p",
        ),
        ("Too many. (parameter=n, value=70)", "Too many; got 70.", "n"),
        ("`tools` must be set. (parameter=tool_choice)", "`tools` must be set.", "tool_choice"),
        ("n must be at least 1, got 0.", "n must be at least 1, got 0.", "n"),
        ("n.best must be at least 1.", "n.best must be at least 1.", "n.best"),
        ("body: [1] must be an object.", "body: [1] must be an object.", None),
        ("error: boom", "error: boom", None),
        ("best must be at least 1.", "best must be at least 1.", None),
        ("Something (really) is wrong", "Something (really) is wrong", None),
    ],
)
def test_messages_of_vllms(message: str, sentence: str, field: str | None) -> None:
    assert mended(message, {"n"}) == (sentence, field)


def test_long_values_are_cut() -> None:
    assert shown("a" * 100) == f'"{"a" * 80}"... (100 characters)'
    assert shown(list(range(9))) == "a list of 9 items"
    assert shown({str(each): each for each in range(4)}) == "an object of 4 fields"
    assert len(shown([["a" * 50] * 5])) < 100


@pytest.mark.parametrize(
    ("body", "end"),
    [
        ({"thinking": {"type": " (value=" * 125_000}}, "expected tags: 'enabled', 'disabled'."),
        ({"named": {"a" * 1_000_000: "x"}}, "must be a whole number."),
        ({"b" * 1_000_000: 1}, "unknown field; leave it out."),
    ],
)
def test_no_text_of_a_client_is_written_whole_or_searched_from_each_place(body: Any, end: str) -> None:
    """Searched so, the first takes a quarter of an hour."""
    with pytest.raises(ValidationError) as raised:
        Body.model_validate(body)
    errors = [each | {"loc": ("body", *each["loc"])} for each in map(dict, raised.value.errors())]
    message, field = describe(errors, body)
    assert len(message) < 800 and message.endswith(end)
    assert field is not None and len(field) < 100


def test_large_bodies_are_not_written_whole() -> None:
    deep = {"a": [{"b": "x" * 1000}] * 3}
    assert len(shown(deep)) < 100
    errors = [
        {"type": "string_type", "loc": ("body", each), "msg": "Input should be a valid string"} for each in range(5000)
    ]
    message, field = describe(errors, [1] * 5000)
    assert field == "[0]" and message.endswith(" 997 more fields are wrong.")
    assert mended("(value=" * 100_000) == ("(value=" * 100_000, None)
