"""Engine core utilities that load, activate and drop ladders while requests run (``switch/ladders.py``)."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from ropeswitch.factors.factor_set import FactorError, FactorLadder


def load_ladder(engine: Any, ladder_id: str, name: str, sets: Sequence[Mapping[str, Any]]) -> str | None:
    """Have every worker load a ladder's sets; requests may name its ID once all engines have loaded it.

    The sets go into free rows of the workers' tables, so if a worker fails, nothing uses the rows loaded by the others.

    Args:
        engine: ``vllm.v1.engine.core.EngineCore``.
        ladder_id: An ID that no other ladder of the engine has had.
        name: The name that requests select it by; empty for the default ladder.
        sets: The ladder as JSON.

    Returns:
        The reason why it was not loaded, or None.
    """
    ladders = engine.scheduler.ladders
    ladder = FactorLadder.checked(sets)
    try:
        placement = ladders.place(ladder)
    except FactorError as error:
        return str(error)
    table = FactorLadder(placement.table).to_json()
    failures: list[str | None] = engine.model_executor.collective_rpc("load_sets", args=(table,))
    if failed := next(filter(None, failures), None):
        return failed
    ladders.add(ladder_id, name, ladder, placement)
    return None


def use_ladder(engine: Any, ladder_id: str, recompute: bool) -> list[str]:
    """Replace the ladder of the same name with a loaded one.

    Args:
        engine: ``vllm.v1.engine.core.EngineCore``.
        ladder_id: The loaded ladder's ID.
        recompute: Whether requests in earlier ladders of that name move to it; otherwise they finish where they are.

    Returns:
        The IDs of the requests that move to it.
    """
    scheduler = engine.scheduler
    ladder = scheduler.ladders.activate(ladder_id)
    if not recompute:
        return []
    scheduler.ladders.redirect(ladder)
    moved: list[str] = scheduler.move(ladder)
    return moved


def drop_ladder(engine: Any, name: str) -> None:
    """Drop a named ladder; requests in it finish."""
    engine.scheduler.ladders.deactivate(name)


def utilities(engine: Any) -> dict[str, Callable[..., Any]]:
    """Return the utilities by the names that the server calls (``server/ladder_updates.py``)."""
    return {each.__name__: partial(each, engine) for each in (load_ladder, use_ladder, drop_ladder)}
