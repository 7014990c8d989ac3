"""Ladders that hypothesis draws: like the published ones, not monotone, some factors below 1."""

from hypothesis import strategies as st

from ropeswitch.factors.factor_set import FactorLadder, FactorSet, LayerFactors

names = st.text("ABCxyz019._-", min_size=1, max_size=64)
positive = st.floats(min_value=0, exclude_min=True, allow_nan=False, allow_infinity=False)
factors = st.one_of(st.floats(min_value=1e-9, max_value=1e9), st.floats(min_value=0.5, max_value=600))
scales = st.floats(min_value=1e-3, max_value=1e3)
lengths = st.integers(min_value=1, max_value=2**31 - 1)


@st.composite
def ladders(draw: st.DrawFn) -> FactorLadder:
    ends = sorted(draw(st.lists(lengths, min_size=1, max_size=4, unique=True)))
    called = draw(st.lists(names, min_size=len(ends), max_size=len(ends), unique=True))
    count = draw(st.integers(min_value=1, max_value=8))
    values = st.lists(factors, min_size=count, max_size=count).map(tuple)
    depth = draw(st.integers(min_value=0, max_value=3))
    layers = st.lists(st.builds(LayerFactors, values, scales), min_size=depth, max_size=depth).map(tuple)
    return FactorLadder(
        tuple(
            FactorSet(
                name=name,
                max_length=end,
                factors=draw(values),
                scale=draw(scales),
                start_tokens=draw(st.integers(min_value=0, max_value=2**31 - 1)),
                layers=draw(layers | st.just(())),
            )
            for name, end in zip(called, ends, strict=True)
        )
    )
