"""Long bodies give the values that ``json.loads`` gives, whatever is in them."""

import json
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.server.front.bodies import parse as module
from ropeswitch.server.front.bodies.parse import TokenIds, has_too_many_values, parse, sample

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.integers(0, 2**17)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | st.text(),
    lambda inner: (
        st.lists(inner)
        | st.dictionaries(st.text() | st.just("prompt"), inner)
        | st.lists(st.integers(0, 200_000), min_size=3)
    ),
    max_leaves=20,
)


@given(st.text() | st.text(alphabet="a\ud83d\ude00\udfff\\"), st.booleans())
def test_odd_text(text: str, escaped: bool) -> None:
    body = json.dumps({"a": [text]}, ensure_ascii=escaped).encode(errors="surrogatepass")
    odd = any("\ud800" <= each <= "\udfff" for each in json.loads(body)["a"][0])
    with pytest.raises(ValueError) if odd else nullcontext():
        assert parse(body) == json.loads(body)


@given(VALUES, st.sampled_from([None, 1]), st.sampled_from([(", ", ": "), (",", ":"), (" ,\n", "\t: ")]))
def test_any_values(value: Any, indent: int | None, separators: tuple[str, str]) -> None:
    body = json.dumps(value, indent=indent, separators=separators).encode()
    assert repr(parse(body)) == repr(json.loads(body))


@given(st.binary(max_size=30) | st.text(alphabet='[]{},:"0123456789.-+eE \n\\utrnfNaI', max_size=40).map(str.encode))
def test_any_bytes(body: bytes) -> None:
    """The parser rejects bytes, or returns the same values and types as ``json.loads``."""
    try:
        values = parse(body)
    except ValueError:
        return
    assert repr(values) == repr(json.loads(body))


def test_token_ids_and_their_range(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 16)
    ids = parse(json.dumps({"prompt": [7, 300, 5, *range(100, 200)]}).encode())["prompt"]
    assert type(ids) is TokenIds and (ids.smallest, ids.largest) == (5, 300)
    both = parse(json.dumps({"input": [[*range(50)], [*range(60)]]}).encode())["input"]
    assert [type(each) for each in both] == [TokenIds, TokenIds]
    assert sample([ids, [7]]) == [[7], [7]] and sample([ids, "text"]) is None
    many = [*range(100)]
    others = [{"tokens": [odd, *many]} for odd in (-1, 2**63, True, 1.5, "1")]
    # pydantic takes an object of a class that it does not know for one with attributes.
    for body in (*others, many, {"messages": many}, {"a": {"prompt": many}}):
        values = parse(json.dumps(body).encode())
        while isinstance(values, dict):
            [values] = values.values()
        assert type(values) is list


def counted(value: Any) -> int:
    if isinstance(value, list):
        return 1 + sum(map(counted, value))
    if isinstance(value, dict):
        return 1 + sum(1 + counted(each) for each in value.values())
    # A float counts for its point and for its exponent.
    return 1 if value is None or isinstance(value, str | bool) else sum(map(json.dumps(value).count, ".en"))


@pytest.mark.parametrize("piece", [2, 5, 1 << 18])
def test_values_are_counted_without_decoding_them(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(module, "LARGE", 0)
    monkeypatch.setattr(module, "PIECE", piece)

    @given(VALUES, st.booleans())
    def check(value: Any, escaped: bool) -> None:
        body = json.dumps(value, ensure_ascii=escaped).encode()
        for most, more in ((counted(value), False), (counted(value) - 1, True)):
            with monkeypatch.context() as changed:
                changed.setattr(module, "VALUES", most)
                assert has_too_many_values(body) is more

    check()

    @given(st.binary() | st.text(alphabet='[{.e"\\').map(str.encode))
    def check_end(body: bytes) -> None:
        has_too_many_values(body)

    check_end()


def test_what_is_nested_too_deeply_ends_no_process() -> None:
    with pytest.raises(RecursionError):
        parse(b"[" * 200_000)
