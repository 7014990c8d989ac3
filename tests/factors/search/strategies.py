"""Spaces and candidates that hypothesis draws."""

import numpy as np
from hypothesis import strategies as st

from ropeswitch.factors.search.space import Candidate, Space

seeds = st.integers(min_value=0, max_value=2**32 - 1)
spaces = st.builds(Space, pairs=st.integers(1, 24), upper=st.integers(101, 64000), monotone=st.booleans())


@st.composite
def spaces_with_candidates(draw: st.DrawFn, count: int = 2) -> tuple[Space, list[Candidate]]:
    space = draw(spaces)
    rng = np.random.default_rng(draw(seeds))
    return space, [space.draw(rng) for _ in range(count)]
