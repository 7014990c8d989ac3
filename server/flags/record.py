"""Records the table of vLLM's flags; after changing the pinned vLLM, run ``python -m ropeswitch.server.flags.record``."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

TABLE = Path(__file__).with_name("table.json")
_ACTIONS = {"_StoreTrueAction": "true", "BooleanOptionalAction": "bool", "_AppendAction": "append"}
# Kinds of values, by the name of the vLLM function that parses them.
_KINDS = {
    "int": "int",
    "float": "float",
    "str": "text",
    "loads": "json",
    "human_readable_int": "size",
    "human_readable_int_or_auto": "length",
    "union_dict_and_str": "text or object",
    "parse_dataclass": "object",
}
_BOUNDS = {"ge": ("least", False), "gt": ("least", True), "le": ("most", False), "lt": ("most", True)}


def table(parser: argparse.ArgumentParser, bounds: Mapping[str, list[Any]], names: Mapping[str, list[str]]) -> str:
    """Return the table as JSON, one row per flag.

    Args:
        parser: vLLM's parser, without our flags.
        bounds: Constraints of the configs' fields, by field name, as pydantic stores them.
        names: Known values of text flags, by destination; plugins may add others.

    Raises:
        ValueError: for an unknown type of values.
    """
    actions = [action for action in parser._actions if type(action).__name__ != "_HelpAction"]
    rows = [_row(action, bounds) | _names(action, names) for action in actions]
    lines = ",\n".join(json.dumps(row) for row in rows)
    return f'{{"flags": [\n{lines}\n]}}\n'


def _names(action: argparse.Action, names: Mapping[str, list[str]]) -> dict[str, list[str]]:
    """Return the known values of a text flag; vLLM shows those of its own annotations as the metavar."""
    known = names.get(action.dest, action.metavar)
    return {"names": list(known)} if isinstance(known, list) else {}


def _row(action: argparse.Action, bounds: Mapping[str, list[Any]]) -> dict[str, Any]:
    kind, optional, keys = _kind(action.type, action.dest)
    span: dict[str, Any] = {}
    for bound in bounds.get(action.dest, ()):
        for name, (end, excluded) in _BOUNDS.items():
            if (value := getattr(bound, name, None)) is not None:
                span |= {end: value} | ({f"{end}_excluded": True} if excluded else {})
    row: dict[str, Any] = {
        "flags": list(action.option_strings),
        "dest": action.dest,
        "action": _ACTIONS.get(type(action).__name__, "store"),
        "nargs": action.nargs if isinstance(action.nargs, str) else None,
        "kind": None if kind == "text" else kind,
        "optional": optional or None,
        "choices": list(action.choices) if action.choices is not None else None,
        "keys": keys,
        "span": span or None,
        "default": _plain(action.default),
    }
    return {name: value for name, value in row.items() if value is not None}


def _plain(value: Any) -> Any:
    return value if type(value) in (bool, int, float, str) and value != argparse.SUPPRESS else None


def _kind(check: Any, dest: str) -> tuple[str, bool, list[str] | None]:
    """Return the kind of a flag's values, whether they are optional, and the keys of an object."""
    optional = False
    while check is not None and check.__name__ in ("_optional_type", "_parse_type"):
        optional = optional or check.__name__ == "_optional_type"
        [check] = [cell.cell_contents for cell in check.__closure__ if callable(cell.cell_contents)]
    if check is None:
        return "text", optional, None
    if check.__name__ == "<lambda>":
        return "folded" if check("A-b") == "a_b" else "text", optional, None
    if check.__name__ not in _KINDS:
        raise ValueError(f"--{dest.replace('_', '-')}: the type {check.__qualname__} is unknown; add it to _KINDS")
    kind = _KINDS[check.__name__]
    if kind == "object":
        # Classes that accept values other than objects, or unknown keys, are left to vLLM.
        if any(map(check_accepts, [check] * 4, ("3", '"x"', "[]", "null"))):
            return "json", optional, None
        if not check_accepts(check, '{"no_such_key": null}'):
            return kind, optional, sorted(check.__defaults__[0].__dataclass_fields__)
    return kind, optional, None


def check_accepts(check: Any, text: str) -> bool:
    """Whether one of vLLM's parsing functions accepts a value."""
    try:
        check(text)
    except (argparse.ArgumentTypeError, ValueError, TypeError):
        return False
    return True


def installed() -> str:
    """Return the table of the installed vLLM."""
    from ropeswitch.server import vllm_adapter

    return table(vllm_adapter.stock_parser(), vllm_adapter.config_bounds(), vllm_adapter.known_names())


def main() -> None:
    """Record the table of the installed vLLM."""
    TABLE.write_text(installed(), encoding="utf-8")


if __name__ == "__main__":
    main()
