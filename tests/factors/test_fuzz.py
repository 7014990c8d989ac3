"""Whatever is in a factor file, it is read or refused with one short message that names the field; nothing else happens."""

import copy
import json
import math
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.factors.file import LadderFile, parse, to_text
from ropeswitch.factors.files import MAX_BYTES
from tests.factors.strategies import ladders
from tests.factors.test_file import GOOD
from tests.server.running import PROGRAM

LONGEST_MESSAGE = 1000
# What a message begins with: a field of the file, or what the text as a whole is not.
FIELD = ("format", "description", "rope_theta", "sets", "is ", "contains ", "must be ", "'", '"')
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()), max_size=100)
    | st.sampled_from([10**400, -(10**400), 2**31, 1e-320, 1e308, "short", "\ud800", "x" * 5000])
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def read_or_refused(text: str) -> None:
    try:
        content = parse(text)
    except FactorError as error:
        message = str(error)
        assert message.startswith(FIELD) and len(message) <= LONGEST_MESSAGE, message[:2000]
        message.encode()  # it can be printed and logged
    else:
        assert all(math.isfinite(factor) for each in content.ladder.sets for factor in each.factors)


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """The paths to every value inside a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inner for found in places(each, (*path, key)))]


@given(st.data(), VALUES)
@settings(max_examples=600)
def test_any_value_in_any_place(data: st.DataObject, value: Any) -> None:
    values = copy.deepcopy(GOOD) | {"rope_theta": 10000.0}
    last: Any
    *path, last = data.draw(st.sampled_from(places(values)[1:]))
    inner: Any = values
    for key in path:
        inner = inner[key]
    if isinstance(inner, dict) and data.draw(st.booleans()):
        last = data.draw(st.text(st.characters(exclude_categories=()), max_size=3000))
    inner[last] = value
    read_or_refused(json.dumps(values))


@given(ladders(), st.data())
@settings(max_examples=300)
def test_files_with_some_characters_changed(ladder: Any, data: st.DataObject) -> None:
    text = to_text(LadderFile(ladder))
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, len(text)))
        end = data.draw(st.integers(start, min(len(text), start + 8)))
        text = text[:start] + data.draw(st.text('0123456789.eE+-[]{}",:NaInfty \\u', max_size=4)) + text[end:]
    read_or_refused(text)


@pytest.mark.full
@pytest.mark.parametrize("part", ["[],", '{"":0},', "1e9,", '"a",'])
def test_the_largest_file_takes_bounded_time_and_memory(tmp_path: Path, part: str) -> None:
    """In a process of its own, in which no more than 3 GiB can be had; the most comes of it that JSON can hold."""
    path = tmp_path / "large.json"
    start, end = '{"format": "ropeswitch-factors/1", "sets": [', "0]}"
    path.write_text(start + part * ((MAX_BYTES - len(start) - len(end)) // len(part)) + end)

    command = ["prlimit", f"--as={3 << 30}", *PROGRAM, "factors", "show", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2, done.stderr[-2000:]
    assert done.stderr.startswith("ropeswitch: error: factor file") and len(done.stderr) < LONGEST_MESSAGE
