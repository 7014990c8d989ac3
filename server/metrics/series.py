"""Plans a server's series: the width of buckets, and the combinations of length band and factor set with their own series.

A histogram has one series per bucket and combination, so combinations and buckets share one budget. The plan depends on the
ladder alone: every process, and every start, exposes the same series.
"""

from itertools import product

from ropeswitch.factors.factor_set import FactorLadder
from ropeswitch.server.metrics.bands import OTHER, Bands
from ropeswitch.server.metrics.instruments import (
    INSTRUMENTS,
    LENGTH_REASONS,
    LONGEST_SECONDS,
    OUTSIDE,
    POLICY,
    REASONS,
    Instrument,
)

# Maximum series for one model and one engine: all metrics of this package, the scheduler's four, those by policy, and two
# for each set's queue.
MOST_SERIES = 3000
SCHEDULER_SERIES = 4
POLICY_SERIES = len(POLICY.values)
QUEUE_SERIES = 2
# Ratios between the ends of neighbouring fine buckets. Prometheus assumes that a quantile is inside its bucket, so its
# relative error is below the ratio less one, at any latency. The smallest ratio that leaves room is used: room for the
# likely series and all counters, or else for the likely series only.
RATIOS = (1.1, 1.12, 1.14, 1.16, 1.18, 1.2)

# The index of a band and that of a factor set.
BandSet = tuple[int, int]


def bounds(instrument: Instrument, ratio: float) -> tuple[float, ...]:
    """Return the upper ends of a histogram's buckets in seconds, without the last, which has no end."""
    if instrument.lowest is None:
        return instrument.buckets
    ends = [instrument.lowest]
    while ends[-1] < LONGEST_SECONDS:
        # Rounded down, so that no step exceeds the ratio.
        ends.append(_three_digits_down(ends[-1] * ratio))
    return (*ends[:-1], LONGEST_SECONDS)


def _three_digits_down(value: float) -> float:
    digits, exponent = f"{value:.12e}".split("e")
    return float(f"{int(float(digits) * 1000) / 1000}e{exponent}")


def series(instrument: Instrument, ratio: float) -> int:
    """Return the number of series of one band and set in a metric; for a histogram: all buckets, sum and count."""
    if instrument.kind == "histogram":
        return len(bounds(instrument, ratio)) + 3
    return max(len(instrument.values), 1)


class SeriesPlan:
    """The series of one ladder.

    Attributes:
        bands: The length bands.
        ratio: Ratio between the ends of neighbouring fine buckets.
    """

    def __init__(self, ladder: FactorLadder) -> None:
        self.bands = bands = Bands(ladder)
        self._sets = ladder.names
        # Requests that never reached an engine, by outcome, and rejected ones by reason. Their prompts may also be longer
        # than the ladder, or of no known length.
        lengths = len(bands.names) + 2
        outside = lengths * (1 + len(LENGTH_REASONS)) + len(OUTSIDE) - 1 + len(REASONS) - len(LENGTH_REASONS)
        left = MOST_SERIES - SCHEDULER_SERIES - POLICY_SERIES - QUEUE_SERIES * len(self._sets) - outside
        likely, every = self._likely(), self._every()
        cheap = {(each, band_set) for each, band_set in every if each.kind != "histogram"}
        for wanted, self.ratio in product(({*likely, *cheap}, set(likely)), RATIOS):
            costs = {instrument: series(instrument, self.ratio) for instrument in INSTRUMENTS}
            if sum(costs.values()) + sum(costs[each] for each, _ in wanted) <= left:
                break
        # Combinations without their own series are counted together under one band and set.
        left -= sum(costs.values())
        self._shown: dict[Instrument, set[BandSet]] = {instrument: set() for instrument in INSTRUMENTS}
        for instrument, band_set in dict.fromkeys((*likely, *every)):
            if costs[instrument] <= left:
                self._shown[instrument].add(band_set)
                left -= costs[instrument]

    def labels(self, instrument: Instrument, band_set: BandSet) -> tuple[str, str]:
        """Return the values of ``input_sequence_length`` and ``factor_set`` for a band and set in a metric."""
        if band_set not in self._shown[instrument]:
            return OTHER, OTHER
        return self.bands.names[band_set[0]], self._sets[band_set[1]]

    def _likely(self) -> list[tuple[Instrument, BandSet]]:
        """Return the series of ordinary requests: for the sets that prompts start in, and those that they grow into."""
        starts = list(enumerate(self.bands.sets))
        later = [(band, index + 1) for band, index in starts if index + 1 < len(self._sets)]
        likely: list[tuple[Instrument, BandSet]] = []
        # Counters and gauges cost almost nothing.
        for kind in ("counter", "gauge", "histogram"):
            instruments = [instrument for instrument in INSTRUMENTS if instrument.kind == kind]
            likely += [(each, band_set) for band_set in starts for each in instruments if each.starting]
            likely += [(each, band_set) for band_set in later for each in instruments if each.crossing]
        return likely

    def _every(self) -> list[tuple[Instrument, BandSet]]:
        """Return all series, also for sets that requests name or reach after two or more switches."""
        by_kind = sorted(INSTRUMENTS, key=lambda each: each.kind)
        places = product(range(len(self._sets)), range(len(self.bands.names)))
        return [(each, (band, index)) for each, (index, band) in product(by_kind, places)]
