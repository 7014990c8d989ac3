"""Later launches of the Triton rotation skip Triton's own, and pass the same; those of the rows compile nothing."""

import json
from typing import Any

import pytest

from tests.kernels.conftest import outside_the_interpreter

pytest.importorskip("triton", reason="Triton has no build for this machine")


@pytest.fixture(scope="module")
def printed() -> dict[str, Any]:
    return json.loads(outside_the_interpreter("-m", "tests.kernels.prepared_launches"))


def test_a_prepared_launch_is_tritons_own(printed: dict[str, Any]) -> None:
    """Programs, stream, kernel, addresses, strides and sizes."""
    found = printed["found"]
    assert len(found) == 9
    kernels = {first["launch"][2] for first, *_ in found.values()}
    # Types, pairings, alignment and keys compile kernels of their own; layouts and numbers of tokens share them.
    assert len(kernels) == 5
    for name, (first, *again) in found.items():
        # A launch of unaligned tensors is never prepared: another may be unaligned elsewhere.
        assert [each["by_triton"] for each in again] == ([name == "unaligned"] if again else [])
        for each in again:
            if name == "new tensors":
                assert each["launch"][4] != first["launch"][4] and each["launch"][6] != first["launch"][6]
                each["launch"][4], each["launch"][6] = first["launch"][4], first["launch"][6]
            assert each["launch"] == first["launch"]


def test_addresses_are_those_of_the_call(printed: dict[str, Any]) -> None:
    [first, _], [other] = printed["found"]["slices"], printed["found"]["other memory"]
    assert first["by_triton"] and not other["by_triton"]
    assert first["launch"][3] != other["launch"][3]
    # The key lies behind the query of two heads of 64 values.
    for query, query_out, key, key_out in (first["launch"][3:7], other["launch"][3:7]):
        assert query == query_out and key == key_out == query + 2 * 64 * 2
    assert first["launch"][7:] == other["launch"][7:]


def test_a_prepared_launch_does_not_let_others_pass(printed: dict[str, Any]) -> None:
    """Of the same shapes, with another type or layout."""
    assert len(printed["refused"]) == 7
    for line in printed["refused"]:
        name, _, message = line.partition(": ")
        assert message.startswith((f"{name} has", f"{name} is", "key is" if name == "query" else name))


def test_other_tables_and_steps_compile_no_other_kernel(printed: dict[str, Any]) -> None:
    """Of the rows: a ladder that is loaded while serving must not, and the number of requests changes at every step."""
    assert len(printed["fills"]) == 12 and len(set(printed["fills"])) == 1


def test_prepared_launches_are_bounded(printed: dict[str, Any]) -> None:
    assert printed["kept"] == 1
