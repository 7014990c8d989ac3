"""The ladders of one engine, by ID, and the table of factor sets that its workers rotate with.

A ladder that replaces another brings its own sets. A request stays in the ladder it arrived with unless it is moved, so the
table holds the sets of both until no request is in the earlier one. The scheduler sends the workers rows of this table. Sets
that rotate alike share a row, regardless of their names and ends.
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

# Maximum rows in the workers' table, each up to 2.25 MiB for 64 pairs and 2,097,152 positions.
MOST_SETS = 64
# Maximum ladders kept without a name that refers to them, for requests still on their way from an API server.
MOST_RETIRED = 64
# ID of the ladder that the engine was started with.
START = "start"


@dataclass(frozen=True, eq=False)
class EngineLadder:
    """One ladder of an engine, referenced by the requests in it.

    Attributes:
        name: The name that requests select it by; empty for the default ladder.
        rule: How it chooses a request's set.
        rows: The row of each set in the workers' table.
        ends: The longest sequence of each set, in tokens.
        keys: The key of each set (:func:`~ropeswitch.model_patches.switch.set_keys.set_keys`).
    """

    name: str
    rule: SetRule
    rows: tuple[int, ...]
    ends: tuple[int, ...]
    keys: tuple[str, ...]

    def has(self, forced: str | None) -> bool:
        """Return whether a request that forces this set, or none, can be in the ladder."""
        return forced is None or forced in self.rule.ladder.names


@dataclass(frozen=True)
class Placement:
    """The rows of the table that a ladder's sets go into.

    Attributes:
        table: All rows of the table, including the ladder's sets.
        rows: The row of each of the ladder's sets.
    """

    table: tuple[FactorSet, ...]
    rows: tuple[int, ...]


class LadderTable:
    """The ladders of one engine. Modified only on the engine core's main thread; its input thread reads it.

    Args:
        settings: The engine's settings, with its initial ladder.
        max_model_len: Maximum sequence length, in tokens.

    Attributes:
        table: The workers' rows.
        default: The ladder for requests that name none.
    """

    def __init__(self, settings: RopeSettings, max_model_len: int | None) -> None:
        self._settings, self._max_model_len = settings, max_model_len
        self._by_id: OrderedDict[str, EngineLadder] = OrderedDict()
        # The ladder that replaces an earlier one, by the earlier one's ID.
        self._onward: dict[str, EngineLadder] = {}
        self._ended: WeakSet[EngineLadder] = WeakSet()
        # Ladders that requests may be in, even if their ID has been dropped.
        self._live: WeakSet[EngineLadder] = WeakSet()
        self._named: dict[str, str] = {}
        self.table = settings.ladder.sets
        keys = self._keys(self.table)
        # Sets that rotate alike share the first one's row, as in later ladders.
        self.add(START, "", settings.ladder, Placement(self.table, tuple(map(keys.index, keys))))
        self.default = self.activate(START)

    def of(self, request: Any) -> EngineLadder:
        """Return the ladder for a new ``vllm.v1.request.Request``.

        Raises:
            FactorError: when the request names a ladder that the engine has dropped.
        """
        params = params_of(request)
        extra = getattr(params, "extra_args", None) or getattr(params, "extra_kwargs", None) or {}
        if (ladder_id := extra.get(LADDER_ID)) is None:
            return self.default
        ladder = self.find(ladder_id)
        onward = self._onward.get(ladder_id)
        return ladder if onward is None or not onward.has(forced_set(params)) else onward

    def find(self, ladder_id: str) -> EngineLadder:
        """Return the ladder with an ID.

        Raises:
            FactorError: when the engine has no such ladder.
        """
        try:
            return self._by_id[ladder_id]
        except (KeyError, TypeError):
            raise FactorError(
                f"ladder {quoted(ladder_id)}: this engine has dropped it; send the request again"
            ) from None

    def place(self, ladder: FactorLadder) -> Placement:
        """Find rows for a ladder's sets, shared by sets that rotate alike. Drops retired ladders to make room.

        Raises:
            FactorError: when ladders in use and running requests hold too many rows.
        """
        while (placement := self._place(ladder)) is None:
            if not self._drop_oldest():
                raise FactorError(
                    f"sets: {len(ladder.sets)} sets do not fit into the engine's table of {MOST_SETS}, which the ladders in "
                    "use and requests of earlier ones share; delete a ladder, or wait until requests have finished"
                )
        return placement

    def add(self, ladder_id: str, name: str, ladder: FactorLadder, placement: Placement) -> None:
        """Register a ladder whose sets all workers have loaded, for requests that name its ID."""
        rule = SetRule(ladder, self._settings.policy, self._max_model_len)
        ends = tuple(each.max_length for each in ladder.sets)
        made = EngineLadder(name, rule, placement.rows, ends, self._keys(ladder.sets))
        self.table = placement.table
        self._live.add(made)
        self._by_id[ladder_id] = made

    def activate(self, ladder_id: str) -> EngineLadder:
        """Make a ladder the one that its name refers to, or the default if it has no name, and return it."""
        ladder = self.find(ladder_id)
        self._named[ladder.name] = ladder_id
        if not ladder.name:
            self.default = ladder
        self._retire()
        return ladder

    def redirect(self, ladder: EngineLadder) -> None:
        """Make the IDs of the ladders that this one replaces refer to it, for requests still on their way."""
        for ladder_id, each in self._by_id.items():
            if each is not ladder and self.replaces(ladder, each):
                self._onward[ladder_id] = ladder

    def replaces(self, ladder: EngineLadder, earlier: EngineLadder) -> bool:
        """Return whether requests in an earlier ladder may continue in this one: same name, and not deactivated."""
        return earlier.name == ladder.name and earlier not in self._ended

    def deactivate(self, name: str) -> None:
        """Remove a ladder's name; requests in the ladder finish."""
        self._named.pop(name, None)
        self._ended.update(each for each in list(self._live) if each.name == name)
        self._retire()

    def ends(self) -> Iterable[int]:
        """Return the longest sequence, in tokens, of every set except the last of its ladder."""
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
        last = max(*(row for row, each in enumerate(table) if each is not None), len(self.table) - 1)
        # No request reads a free row, so it keeps its set or gets an arbitrary one. It stays: ranks without requests,
        # which data parallelism has on the V2 runner, fill rows for the sets that their slots' last requests had.
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
        """Drop the oldest ladder that no name refers to; return False if there is none."""
        in_use = set(self._named.values())
        for ladder_id in self._by_id:
            if ladder_id not in in_use:
                del self._by_id[ladder_id]
                # Otherwise the ladder it was redirected to would hold its rows for good.
                self._onward.pop(ladder_id, None)
                return True
        return False


def table_from_json(rows: Sequence[Mapping[str, Any]]) -> FactorLadder:
    """Return a table's sets from the output of ``FactorLadder.to_json``; they are not ordered by length."""
    return FactorLadder(tuple(FactorSet(**{**row, "factors": tuple(row["factors"])}) for row in rows))
