"""Length bands: the values of the label ``input_sequence_length``.

A band is named after its first and last length in tokens, as in ``513-4096``. No band crosses the end of a factor set,
so the prompts of one band all start in the same set.
"""

from bisect import bisect_left

from ropeswitch.factors.factor_set import FactorLadder

# Ends of bands, in tokens, in addition to the ends of the sets; each is eight times the one before. An edge within a factor
# of two of a set's end is left out: it would add little detail for as many series as any other.
EDGES = (512, 4096, 32768, 262144, 2097152)
UNKNOWN = "unknown"
OTHER = "other"


class Bands:
    """The bands of one ladder; lengths are from 1 token up.

    Attributes:
        ends: Each band's last length, increasing; the ladder's end is the last.
        names: Each band's label value.
        sets: For each band, the index of the set that its prompts start in.
        beyond: The label value of prompts longer than the ladder, which are refused.
    """

    def __init__(self, ladder: FactorLadder) -> None:
        limits = {each.max_length for each in ladder.sets}
        apart = {edge for edge in EDGES if all(2 * edge < limit or 2 * limit < edge for limit in limits)}
        self.ends = tuple(sorted(limits | {edge for edge in apart if edge < ladder.max_length}))
        starts = (1, *(end + 1 for end in self.ends))
        self.names = tuple(f"{start}-{end}" for start, end in zip(starts, self.ends, strict=False))
        self.sets = tuple(ladder.index_for(end) for end in self.ends)
        self.beyond = f"{starts[-1]}+"

    def index(self, length: int) -> int:
        """Return the index of the band of a length within the ladder."""
        return bisect_left(self.ends, length)

    def name(self, length: int | None) -> str:
        """Return the label value of any length; None stands for an unknown one."""
        if length is None:
            return UNKNOWN
        return self.names[self.index(length)] if length <= self.ends[-1] else self.beyond
