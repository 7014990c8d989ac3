"""Factor files are read back exactly, or refused with a message that names the file, the field and the value."""

import functools
import json
import operator
import os
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorError, FactorLadder
from ropeswitch.factors.file import LadderFile, load, parse, save, to_text
from tests.factors.strategies import ladders, positive

GOOD: dict[str, Any] = {
    "format": "ropeswitch-factors/1",
    "sets": [
        {"name": "short", "max_length": 64, "factors": [0.9, 1.5, 1.25]},
        {"name": "long", "max_length": 512, "factors": [1, 2, 4], "scale": 1.19, "start_tokens": 4},
    ],
}


def test_defaults() -> None:
    short, long = parse(json.dumps(GOOD)).ladder.sets
    assert (short.scale, short.start_tokens, long.scale, long.start_tokens) == (1.0, 0, 1.19, 4)


@given(ladders(), st.none() | positive, st.none() | st.text())
def test_what_is_written_is_read_back_exactly(
    ladder: FactorLadder, theta: float | None, description: str | None
) -> None:
    content = LadderFile(ladder, theta, description)
    assert parse(to_text(content)) == content


def test_save_keeps_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("mine")
    content = parse(json.dumps(GOOD))
    with pytest.raises(FactorError, match=r"f\.json.*exists"):
        save(path, content)
    assert path.read_text() == "mine"
    with path.open() as reading:
        save(path, content, overwrite=True)
        assert reading.read() == "mine", "a reader has the whole old file or the whole new one"
    assert load(path) == content


def test_save_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "f.json"
    path.write_text("mine")
    monkeypatch.setattr(os, "fsync", Mock(side_effect=OSError(28, "No space left on device")))
    with pytest.raises(FactorError, match=r"f\.json.*cannot be written: No space left"):
        save(path, parse(json.dumps(GOOD)), overwrite=True)
    assert (path.read_text(), os.listdir(tmp_path)) == ("mine", ["f.json"])


def changed(path: list[str | int], value: Any) -> str:
    """A file with another value in one place, or with none."""
    values: Any = json.loads(json.dumps(GOOD))
    *above, last = path
    inner = functools.reduce(operator.getitem, above, values)
    inner[last] = value
    if value is None:
        del inner[last]
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: .* line 1 column 1"),
        ("[]", r"must be a JSON object, found \[\]"),
        ('{"format": 1, "format": 2}', "'format': given twice"),
        ('{"x": NaN}', "contains NaN"),
        ('{"x": ' + "1" * 5000 + "}", "number that is too long"),
        ("[" * 100000, "nested too deeply"),
        (changed(["format"], None), "format: missing; this version reads 'ropeswitch-factors/1'"),
        (changed(["format"], "ropeswitch-factors/2"), "format: 'ropeswitch-factors/2'; this version reads"),
        (changed(["sets", 1, "factors"], [1, 2]), r"sets\[1\]\.factors: 2 factors, but sets\[0\] has 3"),
        (changed(["sets", 0, "factors", 1], -1), r"sets\[0\]\.factors\[1\]: -1.0 must be finite and greater than 0"),
        (changed(["sets", 0, "factor"], [1]), r"sets\[0\]\.factor: unknown field"),
        (changed(["sets", 0, "max_length"], 512), r"sets\[1\]\.max_length: 512 must exceed 512"),
        (changed(["sets", 0, "name"], "long"), "names must be unique"),
        (
            changed(["sets", 0, "layers"], []),
            r"sets\[0\]\.layers: must be a list of an object for each layer, found \[\]",
        ),
        (changed(["sets", 0, "layers"], [{"scale": 1}]), r"sets\[0\]\.layers\[0\]: must be an object with factors"),
        (changed(["sets", 0, "layers"], [{"factors": [1, 2]}]), r"layers\[0\]\.factors: 2 factors, but the set has 3"),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(FactorError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_what_cannot_be_read_or_written_is_refused_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(call: Any, message: str) -> None:
        with pytest.raises(FactorError, match=message):
            call()

    content, path = parse(json.dumps(GOOD)), tmp_path / "f.json"
    backwards = FactorLadder(content.ladder.sets[::-1])
    refused(lambda: save(path, LadderFile(backwards)), r"sets\[1\]\.max_length: 64")
    for place in (tmp_path / "missing" / "f.json", tmp_path):
        refused(lambda place=place: save(place, content, overwrite=True), str(place))
    assert os.listdir(tmp_path) == []
    refused(lambda: load(path), r"f\.json': does not exist")
    refused(lambda: load(tmp_path), "is not a regular file")
    path.write_bytes(b'{"format": "\xff"}')
    refused(lambda: load(path), "not UTF-8 text: byte 12 is 0xff")
    os.truncate(path, 64 * 1024 * 1024 + 1)
    refused(lambda: load(path), "larger than 64 MiB")
    monkeypatch.setattr(Path, "open", Mock(side_effect=PermissionError(13, "Permission denied")))
    refused(lambda: load(path), r"f\.json': cannot be read: Permission denied")
