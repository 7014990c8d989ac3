"""The workers' table under any order of updates: no row of a ladder that requests are in ever changes."""

import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.model_patches.switch import ladders
from ropeswitch.model_patches.switch.ladders import START, EngineLadder, LadderTable, table_from_json
from ropeswitch.model_patches.switch.set_keys import set_keys
from ropeswitch.model_patches.switch.settings import FORCED_SET, LADDER_ID, RopeSettings


def ladder(*factors: int) -> FactorLadder:
    """Sets that rotate alike where their factors are equal, whatever their names and ends."""
    return FactorLadder.checked(
        [{"name": f"s{i}", "max_length": 8 * (i + 1), "factors": [each]} for i, each in enumerate(factors)]
    )


BEGIN = ladder(1, 2)
TWICE = ladder(1, 1, 2)
SETTINGS = RopeSettings(BEGIN, 1e4)


def keys(sets: Any) -> tuple[str, ...]:
    return set_keys(RopeSettings(FactorLadder(tuple(sets)), 1e4))


def rows_hold(table: tuple[FactorSet, ...], made: EngineLadder, wanted: FactorLadder) -> bool:
    return keys(table[row] for row in made.rows) == keys(wanted.sets)


UPDATES = st.lists(
    st.tuples(
        st.lists(st.integers(1, 12), min_size=1, max_size=4),
        st.sampled_from(["", "a", "b"]),
        st.booleans(),  # a request stays in it
        st.booleans(),  # another request ends
        st.booleans(),  # a worker fails
    ),
    max_size=30,
)


@given(st.sampled_from([BEGIN, TWICE]), UPDATES)
@settings(deadline=None)
def test_rows_of_ladders_in_use_never_change(begin: FactorLadder, updates: list[Any]) -> None:
    most = ladders.MOST_SETS
    ladders.MOST_SETS = 8
    try:
        table = LadderTable(RopeSettings(begin, 1e4), 64)
        held: list[tuple[EngineLadder, FactorLadder]] = []
        current: dict[str, tuple[EngineLadder, FactorLadder]] = {"": (table.default, begin)}
        for number, (factors, name, stays, ends, fails) in enumerate(updates):
            wanted = ladder(*factors)
            try:
                placement = table.place(wanted)
            except FactorError:
                # What is held beside what the names lead to leaves no room, whoever shares a row.
                in_use = {key for each, _ in (*held, *current.values()) for key in each.keys}
                assert len(in_use | set(keys(wanted.sets))) > 8
                continue
            # What the workers hold from here on, whether or not all of them have loaded it.
            assert all(rows_hold(placement.table, *each) for each in (*held, *current.values()))
            if fails:
                continue
            table.add(str(number), name, wanted, placement)
            current[name] = table.activate(str(number)), wanted
            # A request that moves to a ladder with an equal set stays on its row.
            row_of: dict[str, int] = {}
            for made, _ in (*held, *current.values()):
                assert all(row_of.setdefault(key, row) == row for key, row in zip(made.keys, made.rows, strict=True))
            assert len(table.table) <= 8 and table.default is current[""][0]
            assert table_from_json(json.loads(json.dumps(FactorLadder(table.table).to_json()))).sets == table.table
            if ends and held:
                held.pop(0)
            if stays:
                held.append(current[name])
    finally:
        ladders.MOST_SETS = most


def request(**extra: Any) -> Any:
    return SimpleNamespace(sampling_params=SimpleNamespace(extra_args=extra or None), pooling_params=None)


def test_a_request_names_its_ladder_and_else_gets_the_default() -> None:
    table = LadderTable(SETTINGS, 64)
    start = table.default
    table.add("2", "", ladder(3), table.place(ladder(3)))
    assert table.of(request()) is start
    second = table.activate("2")
    assert (table.of(request()), table.of(request(**{LADDER_ID: START}))) == (second, start)
    table.redirect(second)
    assert table.of(request(**{LADDER_ID: START})) is second
    for unknown in ("3", ["2"], 2):
        with pytest.raises(FactorError, match="this engine has dropped it; send the request again"):
            table.of(
                SimpleNamespace(sampling_params=None, pooling_params=SimpleNamespace(extra_kwargs={LADDER_ID: unknown}))
            )


def test_a_request_that_forces_a_set_stays_where_the_new_ladder_has_none() -> None:
    table = LadderTable(SETTINGS, 64)
    table.add("2", "", ladder(3), table.place(ladder(3)))
    start, second = table.default, table.activate("2")
    table.redirect(second)
    for forced, expected in (("s0", second), ("s1", start)):
        assert table.of(request(**{LADDER_ID: START, FORCED_SET: forced})) is expected


def test_a_dropped_ladder_is_not_replaced_by_a_new_one_of_its_name() -> None:
    table = LadderTable(SETTINGS, 64)
    made = []
    for ladder_id in ("2", "3"):
        table.add(ladder_id, "b", BEGIN, table.place(BEGIN))
        made.append(table.activate(ladder_id))
        if ladder_id == "2":
            assert table.replaces(made[0], made[0])
            table.deactivate("b")
    table.redirect(made[1])
    assert not table.replaces(made[1], made[0])
    assert table.of(request(**{LADDER_ID: "2"})) is made[0]


def test_a_deleted_ladder_that_others_were_redirected_to_leaves_its_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladders, "MOST_SETS", 4)
    table = LadderTable(SETTINGS, 64)
    for ladder_id, sets in (("2", ladder(3)), ("3", ladder(4))):
        table.add(ladder_id, "b", sets, table.place(sets))
        table.redirect(table.activate(ladder_id))
    table.deactivate("b")
    # The default ladder holds two of the four rows.
    assert len(table.place(ladder(5, 6)).table) == 4


def test_the_table_never_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dummy steps of the V2 runner read the rows that the slots' last requests had."""
    monkeypatch.setattr(ladders, "MOST_SETS", 4)
    table = LadderTable(SETTINGS, 64)
    table.add("2", "b", ladder(3, 4), table.place(ladder(3, 4)))
    table.activate("2")
    table.deactivate("b")
    placement = table.place(ladder(5))
    assert placement.rows == (2,) and keys(placement.table) == keys([*BEGIN.sets, *ladder(5, 4).sets])


def test_only_so_many_earlier_ladders_are_kept() -> None:
    table = LadderTable(SETTINGS, 64)
    for number in range(ladders.MOST_RETIRED + 10):
        table.add(str(number), "", BEGIN, table.place(BEGIN))
        table.activate(str(number))
    assert table.of(request(**{LADDER_ID: "20"})).rows == (0, 1)
    with pytest.raises(FactorError, match="ladder '3': this engine has dropped it"):
        table.find("3")
