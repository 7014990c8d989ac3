"""Factor files are read back exactly, or refused with a message that names the file, the field and the value."""

import json
import os
import re
from pathlib import Path
from typing import Any

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
    content = parse(json.dumps(GOOD))
    short, long = content.ladder.sets
    assert (content.theta, content.description) == (None, None)
    assert (short.factors, short.scale, short.start_tokens) == ((0.9, 1.5, 1.25), 1.0, 0)
    assert (long.factors, long.scale, long.start_tokens) == ((1.0, 2.0, 4.0), 1.19, 4)


@given(ladders(), st.none() | positive, st.none() | st.text())
def test_what_is_written_is_read_back_exactly(
    ladder: FactorLadder, theta: float | None, description: str | None
) -> None:
    content = LadderFile(ladder, theta, description)
    assert parse(to_text(content)) == content


def test_save_and_load(tmp_path: Path) -> None:
    content = LadderFile(parse(json.dumps(GOOD)).ladder, 10000.0, "a test")
    save(tmp_path / "f.json", content)
    assert load(tmp_path / "f.json") == load(str(tmp_path / "f.json")) == content
    assert os.listdir(tmp_path) == ["f.json"]


def test_save_keeps_an_existing_file(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text("mine")
    content = parse(json.dumps(GOOD))
    with pytest.raises(FactorError, match=r"f\.json.*exists"):
        save(path, content)
    assert path.read_text() == "mine"
    save(path, content, overwrite=True)
    assert load(path) == content


def test_save_leaves_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full_disk(_: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "f.json"
    path.write_text("mine")
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(FactorError, match=r"f\.json.*cannot be written: No space left"):
        save(path, parse(json.dumps(GOOD)), overwrite=True)
    assert (path.read_text(), os.listdir(tmp_path)) == ("mine", ["f.json"])


def test_save_refuses_what_load_would(tmp_path: Path) -> None:
    ladder = FactorLadder(parse(json.dumps(GOOD)).ladder.sets[::-1])
    with pytest.raises(FactorError, match=r"sets\[1\]\.max_length: 64"):
        save(tmp_path / "f.json", LadderFile(ladder))
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("path", ["missing/f.json", "."])
def test_save_to_an_impossible_place(tmp_path: Path, path: str) -> None:
    with pytest.raises(FactorError, match=re.escape(str(tmp_path / path))):
        save(tmp_path / path, parse(json.dumps(GOOD)), overwrite=True)


def changed(path: list[str | int], value: Any) -> str:
    """A file with another value in one place, or with none."""
    values: Any = json.loads(json.dumps(GOOD))
    inner = values
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    if value is None:
        del inner[path[-1]]
    return json.dumps(values)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not JSON: .* line 1 column 1"),
        ('{"format": \n 1,}', "not JSON: .* line 2 column"),
        ("[]", r"must be a JSON object, found \[\]"),
        ('{"format": 1, "format": 2}', "'format': given twice"),
        ('{"x": NaN}', "contains NaN"),
        ('{"x": ' + "1" * 5000 + "}", "number that is too long"),
        ("[" * 100000, "nested too deeply"),
        (changed(["format"], None), "format: missing; this version reads 'ropeswitch-factors/1'"),
        (changed(["format"], "ropeswitch-factors/2"), "format: 'ropeswitch-factors/2'; this version reads"),
        (changed(["theta"], 10000), "'theta': unknown field; allowed: format, description, rope_theta, sets"),
        (changed(["description"], 7), "description: 7 must be a string"),
        (changed(["rope_theta"], True), "rope_theta: True must be a number"),
        (changed(["rope_theta"], 0), "rope_theta: 0.0 must be finite and greater than 0"),
        (changed(["rope_theta"], 10**400), "rope_theta: 1000.* is too large"),
        (changed(["sets"], None), "sets: missing"),
        (changed(["sets"], []), "sets: must be a list of at least one"),
        (changed(["sets", 0], 7), r"sets\[0\]: must be an object, found 7"),
        (changed(["sets", 1, "factors"], None), r"sets\[1\]\.factors: missing"),
        (changed(["sets", 1, "factors"], [1, 2]), r"sets\[1\]\.factors: 2 factors, but sets\[0\] has 3"),
        (changed(["sets", 0, "factors", 1], -1), r"sets\[0\]\.factors\[1\]: -1.0 must be finite and greater than 0"),
        (changed(["sets", 0, "factor"], [1]), r"sets\[0\]\.factor: unknown field"),
        (changed(["sets", 0, "max_length"], 512), r"sets\[1\]\.max_length: 512 must exceed 512"),
        (changed(["sets", 0, "name"], "long"), "names must be unique"),
        (changed(["sets", 0, "name"], "a b"), r"sets\[0\]\.name: 'a b'"),
        (changed(["sets", 0, "start_tokens"], -1), r"sets\[0\]\.start_tokens: -1"),
    ],
)
def test_wrong_content_is_refused(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "f.json"
    path.write_text(text)
    with pytest.raises(FactorError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value)


def test_no_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FactorError, match=r"no\.json': does not exist"):
        load(tmp_path / "no.json")
    with pytest.raises(FactorError, match="is not a regular file"):
        load(tmp_path)


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    path = tmp_path / "f.json"
    path.write_text(json.dumps(GOOD))
    monkeypatch.setattr(Path, "open", denied)
    with pytest.raises(FactorError, match=r"f\.json': cannot be read: Permission denied"):
        load(path)


def test_bad_utf8(tmp_path: Path) -> None:
    (tmp_path / "f.json").write_bytes(b'{"format": "\xff"}')
    with pytest.raises(FactorError, match="not UTF-8 text: byte 12 is 0xff"):
        load(tmp_path / "f.json")


def test_huge_file(tmp_path: Path) -> None:
    with open(tmp_path / "f.json", "wb") as stream:
        stream.truncate(64 * 1024 * 1024 + 1)
    with pytest.raises(FactorError, match="larger than 64 MiB"):
        load(tmp_path / "f.json")
