"""The ladders of one engine, by ID, and the table of factor sets that its workers rotate with.

A ladder that replaces another brings sets of its own. A request stays in the ladder that it came with, so the table holds
the sets of both until no request is in the earlier one; its row numbers are what the scheduler gives the workers. Rows are
shared by sets that rotate alike, whatever their names and ends.
"""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakSet

from ropeswitch.factors.factor_set import FactorError, FactorLadder, FactorSet
from ropeswitch.factors.quoted import quoted
from ropeswitch.model_patches.switch.request_set import SetRule, forced_set, params_of
from ropeswitch.model_patches.switch.set_keys import set_keys
from ropeswitch.model_patches.switch.settings import LADDER_ID, RopeSettings

# Maximum rows of the workers' table: up to 2.25 MiB each for 64 pairs and 2,097,152 positions.
MOST_SETS = 64
# Ladders that no name leads to any more, for requests on their way from an API server.
MOST_RETIRED = 64
# The ladder that the engine was started with.
START = "start"


@dataclass(frozen=True, eq=False)
class EngineLadder:
    """One ladder of an engine; requests hold it while they are in it.

    Attributes:
        name: What requests ask for it by; the default ladder's is empty.
        rule: How it chooses the set of a request.
        rows: The row of each of its sets in the workers' table.
        ends: The longest sequence of each of its sets, in tokens.
        keys: The key of each of its sets (:func:`~ropeswitch.model_patches.switch.set_keys.set_keys`).
    """

    name: str
    rule: SetRule
    rows: tuple[int, ...]
    ends: tuple[int, ...]
    keys: tuple[str, ...]

    def has(self, forced: str | None) -> bool:
        """Whether a request that forces this set, or none, can be in the ladder."""
        return forced is None or forced in self.rule.ladder.names


@dataclass(frozen=True)
class Placement:
    """Where a ladder's sets go in the table.

    Attributes:
        table: All of its rows, with the ladder's sets in them.
        rows: The row of each of the ladder's sets.
    """

    table: tuple[FactorSet, ...]
    rows: tuple[int, ...]


class LadderTable:
    """The ladders of one engine. Changed on the engine core's main thread alone; its input thread reads it.

    Args:
        settings: The engine's, with the ladder that it starts with.
        max_model_len: Maximum tokens of a sequence.

    Attributes:
        table: The workers' rows.
        default: The ladder of requests that name none.
    """

    def __init__(self, settings: RopeSettings, max_model_len: int | None) -> None:
        self._settings, self._max_model_len = settings, max_model_len
        self._by_id: OrderedDict[str, EngineLadder] = OrderedDict()
        # Where the IDs of earlier ladders lead instead.
        self._onward: dict[str, EngineLadder] = {}
        self._ended: WeakSet[EngineLadder] = WeakSet()
        # Those that requests may be in, whether or not an ID still leads to them.
        self._live: WeakSet[EngineLadder] = WeakSet()
        self._named: dict[str, str] = {}
        self.table = settings.ladder.sets
        keys = self._keys(self.table)
        # Sets that rotate alike share the first one's row, as those of later ladders do.
        self.add(START, "", settings.ladder, Placement(self.table, tuple(map(keys.index, keys))))
        self.default = self.activate(START)

    def of(self, request: Any) -> EngineLadder:
        """The ladder that a new ``vllm.v1.request.Request`` is in.

        Raises:
            FactorError: when it names one that the engine has dropped.
        """
        params = params_of(request)
        extra = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
        if (ladder_id := extra.get(LADDER_ID)) is None:
            return self.default
        ladder = self.find(ladder_id)
        onward = self._onward.get(ladder_id)
        return ladder if onward is None or not onward.has(forced_set(params)) else onward

    def find(self, ladder_id: str) -> EngineLadder:
        """The ladder of an ID.

        Raises:
            FactorError: when the engine has none.
        """
        try:
            return self._by_id[ladder_id]
        except (KeyError, TypeError):
            raise FactorError(
                f"ladder {quoted(ladder_id)}: this engine has dropped it; send the request again"
            ) from None

    def place(self, ladder: FactorLadder) -> Placement:
        """Find rows for a ladder's sets: those of sets that rotate alike, then free ones. Drops retired ladders for room.

        Raises:
            FactorError: when running requests hold too many rows.
        """
        while (placement := self._place(ladder)) is None:
            if not self._drop_oldest():
                raise FactorError(
                    f"sets: {len(ladder.sets)} sets do not fit into the engine's table of {MOST_SETS}, which the ladders in "
                    "use and requests of earlier ones share; delete a ladder, or wait until requests have finished"
                )
        return placement

    def add(self, ladder_id: str, name: str, ladder: FactorLadder, placement: Placement) -> None:
        """Take a ladder whose sets all workers have loaded, for requests that name its ID."""
        rule = SetRule(ladder, self._settings.policy, self._max_model_len)
        ends = tuple(each.max_length for each in ladder.sets)
        made = EngineLadder(name, rule, placement.rows, ends, self._keys(ladder.sets))
        self.table = placement.table
        self._live.add(made)
        self._by_id[ladder_id] = made

    def activate(self, ladder_id: str) -> EngineLadder:
        """Keep a ladder for as long as its name leads to it; the one without a name becomes the default. Returns it."""
        ladder = self.find(ladder_id)
        self._named[ladder.name] = ladder_id
        if not ladder.name:
            self.default = ladder
        self._retire()
        return ladder

    def redirect(self, ladder: EngineLadder) -> None:
        """Have the IDs of the ladders that this one replaces lead to it, for requests that are on their way."""
        self._onward = {ladder_id: to for ladder_id, to in self._onward.items() if ladder_id in self._by_id}
        for ladder_id, each in self._by_id.items():
            if each is not ladder and self.replaces(ladder, each):
                self._onward[ladder_id] = ladder

    def replaces(self, ladder: EngineLadder, earlier: EngineLadder) -> bool:
        """Whether requests in an earlier ladder may go on in this one: their names are equal, and nobody dropped it."""
        return earlier.name == ladder.name and earlier not in self._ended

    def deactivate(self, name: str) -> None:
        """Have a name lead to no ladder; requests in it finish."""
        self._named.pop(name, None)
        self._ended.update(each for each in list(self._live) if each.name == name)
        self._retire()

    def ends(self) -> Iterable[int]:
        """The longest sequence, in tokens, of every set that has a next one in its ladder."""
        return {end for ladder in list(self._live) for end in ladder.ends[:-1]}

    def _place(self, ladder: FactorLadder) -> Placement | None:
        held = {row for each in list(self._live) for row in each.rows}
        table: list[FactorSet | None] = [each if row in held else None for row, each in enumerate(self.table)]
        table += [None] * (MOST_SETS - len(table))
        by_key = {key: row for row, key in enumerate(self._keys(self.table)) if row in held}
        rows = []
        for each, key in zip(ladder.sets, self._keys(ladder.sets), strict=True):
            if key not in by_key:
                if None not in table:
                    return None
                by_key[key] = table.index(None)
                table[by_key[key]] = each
            rows.append(by_key[key])
        last = max(row for row, each in enumerate(table) if each is not None)
        # A free row keeps what it had, or holds any set: nothing reads it.
        filled = [
            each or (self.table[row] if row < len(self.table) else ladder.sets[0]) for row, each in enumerate(table)
        ]
        return Placement(tuple(filled[: last + 1]), tuple(rows))

    def _keys(self, sets: tuple[FactorSet, ...]) -> tuple[str, ...]:
        return set_keys(replace(self._settings, ladder=FactorLadder(sets)))

    def _retire(self) -> None:
        while len(self._by_id) - len(set(self._named.values())) > MOST_RETIRED and self._drop_oldest():
            pass

    def _drop_oldest(self) -> bool:
        """Drop the oldest ladder that no name leads to; False where there is none."""
        in_use = set(self._named.values())
        for ladder_id in self._by_id:
            if ladder_id not in in_use:
                del self._by_id[ladder_id]
                return True
        return False


def table_from_json(rows: Sequence[Mapping[str, Any]]) -> FactorLadder:
    """A table's sets, from ``FactorLadder.to_json`` of them; they are in no order of length."""
    return FactorLadder(tuple(FactorSet(**{**row, "factors": tuple(row["factors"])}) for row in rows))
