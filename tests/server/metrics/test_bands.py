"""Every length is in one band, and no band reaches over a set's end."""

from hypothesis import given
from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics.bands import EDGES, Bands
from tests.server.metrics.ladders import LADDERS


@given(LADDERS, st.data())
def test_every_length_is_in_one_band(sets: FactorLadder, data: st.DataObject) -> None:
    bands = Bands(sets)
    length = data.draw(st.integers(1, sets.max_length + 10))
    spans = {name: [int(each) for each in name.split("-")] for name in bands.names}
    inside = [name for name, (start, end) in spans.items() if start <= length <= end] or [bands.beyond]
    assert inside == [bands.name(length)]
    if length <= sets.max_length:
        assert inside == [bands.names[bands.index(length)]]
        assert bands.sets[bands.index(length)] == sets.index_for(length)


@given(LADDERS)
def test_bands_end_where_sets_do(sets: FactorLadder) -> None:
    bands = Bands(sets)
    limits = [each.max_length for each in sets.sets]
    assert set(limits) <= set(bands.ends) <= {*limits, *EDGES}
    assert list(bands.ends) == sorted(set(bands.ends)) and bands.ends[-1] == sets.max_length
    for edge in EDGES:
        near = any(limit <= 2 * edge and edge <= 2 * limit for limit in limits)
        assert (edge in bands.ends) == (edge in limits or (edge < sets.max_length and not near))
